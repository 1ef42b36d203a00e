"""Plots: round ticks, points at their positions, and short texts."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.pipeline.jobs.report_plots import (
    Bar,
    Series,
    bar_plot,
    bytes_text,
    column_plot,
    count_text,
    duration_text,
    line_plot,
    nice_ticks,
    short_count,
    shortened,
    time_text,
)

_TIMES = [1_700_000_000_000 + number * 60_000 for number in range(5)]


@given(st.floats(min_value=1e-9, max_value=1e15))
def test_ticks_are_even_begin_at_zero_and_cover_the_top(top: float) -> None:
    ticks = nice_ticks(top)
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    assert ticks[0] == 0 and ticks[-1] >= top * (1 - 1e-9)
    assert 2 <= len(ticks) <= 6
    assert steps == pytest.approx([steps[0]] * len(steps))


def test_ticks_of_bytes_are_round_in_units_of_bytes() -> None:
    assert [bytes_text(tick) for tick in nice_ticks(1.9 * 2**20, radix=1024)] == [
        "0 B",
        "512 KiB",
        "1 MiB",
        "1.5 MiB",
        "2 MiB",
    ]


def test_a_plot_without_values_still_has_an_axis() -> None:
    assert nice_ticks(0) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (count_text(1234567), "1,234,567"),
        (count_text(0.1234), "0.12"),
        (short_count(1500), "1.5k"),
        (short_count(2.5e9), "2.5G"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(3), "3 B"),
        (duration_text(7), "7 ms"),
        (duration_text(90_000), "1.5 min"),
        (time_text(0, 60_000), "00:00:00"),
        (time_text(0, 3_600_000), "00:00"),
        (time_text(0, 90_000_000), "01 Jan 00:00"),
        (time_text(0, 864_000_000), "01 Jan"),
        (shortened("a" * 50, 11), "aaaaa…aaaaa"),
    ],
)
def test_values_have_short_texts(said: str, text: str) -> None:
    assert said == text


def _svg(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html[html.index('<svg class="plot"') :])


def _points(svg: ElementTree.Element) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]  # type: ignore[misc]
        for line in svg.iter("polyline")
    ]


def test_a_line_runs_over_the_whole_width_and_the_highest_value_is_highest() -> None:
    svg = _svg(line_plot(_TIMES, [Series("a", [0, 1, 4, 2, 0])], y_label="rate"))
    (points,) = _points(svg)
    assert points[0][0] == 84 and points[-1][0] == 852
    assert min(points, key=lambda point: point[1]) == points[2]
    assert points[0][1] == points[-1][1] == 200


def test_a_moment_without_a_value_divides_the_line_and_a_single_one_is_a_dot() -> None:
    svg = _svg(line_plot(_TIMES, [Series("a", [1, 2, None, 3, None])], y_label="rate"))
    assert [len(points) for points in _points(svg)] == [2]
    assert len(list(svg.iter("circle"))) == 1


def test_every_moment_shows_its_values() -> None:
    series = [Series("a", [1] * 5), Series("<b>", [None] * 5)]
    html = line_plot(_TIMES, series, y_label="rate")
    titles = [title.text or "" for title in _svg(html).iter("title")]
    assert len(titles) == 5
    assert titles[0].split("\n") == ["2023-11-14 22:13:20 UTC", "a: 1", "<b>: –"]
    assert "&lt;b&gt;</span>" in html


def test_one_moment_is_enough_for_a_plot() -> None:
    svg = _svg(line_plot(_TIMES[:1], [Series("a", [3])], y_label="rate"))
    assert len(list(svg.iter("circle"))) == 1


def test_bars_are_as_long_as_their_values_and_inside() -> None:
    svg = _svg(bar_plot([Bar("a", 10), Bar("b", 5), Bar("c", 0)]))
    widths = [float(bar.attrib["width"]) for bar in svg.iter("rect")]
    assert widths[0] == 2 * widths[1] and widths[2] == 0
    assert 250 + widths[0] + 90 <= 880


def test_columns_stand_on_the_ground_with_their_mean() -> None:
    html = column_plot([("q0", 8), ("q1", 0), ("q2", 4)])
    svg = ElementTree.fromstring(html)
    heights = [float(bar.attrib["height"]) for bar in svg.iter("rect")]
    assert heights == [60.0, 0.0, 30.0]
    assert re.search(r'class="mean".* y1="34.0"', html)
