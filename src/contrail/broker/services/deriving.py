"""When consume queues and key index are brought up to the log.

Before anybody is served who may look at them. When somebody waits for what was sent: at once, but
not more often than once a millisecond for long. Else a moment later, for all ticks since together:
with few messages in a tick, deriving each by itself, and waking who waits for it, costs more than
storing them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from contrail.errors import StoreError
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

# For what nobody waits for. Nobody can tell: whoever asks for anything but a send, or the end of
# a transaction that is known without the log, is answered after what he may see was derived. Until
# then it is read again from the log after a crash.
_LATER_S = 0.010
# When messages for those who wait come faster than this, they get several of them together: to wake
# a consumer costs as much as to store ten messages. A few may come faster.
_APART_S = 0.001
_BURST_S = 4 * _APART_S
# So many bytes of the log have nothing to gain from company: the steps of deriving, which run once
# for all of them, are a hundredth of the work then.
_TOGETHER_BYTES = 1 << 20


class Deriving:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        store: MessageStore,
        waited_for: Mapping[tuple[bytes, int], object],
        loop: asyncio.AbstractEventLoop,
        *,
        on_broken: Callable[[], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``waited_for`` are the queues where somebody waits for messages, at each moment."""
        self._store = store
        self._waited_for = waited_for
        self._loop = loop
        self._on_broken = on_broken
        self._now_s = now_s
        self._is_closed = False
        self._later: asyncio.TimerHandle | None = None
        # Whether that is sooner than it would be for what nobody waits for.
        self._is_soon = False
        # Once each ``_APART_S``, as often as lately: it would have been done until then.
        self._next_s = 0.0

    def after_tick(self) -> None:
        """Something may have been stored, or become durable."""
        byte_count = self._store.underived_bytes
        if not byte_count or self._is_closed:
            return
        if byte_count >= _TOGETHER_BYTES:
            self.catch_up()
        elif self._waited_for and self._store.is_awaited:
            self.hurry()
        elif self._later is None:
            self._later = self._loop.call_later(_LATER_S, self.catch_up)

    def hurry(self) -> None:
        """Somebody waits: derive now, or in a moment when that has happened too often lately."""
        if self._next_s - self._now_s() < _BURST_S:
            self.catch_up()
        elif not self._is_soon and not self._is_closed:
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_later(_APART_S, self.catch_up)
            self._is_soon = True

    @property
    def is_behind(self) -> bool:
        """Whether something was put off, or may be seen since without a tick having told of it."""
        return self._store.underived_bytes > 0

    def close(self) -> None:
        """Whoever closes the store derives the rest, on another thread: no call does any more."""
        self._is_closed = True
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
            self._is_soon = False

    def catch_up(self) -> None:
        """Derive everything that may be seen."""
        self._forget_timer()
        store = self._store
        if self._is_closed or store.poisoned is not None or not store.underived_bytes:
            return
        now_s = self._now_s()
        self._next_s = min(max(self._next_s, now_s), now_s + _BURST_S) + _APART_S
        try:
            store.dispatch()
        except StoreError:
            _log.exception("the log cannot be read on: consumers will see nothing new")
            self._on_broken()
        except OSError:
            _log.exception("held pulls could not be woken; they are looked at again soon")
        except Exception:
            # Whoever asked has other work to do, which must not suffer; it is tried again soon.
            _log.exception("queues and index could not be brought up to the log")
