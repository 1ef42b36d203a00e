"""The text that Prometheus reads, checked with Prometheus's own parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from contrail.errors import ConfigError
from contrail.protocol.prometheus_text import (
    Labels,
    Metric,
    MetricKind,
    head_lines,
    histogram_lines,
    parse_labels,
    sample_line,
)

LAG = Metric("lag", MetricKind.GAUGE, "How far \\ behind\nin words", ("topic", "group"))
TIMES = Metric("took_ms", MetricKind.HISTOGRAM, "How long", ("code",), (1, 10))


def test_a_gauge_is_two_lines_of_head_and_one_per_sample() -> None:
    labels = Labels({"cluster": "c"}).text(LAG.labels, ("orders", "billing"))
    assert head_lines(LAG) + sample_line(LAG.name, labels, 7) == (
        "# HELP lag How far \\\\ behind\\nin words\n"
        "# TYPE lag gauge\n"
        'lag{cluster="c",topic="orders",group="billing"} 7\n'
    )


def test_a_sample_without_any_label_has_no_braces() -> None:
    assert sample_line("up", Labels({}).text((), ()), 1) == "up 1\n"


def test_a_sample_may_have_only_the_labels_of_all_families() -> None:
    assert sample_line("up", Labels({"a": "b"}).text((), ()), 1) == 'up{a="b"} 1\n'


def test_a_histogram_counts_all_values_up_to_each_bound() -> None:
    assert histogram_lines(TIMES, 'code="send"', [3, 2, 1], 42.5) == (
        'took_ms_bucket{code="send",le="1.0"} 3\n'
        'took_ms_bucket{code="send",le="10.0"} 5\n'
        'took_ms_bucket{code="send",le="+Inf"} 6\n'
        'took_ms_sum{code="send"} 42.5\n'
        'took_ms_count{code="send"} 6\n'
    )


def test_a_histogram_needs_one_count_more_than_bounds() -> None:
    with pytest.raises(ValueError, match="shorter"):
        histogram_lines(TIMES, "", [1, 2], 1)


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20),
    st.text(max_size=20),
    st.integers(-(1 << 53), 1 << 53),
)
def test_any_label_text_is_read_back(topic: str, group: str, value: int) -> None:
    text = sample_line(LAG.name, Labels({}).text(LAG.labels, (topic, group)), value)
    # The parser reads lines as Python does, and Python knows more line ends than the format.
    if len((head_lines(LAG) + text).splitlines()) > 3 or "\r" in group:
        return
    (family,) = text_string_to_metric_families(head_lines(LAG) + text)
    (sample,) = family.samples
    assert sample.labels == {"topic": topic, "group": group}
    assert sample.value == value


def test_labels_of_all_samples_are_pairs() -> None:
    assert parse_labels("metricsLabel", " zone:a , rack:7,") == {"zone": "a", "rack": "7"}
    assert parse_labels("metricsLabel", "") == {}


@pytest.mark.parametrize("text", ["zone", "zone:a:b", ":a", "1zone:a", "__zone:a", "zo-ne:a"])
def test_a_label_that_is_no_pair_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(ConfigError, match="metricsLabel"):
        parse_labels("metricsLabel", text)
