"""Where reading begins, as ``-o`` says it. No I/O.

==============================  ================================================
``earliest``, ``latest``        the oldest message, or only messages from now on
``-10``                         the newest ten of the topic
``@2026-11-15T10:00``           messages stored then or later
``1200``                        this queue offset, in every queue that is read
==============================  ================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from contrail.cli.times import parse_time
from contrail.errors import OptionInvalid


class PlaceKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    NEWEST = "newest"
    TIME = "time"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class StartPlace:
    """A place to start; ``number`` is a count, milliseconds or a queue offset by its kind."""

    kind: PlaceKind
    number: int = 0


def parse_place(option: str, text: str) -> StartPlace:
    """Raises ``OptionInvalid`` for a text that is no place."""
    if text in (PlaceKind.EARLIEST.value, PlaceKind.LATEST.value):
        return StartPlace(PlaceKind(text))
    if text.startswith("@"):
        moment_ms = parse_time(option, text[1:])
        assert moment_ms is not None
        return StartPlace(PlaceKind.TIME, moment_ms)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise OptionInvalid(
            f"{option} {text!r} is no place: write earliest, latest, -10 (the newest ten), "
            "@2026-11-15T10:00 or a queue offset"
        )
    kind = PlaceKind.NEWEST if text.startswith("-") else PlaceKind.OFFSET
    return StartPlace(kind, int(digits))


def newest_places(
    stored_ms: dict[int, list[tuple[int, int]]], ends: dict[int, int], count: int
) -> dict[int, int]:
    """Where each queue begins so that ``count`` messages are left in all, the newest.

    ``stored_ms`` has the store time and queue offset of the last messages of each queue by its
    number, ``ends`` the queues' next offsets.
    """
    every = [
        (time_ms, queue_offset, queue)
        for queue, messages in stored_ms.items()
        for time_ms, queue_offset in messages
    ]
    starts = dict(ends)
    for _, queue_offset, queue in sorted(every)[max(0, len(every) - count) :]:
        starts[queue] = min(starts[queue], queue_offset)
    return starts
