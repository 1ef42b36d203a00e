"""The rows of the growth suite as curves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.harness import Row
from bench.plots import plot_curves

Curves = dict[str, list[tuple[float, float]]]

_NAME = re.compile(r"(?P<cell>.+) vs (?P<dimension>\w+): (?P<point>[0-9,]+)")
_CPU, _TIME, _P99 = "CPU", "restart", "p99"
_Y_LABELS = {
    _CPU: "broker CPU per request, µs",
    _TIME: "from start to the first send, ms",
    _P99: "p99 of the answer, µs",
}
_SUFFIXES = {_CPU: "", _TIME: "-restart", _P99: "-p99"}


class Spot(NamedTuple):
    """A point of a curve: of which picture, of which line, and where."""

    dimension: str
    kind: str
    cell: str
    x: float
    y: float


def draw_curves(
    rows: Iterable[Row], labels: Mapping[str, str], folder: Path, *, caption: str
) -> list[Path]:
    """One picture of costs and one of answers for each dimension, and one of restarts."""
    drawn = []
    for (dimension, kind), series in gathered(rows).items():
        path = folder / f"growth-{dimension}{_SUFFIXES[kind]}.svg"
        title = f"{_Y_LABELS[kind]}, by {labels[dimension]}"
        plot_curves(path, title, labels[dimension], _Y_LABELS[kind], series, caption=caption)
        drawn.append(path)
    return drawn


def gathered(rows: Iterable[Row]) -> dict[tuple[str, str], Curves]:
    """The curves of each picture; the smallest point of a line is its rows' reference."""
    pictures: dict[tuple[str, str], Curves] = {}
    for row in rows:
        for spot in _spots(row):
            curves = pictures.setdefault((spot.dimension, spot.kind), {})
            point = (spot.x, spot.y)
            line = curves.setdefault(spot.cell, [])
            if point not in line:
                line.append(point)
    return pictures


def _spots(row: Row) -> Iterator[Spot]:
    named = _NAME.fullmatch(row.name)
    if named is None:
        # A delay beside other work is no point of a curve.
        return
    assert row.reference is not None, row.name
    at = [float(str(row.details["smallest"])), float(named["point"].replace(",", ""))]
    is_time = row.unit.startswith("ms")
    heights = {_TIME if is_time else _CPU: [row.reference.best, row.ours.best]}
    if not is_time:
        answers = [row.details["p99_us_at_smallest"], row.details["p99_us"]]
        heights[_P99] = [float(str(answer)) for answer in answers]
    for kind, values in heights.items():
        for x, y in zip(at, values, strict=True):
            yield Spot(named["dimension"], kind, named["cell"], x, y)
