"""Wait in a test until a condition holds, with a deadline that only a broken program reaches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
PAUSE_S = 0.02


def eventually(
    check: Callable[[], T],
    what: str | Callable[[], object] = "the condition holds",
    *,
    timeout_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
) -> T:
    """Call ``check`` until its result is true, and return that result.

    ``what`` names the awaited condition; a function is called after the deadline, and may describe
    the state by then. An exception of ``check`` ends the wait.

    Raises:
        AssertionError: ``check`` was not true within ``timeout_s``.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (found := check()):
        _require_time(deadline_s, timeout_s, what)
        time.sleep(pause_s)
    return found


async def eventually_async(
    check: Callable[[], Awaitable[T] | T],
    what: str | Callable[[], object] = "the condition holds",
    *,
    timeout_s: float = PATIENCE_S,
    pause_s: float = PAUSE_S,
) -> T:
    """The same beside an event loop; ``check`` may be a coroutine function."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := await _result(check)):
        _require_time(deadline_s, timeout_s, what)
        await asyncio.sleep(pause_s)
    return found


async def _result(check: Callable[[], Awaitable[T] | T]) -> T:
    found = check()
    return await found if isinstance(found, Awaitable) else found


def _require_time(deadline_s: float, timeout_s: float, what: str | Callable[[], object]) -> None:
    if time.monotonic() > deadline_s:
        said = what() if callable(what) else what
        raise AssertionError(f"not within {timeout_s:g} s: {said}")
