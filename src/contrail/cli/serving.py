"""Runs a server until a signal or a failure ends it, and returns how it ended.

Exit codes: 0 stopped by a signal, 2 it could not start (one line says why), 3 it failed while it
ran and must not go on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from contrail.errors import ConfigError, OpeningAbandoned
from contrail.runtime.build import interpreted_warning
from contrail.runtime.event_loop import (
    EventLoopChoice,
    choose_event_loop,
    set_collector_for_serving,
)
from contrail.runtime.event_loop import run as run_on_loop

_log = logging.getLogger(__name__)

STOPPED = 0
FAILED = 3
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FAILED_STOP_S = 30.0


class Servant(Protocol):
    """A server that can be started and stopped."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=Servant)


def serve(
    make: Callable[[], S],
    *,
    on_ready: Callable[[S], None],
    failed_event: Callable[[S], asyncio.Event | None] = lambda servant: None,
    abandon: Callable[[S], None] = lambda servant: None,
    begins_anew: Callable[[S], bool] = lambda servant: False,
) -> int:
    """Make a server on the event loop, serve until the end, and return the exit code.

    ``abandon`` has a server that is still starting end that soon, with ``OpeningAbandoned``.
    A failed server that ``begins_anew`` is stopped, and another one made and started.

    Raises:
        ContrailError: it could not be started.
    """
    choice = choose_event_loop()
    _tell(choice)
    return run_on_loop(_serve(make, on_ready, failed_event, abandon, begins_anew), choice)


def _tell(choice: EventLoopChoice) -> None:
    _log.info("event loop: %s", choice.name)
    for note in (choice.note, interpreted_warning()):
        if note is not None:
            _log.warning("%s", note)


async def _serve(
    make: Callable[[], S],
    on_ready: Callable[[S], None],
    failed_event: Callable[[S], asyncio.Event | None],
    abandon: Callable[[S], None],
    begins_anew: Callable[[S], bool],
) -> int:
    end = _End()
    while True:
        servant = make()
        end.on_signal = partial(abandon, servant)
        try:
            await _start(servant)
        except OpeningAbandoned as abandoned:
            _log.info("%s", abandoned)
            return STOPPED
        end.on_signal = None
        set_collector_for_serving()
        on_ready(servant)
        has_failed = await end.wait(failed_event(servant))
        if not has_failed:
            await servant.stop()
            return STOPPED
        if not begins_anew(servant):
            break
        _log.warning("the server stops and starts again, as the lines above say")
        await servant.stop()
        if end.is_signalled:
            return STOPPED
    _log.critical("the server has failed and ends: see the lines above, then start it again")
    await _stop_failed(servant)
    return FAILED


async def _start(servant: Servant) -> None:
    try:
        await servant.start()
    except ConfigError as error:
        raise with_fix(error) from error
    except OSError as error:
        raise ConfigError(f"the server cannot start: {error}") from error


async def _stop_failed(servant: Servant) -> None:
    """A failed server is stopped too, so that it writes the state that it still can."""
    try:
        await asyncio.wait_for(servant.stop(), _FAILED_STOP_S)
    except Exception:
        _log.exception("stopping after the failure was not possible")
        # Threads that hang on the disk would keep the process alive.
        end_at_once(FAILED)


class _End:
    """Waits for a signal or a failure; the second signal ends the process at once."""

    def __init__(self) -> None:
        self._signalled = asyncio.Event()
        # Called at the first signal, while the server starts.
        self.on_signal: Callable[[], None] | None = None
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signalled.is_set():
            _log.error("%s again: ending at once, without writing anything down", number.name)
            end_at_once(128 + number)
        _log.info("%s: stopping; once more ends at once", number.name)
        self._signalled.set()
        if self.on_signal is not None:
            self.on_signal()

    @property
    def is_signalled(self) -> bool:
        return self._signalled.is_set()

    async def wait(self, failed: asyncio.Event | None) -> bool:
        """Return whether it was a failure."""
        events = [self._signalled] if failed is None else [self._signalled, failed]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        return failed is not None and failed.is_set()


def end_at_once(exit_code: int) -> NoReturn:
    """End the process without waiting for anything but its log."""
    logging.shutdown()
    os._exit(exit_code)


def with_fix(error: ConfigError) -> ConfigError:
    """The error with its fix, where the cause is known."""
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    fix = _FIXES.get(number) if number is not None else None
    return ConfigError(f"{error}; {fix}") if fix else error


_FIXES = {
    errno.EADDRINUSE: "end the process that has the port, or choose another with --port",
    errno.EADDRNOTAVAIL: "this host has no such address: set listenAddress to one it has",
    errno.EACCES: "ports below 1024 need a privilege: choose another with --port",
}
