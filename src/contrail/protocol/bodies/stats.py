"""The body of VIEW_BROKER_STATS_DATA: one stat item in its three windows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from contrail.model.fastjson import Fields
from contrail.protocol.json_style import body_errors, decode_body, encode_body


class Window(Protocol):
    """The numbers in a window of a stat item."""

    @property
    def total(self) -> int: ...
    @property
    def per_second(self) -> float: ...
    @property
    def per_call(self) -> float: ...


class WindowFigures(NamedTuple):
    """A decoded window: the total, the calls a second, and the count per call."""

    total: int
    per_second: float
    per_call: float


class StatItem(NamedTuple):
    """One stat item in its three windows."""

    minute: WindowFigures
    hour: WindowFigures
    day: WindowFigures


def encode_stats(minute: Window, hour: Window, day: Window) -> bytes:
    return encode_body(
        {"statsMinute": _item(minute), "statsHour": _item(hour), "statsDay": _item(day)}
    )


def _item(window: Window) -> dict[str, object]:
    return {"avgpt": window.per_call, "sum": window.total, "tps": window.per_second}


def decode_stats(body: bytes) -> StatItem:
    """Raises ``RequestRejected`` for a body that is no stat item."""
    what = "a stat item"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        windows = (_figures(fields, name) for name in ("statsMinute", "statsHour", "statsDay"))
        return StatItem(*windows)


def _figures(fields: Fields, name: str) -> WindowFigures:
    window = fields.child(name) or Fields({}, name)
    return WindowFigures(
        total=window.integer("sum", 0),
        per_second=window.rate("tps"),
        per_call=window.rate("avgpt"),
    )
