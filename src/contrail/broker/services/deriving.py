"""Decides when queue rows and index entries are derived from new records.

Before a request that may look at queues is served. While pulls wait for sent messages: in the tick,
but on average not more often than once a millisecond. Otherwise some milliseconds later, for all
ticks since: with few messages in a tick, deriving after every tick and waking one pull each time
costs more than storing the messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from contrail.errors import StoreError
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

# For messages that no pull waits for. No client can tell: every request but a send, or the end of
# a transaction that is known without the log, is answered after the queues it may look at were
# derived. After a crash the rest is read again from the log.
_LATER_S = 0.010
# When messages for held pulls come faster than this, a pull gets several of them: to wake
# a consumer costs as much as to store ten messages. A few may come faster.
_APART_S = 0.001
_BURST_S = 4 * _APART_S
# From this many bytes of the log on, deriving does not wait for more: the steps that run once for
# all records are then a hundredth of the work.
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
        """``waited_for`` are the queues with held pulls, at each moment."""
        self._store = store
        self._waited_for = waited_for
        self._loop = loop
        self._on_broken = on_broken
        self._now_s = now_s
        self._is_closed = False
        self._later: asyncio.TimerHandle | None = None
        # Whether the next deriving is sooner than it would be without held pulls.
        self._is_soon = False
        # The time until which recent derivings fill one each ``_APART_S``.
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
        """A pull waits: derive now, or a few milliseconds later after many derivings."""
        if self._next_s - self._now_s() < _BURST_S:
            self.catch_up()
        elif not self._is_soon and not self._is_closed:
            if self._later is not None:
                self._later.cancel()
            self._later = self._loop.call_later(_APART_S, self.catch_up)
            self._is_soon = True

    @property
    def is_behind(self) -> bool:
        """Whether records wait to be derived, or became visible without a tick telling of them."""
        return self._store.underived_bytes > 0

    def close(self) -> None:
        """The store derives the rest on another thread when it closes: no call does any more."""
        self._is_closed = True
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
            self._is_soon = False

    def catch_up(self) -> None:
        """Derive all visible records."""
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
            # The caller's own work must not fail with it; deriving is tried again soon.
            _log.exception("queues and index could not be brought up to the log")
