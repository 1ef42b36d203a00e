"""Rates of the last minute."""

from __future__ import annotations

from contrail.client.state.consume_figures import TopicFigures


def test_rates_are_of_the_last_minute_and_totals_of_all_time() -> None:
    figures = TopicFigures()
    for second in range(0, 200, 5):
        figures.remember(second * 1_000)
        figures.counts.ok_count += 50
        figures.counts.handling_ms += 100
        figures.counts.failed_count += 1
    report = figures.report(200_000)
    assert 9.5 < report["consumeOKTPS"] < 10.5
    assert report["consumeFailedMsgs"] == 40
    assert 1.5 < report["consumeRT"] < 2.5


def test_an_idle_consumer_has_no_rates() -> None:
    report = TopicFigures().report(1_000)
    assert set(report.values()) == {0}
