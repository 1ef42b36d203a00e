"""Pictures of published results, as SVG: the same figures give the same bytes.

matplotlib draws them, the extra ``bench``; nothing else here needs it. A suite whose
module has ``draw(result, folder)`` gets its pictures when it is published.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import BenchError

Points = list[tuple[float, float]]

INSTALL_COMMAND = "pip install 'contrail-mq[bench]'"
# Text stays text and ids have a fixed salt: small files that change with their figures only.
_SETTINGS = {"svg.hashsalt": "contrail", "svg.fonttype": "none", "font.size": 9}
_WIDTH_INCHES = 8.0
_INCHES_PER_BAR = 0.28
_OURS, _THEIRS, _MISSED = "#1f6f8b", "#b0b7bd", "#c0392b"


class Ratio(NamedTuple):
    """A bar of Contrail / reference, with its target, if any."""

    name: str
    ratio: float
    bound: float | None = None
    passed: bool | None = None


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


def plot_curves(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    series: dict[str, list[tuple[float, float]]],
    *,
    log_x: bool = True,
    caption: str = "",
) -> None:
    """One line per series over a common axis. A logarithmic axis shows 0 at its left end."""
    with _drawing(path, title, caption, height_inches=4.0) as axes:
        for name, points in series.items():
            columns = list(zip(*sorted(points), strict=True)) or [(), ()]
            axes.plot(columns[0], columns[1], marker="o", markersize=4, label=name)
        if log_x:
            axes.set_xscale("symlog", linthresh=_least_above_zero(series))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.set_ylim(bottom=0)
        axes.grid(True, color="#e5e5e5", linewidth=0.6)
        axes.legend(frameon=False)


def plot_ratios(path: Path, title: str, ratios: Sequence[Ratio], *, caption: str = "") -> None:
    """Ours / reference on a logarithmic axis; a mark is where the target lies."""
    names = [ratio.name for ratio in ratios]
    colours = [_MISSED if ratio.passed is False else _OURS for ratio in ratios]
    with _drawing(path, title, caption, _height(len(ratios))) as axes:
        # Bars grow from 1, where both are equal, to either side.
        widths = [ratio.ratio - 1 for ratio in ratios]
        axes.barh(range(len(ratios)), widths, left=1, color=colours, height=0.6)
        for place, ratio in enumerate(ratios):
            axes.annotate(f" {ratio.ratio:.2g}x", (max(ratio.ratio, 1), place), va="center")
            if ratio.bound is not None:
                axes.plot([ratio.bound] * 2, [place - 0.4, place + 0.4], color="black")
        axes.axvline(1, color="black", linewidth=0.6)
        axes.set_xscale("log", subs=())
        axes.xaxis.set_major_locator(import_module("matplotlib.ticker").LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}x")
        axes.set_xlabel("ours / reference; a black mark is the target, red is a miss")
        _name_places(axes, names)


def plot_bars(
    path: Path, title: str, x_label: str, figures: Mapping[str, float], *, caption: str = ""
) -> None:
    """One bar per name, best first as given."""
    names = list(figures)
    colours = [_OURS if name.startswith("ours") else _THEIRS for name in names]
    with _drawing(path, title, caption, _height(len(names))) as axes:
        axes.barh(range(len(names)), list(figures.values()), color=colours, height=0.6)
        for place, value in enumerate(figures.values()):
            axes.annotate(f" {value:.3g}", (value, place), va="center")
        axes.set_xlabel(x_label)
        _name_places(axes, names)


def _least_above_zero(series: Mapping[str, Points]) -> float:
    return min((x for points in series.values() for x, _ in points if x > 0), default=1.0)


def _height(bar_count: int) -> float:
    return 1.4 + _INCHES_PER_BAR * max(bar_count, 2)


def _name_places(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), labels=names)
    axes.invert_yaxis()
    axes.margins(x=0.12)


@contextmanager
def _drawing(path: Path, title: str, caption: str, height_inches: float) -> Iterator[Any]:
    """Axes to draw on; written to ``path`` afterwards, without the date."""
    if not can_plot():
        raise BenchError(f"plots need matplotlib: {INSTALL_COMMAND}")
    # By name: whether its types are known must not depend on whether it is installed.
    figures, matplotlib = import_module("matplotlib.figure"), import_module("matplotlib")
    with matplotlib.rc_context(_SETTINGS):
        figure = figures.Figure(figsize=(_WIDTH_INCHES, height_inches), layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=10)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        yield axes
        if caption:
            figure.supxlabel(caption, fontsize=6, color="#666666")
        figure.savefig(path, format="svg", metadata={"Date": None})
