"""The body of VIEW_BROKER_STATS_DATA: one stat item in its three windows."""

from __future__ import annotations

from typing import Protocol

from contrail.protocol.json_style import encode_body


class Window(Protocol):
    """What a window of a stat item shows."""

    @property
    def total(self) -> int: ...
    @property
    def per_second(self) -> float: ...
    @property
    def per_call(self) -> float: ...


def encode_stats(minute: Window, hour: Window, day: Window) -> bytes:
    return encode_body(
        {"statsMinute": _item(minute), "statsHour": _item(hour), "statsDay": _item(day)}
    )


def _item(window: Window) -> dict[str, object]:
    return {"avgpt": window.per_call, "sum": window.total, "tps": window.per_second}
