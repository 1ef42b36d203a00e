"""Chooses a server's event loop, and sets its garbage collector once the server has started."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

# Requests make many short-lived objects and no cycles: a young collection for every 50,000 objects
# is enough, and full collections are rare enough not to delay ticks.
_GC_THRESHOLDS = (50_000, 20, 50)


class EventLoopChoice(NamedTuple):
    """An event loop by its name; ``note`` says why it is not uvloop."""

    name: str
    new_loop: Callable[[], asyncio.AbstractEventLoop]
    note: str | None = None


def choose_event_loop() -> EventLoopChoice:
    """uvloop where it is installed, else the standard library's loop."""
    try:
        uvloop = import_module("uvloop")
    except ImportError as error:
        note = f"uvloop cannot be imported ({error}): the slower asyncio loop is used"
        return EventLoopChoice("asyncio", asyncio.new_event_loop, note)
    return EventLoopChoice(f"uvloop {uvloop.__version__}", uvloop.new_event_loop)


def run(work: Coroutine[Any, Any, T], choice: EventLoopChoice) -> T:
    """Run a program's main coroutine on the chosen loop."""
    with asyncio.Runner(loop_factory=choice.new_loop) as runner:
        return runner.run(work)


def set_collector_for_serving() -> None:
    """Exclude the objects made at start from collections; call it once, after the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
