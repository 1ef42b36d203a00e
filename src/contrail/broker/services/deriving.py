"""When consume queues and key index are brought up to the log.

At once while somebody waits for them, and before anybody is served who may look at them. Else
a moment later, for all ticks since together: with few messages in a tick, deriving each by itself
costs more than storing them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from contrail.errors import StoreError
from contrail.store.log import MessageStore

_log = logging.getLogger(__name__)

# Nobody can tell: whoever asks for anything but a send, or the end of a transaction that is known
# without the log, is served after what he may see was derived, and what somebody waits for is
# derived at once. Until then it is read again from the log after a crash.
_LATER_S = 0.010
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
    ) -> None:
        """``waited_for`` are the queues where somebody waits for messages, at each moment."""
        self._store = store
        self._waited_for = waited_for
        self._loop = loop
        self._on_broken = on_broken
        self._later: asyncio.TimerHandle | None = None

    def after_tick(self) -> None:
        """Something may have been stored, or become durable."""
        byte_count = self._store.underived_bytes
        if not byte_count:
            return
        if byte_count >= _TOGETHER_BYTES or (self._waited_for and self._store.is_awaited):
            self.catch_up()
        elif self._later is None:
            self._later = self._loop.call_later(_LATER_S, self.catch_up)

    @property
    def is_behind(self) -> bool:
        """Whether something was put off, or may be seen since without a tick having told of it."""
        return self._store.underived_bytes > 0

    def catch_up(self) -> None:
        """Derive everything that may be seen."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        store = self._store
        if store.poisoned is not None or store.is_closed or not store.underived_bytes:
            return
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
