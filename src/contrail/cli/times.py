"""Times and durations as a person writes them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from contrail.errors import OptionInvalid

_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


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
    """``90s``, ``15m``, ``2h`` or ``1d``.

    Raises:
        OptionInvalid: it is none of them.
    """
    number, unit = text[:-1], _UNITS.get(text[-1:])
    if unit is None or not (number.isascii() and number.isdecimal()):
        raise OptionInvalid(f"{option} {text!r} is no duration: write it as 90s, 15m, 2h or 1d")
    try:
        return timedelta(**{unit: int(number)})
    except (OverflowError, ValueError):
        raise OptionInvalid(f"{option} {text!r} is too long: give less than 999999999d") from None
