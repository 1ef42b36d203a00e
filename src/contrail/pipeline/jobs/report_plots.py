"""Plots as inline SVG: values in, text out. Colours are classes that the page defines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

SERIES_COLOURS = 6
_WIDTH = 880
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 28, 12, 40
_TICKS = 4
_DAY_MS = 86_400_000
_ROW_HEIGHT = 24
_BAR_LABEL = 250
_BAR_VALUE = 90

Format = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a value or None for each moment. ``is_rest`` is drawn grey."""

    name: str
    values: Sequence[float | None]
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; ``mark`` is a colour's number."""

    label: str
    value: float
    mark: int = 0


def count_text(value: float) -> str:
    """A count with thousands separators; a small rate with decimals."""
    if value and abs(value) < 10 and value != int(value):
        return f"{value:.2g}"
    return f"{value:,.0f}"


def short_count(value: float) -> str:
    """A count for an axis: 1.2k, 3M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def bytes_text(value: float) -> str:
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g} B"


def duration_text(value_ms: float) -> str:
    for limit, unit in ((_DAY_MS, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if abs(value_ms) >= limit:
            return f"{value_ms / limit:.3g} {unit}"
    return f"{value_ms:.3g} ms"


def time_text(time_ms: int, span_ms: int) -> str:
    """A moment for an axis, without the parts that all ticks share."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    if span_ms >= 3 * _DAY_MS:
        return f"{moment:%d %b}"
    if span_ms >= _DAY_MS:
        return f"{moment:%d %b %H:%M}"
    return f"{moment:%H:%M}" if span_ms >= 300_000 else f"{moment:%H:%M:%S}"


def nice_ticks(top: float, count: int = _TICKS, *, radix: int = 10) -> list[float]:
    """Round numbers from 0 on; the last is at or above ``top``.

    With a ``radix`` of 1024 they are round in units of bytes.
    """
    if top <= 0:
        return [0.0, 1.0]
    if radix != 10:
        unit = float(radix) ** max(0, math.floor(math.log(top, radix)))
        return [tick * unit for tick in nice_ticks(top / unit, count)]
    step = top / count
    magnitude = 10.0 ** math.floor(math.log10(step))
    step = magnitude * next(size for size in (1, 2, 2.5, 5, 10) if size * magnitude >= step)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def line_plot(
    times_ms: Sequence[int],
    series: Sequence[Series],
    *,
    y_label: str,
    y_format: Format = short_count,
    value_format: Format = count_text,
    radix: int = 10,
    height: int = 240,
) -> str:
    """Lines over time (UTC); the pointer shows the values of a moment."""
    top = max((value for one in series for value in one.values if value is not None), default=0.0)
    ticks = nice_ticks(top, radix=radix)
    frame = _Frame(times_ms, ticks[-1], height)
    parts = [
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(y_label)} over time">',
        *_horizontal_grid(frame, ticks, y_format),
        *_time_axis(frame, times_ms),
        f'<text class="axis" x="{_LEFT}" y="{height - 4}">time, UTC</text>',
        f'<text class="axis" transform="translate(12 {frame.middle}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>',
        *(_line(frame, one, number) for number, one in enumerate(series)),
        *_hover_bands(frame, times_ms, series, value_format),
        "</svg>",
    ]
    return _legend(series) + "".join(parts)


def bar_plot(bars: Sequence[Bar], *, value_format: Format = count_text, label: str = "") -> str:
    """Horizontal bars, a row each, with their values beside them."""
    top = max((bar.value for bar in bars), default=0.0) or 1.0
    height = _ROW_HEIGHT * len(bars) + 4
    room = _WIDTH - _BAR_LABEL - _BAR_VALUE
    rows = []
    for number, bar in enumerate(bars):
        y = number * _ROW_HEIGHT + 4
        width = max(1.0, bar.value / top * room) if bar.value else 0.0
        rows.append(
            f"<g><title>{escape(bar.label)}: {value_format(bar.value)}</title>"
            f'<text class="label" x="{_BAR_LABEL - 8}" y="{y + 13}" text-anchor="end">'
            f"{escape(shortened(bar.label))}</text>"
            f'<rect class="c{bar.mark}" x="{_BAR_LABEL}" y="{y}" width="{width:.1f}" '
            f'height="{_ROW_HEIGHT - 8}" rx="2"/>'
            f'<text class="label" x="{_BAR_LABEL + width + 6:.1f}" y="{y + 13}">'
            f"{value_format(bar.value)}</text></g>"
        )
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(rows)}</svg>'
    )


def column_plot(values: Sequence[tuple[str, float]], *, value_format: Format = count_text) -> str:
    """Small columns side by side, and a line at their mean, to show skew."""
    width, height = 260, 64
    top = max((value for _, value in values), default=0.0) or 1.0
    step = width / max(len(values), 1)
    columns = []
    for number, (name, value) in enumerate(values):
        tall = value / top * (height - 4)
        columns.append(
            f'<rect class="c0" x="{number * step + 0.5:.2f}" y="{height - tall:.1f}" '
            f'width="{max(step - 1, 0.5):.2f}" height="{tall:.1f}">'
            f"<title>{escape(name)}: {value_format(value)}</title></rect>"
        )
    mean = sum(value for _, value in values) / len(values) if values else 0.0
    level = height - mean / top * (height - 4)
    return (
        f'<svg class="columns" viewBox="0 0 {width} {height}" preserveAspectRatio="none" '
        'role="img" aria-label="messages by queue">'
        f"{''.join(columns)}"
        f'<line class="mean" x1="0" x2="{width}" y1="{level:.1f}" y2="{level:.1f}"/></svg>'
    )


def shortened(text: str, length: int = 36) -> str:
    """A long name without its middle."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


class _Frame:
    """Maps times and values to positions in the picture."""

    def __init__(self, times_ms: Sequence[int], top: float, height: int) -> None:
        self.first_ms = times_ms[0] if times_ms else 0
        self.span_ms = max(times_ms[-1] - self.first_ms, 1) if times_ms else 1
        self.top = top or 1.0
        self.bottom_y = height - _BOTTOM
        self.middle = (_TOP + self.bottom_y) / 2
        self.inner_width = _WIDTH - _LEFT - _RIGHT

    def x(self, time_ms: int) -> float:
        return _LEFT + (time_ms - self.first_ms) / self.span_ms * self.inner_width

    def y(self, value: float) -> float:
        return self.bottom_y - value / self.top * (self.bottom_y - _TOP)


def _horizontal_grid(frame: _Frame, ticks: Sequence[float], y_format: Format) -> list[str]:
    return [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{frame.y(tick):.1f}" '
        f'y2="{frame.y(tick):.1f}"/><text class="axis" x="{_LEFT - 6}" y="{frame.y(tick) + 4:.1f}" '
        f'text-anchor="end">{escape(y_format(tick))}</text>'
        for tick in ticks
    ]


def _time_axis(frame: _Frame, times_ms: Sequence[int]) -> list[str]:
    if not times_ms:
        return []
    every = max(1, math.ceil(len(times_ms) / 8))
    return [
        f'<line class="tick" x1="{frame.x(time):.1f}" x2="{frame.x(time):.1f}" '
        f'y1="{frame.bottom_y}" y2="{frame.bottom_y + 4}"/><text class="axis" '
        f'x="{frame.x(time):.1f}" y="{frame.bottom_y + 17}" text-anchor="middle">'
        f"{time_text(time, frame.span_ms)}</text>"
        for time in times_ms[::every]
    ]


def _line(frame: _Frame, one: Series, number: int) -> str:
    mark = "rest" if one.is_rest else f"{number % SERIES_COLOURS}"
    return "".join(_stretch(frame, points, mark) for points in _stretches(frame, one))


def _stretches(frame: _Frame, one: Series) -> list[list[tuple[float, float]]]:
    """The points of a line; a moment without a value divides it."""
    stretches: list[list[tuple[float, float]]] = [[]]
    step = frame.span_ms / max(len(one.values) - 1, 1)
    for number, value in enumerate(one.values):
        if value is None:
            stretches.append([])
            continue
        x = _LEFT + number * step / frame.span_ms * frame.inner_width
        stretches[-1].append((x, frame.y(value)))
    return [points for points in stretches if points]


def _stretch(frame: _Frame, points: list[tuple[float, float]], mark: str) -> str:
    if len(points) == 1:
        ((x, y),) = points
        return f'<circle class="c{mark}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="l{mark}" points="{path}"/>'


def _hover_bands(
    frame: _Frame, times_ms: Sequence[int], series: Sequence[Series], value_format: Format
) -> list[str]:
    band = frame.inner_width / max(len(times_ms) - 1, 1)
    bands = []
    for number, time in enumerate(times_ms):
        moment = datetime.fromtimestamp(time / 1000, UTC)
        said = [f"{moment:%Y-%m-%d %H:%M:%S} UTC"]
        for one in series:
            value = one.values[number]
            said.append(f"{one.name}: {'–' if value is None else value_format(value)}")
        bands.append(
            f'<rect class="hover" x="{frame.x(time) - band / 2:.1f}" y="{_TOP}" '
            f'width="{band:.1f}" height="{frame.bottom_y - _TOP}">'
            f"<title>{escape(chr(10).join(said))}</title></rect>"
        )
    return bands


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    items = []
    for number, one in enumerate(series):
        mark = "rest" if one.is_rest else f"{number % SERIES_COLOURS}"
        items.append(
            f'<span><svg class="key" viewBox="0 0 10 10"><rect class="c{mark}" width="10" '
            f'height="10" rx="2"/></svg>{escape(one.name)}</span>'
        )
    return f'<p class="legend">{"".join(items)}</p>'
