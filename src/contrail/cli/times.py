"""Times and durations as a person writes them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contrail.errors import OptionInvalid
from contrail.model.duration import duration_ms

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(option: str, text: str | None) -> int | None:
    """Milliseconds since 1970 of an ISO 8601 time, UTC unless it says otherwise, or as they are.

    Raises:
        OptionInvalid: it is neither.
    """
    if text is None:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionInvalid(
            f"{option} {text!r} is no time: write it as 2026-11-16T10:00, or in milliseconds"
        ) from None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if aware < _FIRST:
        raise OptionInvalid(f"{option} {text!r} is before 1970: no message is that old")
    return int(aware.timestamp() * 1000)


def parse_duration(option: str, text: str) -> timedelta:
    """A duration of the command line, in the units of every other setting.

    Raises:
        OptionInvalid: the text is no duration.
    """
    found_ms = duration_ms(text)
    if found_ms is None:
        raise OptionInvalid(f"{option} {text!r} is no duration: write it as 90s, 15m, 2h or 1d")
    try:
        return timedelta(milliseconds=found_ms)
    except OverflowError:
        raise OptionInvalid(f"{option} {text!r} is too long: give less than 999999999d") from None
