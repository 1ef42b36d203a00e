"""A report's page fetches nothing, and all texts of messages are escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from contrail.pipeline.jobs.report_figures import Figures
from contrail.pipeline.jobs.report_page import page

_EVIL = "</svg><script>alert('x')</script>&\""
_TIMES = {"p50_ms": 2, "p90_ms": 15, "p99_ms": 1200, "p99_9_ms": 61_000, "max_ms": 7_200_000}


def _facts(**more: Any) -> dict[str, Any]:
    facts = {
        "sources": ["127.0.0.1:9876"],
        "start_ms": 1_700_000_000_000,
        "end_ms": 1_700_000_600_000,
        "made_ms": 1_700_000_700_000,
        "bucket_ms": 60_000,
        "bucket_start_ms": 1_699_999_980_000,
        "bucket_count": 11,
        "traced": True,
        "topics": 8,
        "messages": 1_234_567,
        "bytes": 5 << 30,
        "retries": 3,
        "dead_letters": 1,
        "lag": 42,
    }
    return {**facts, **more}


def _full() -> Figures:
    topics = [f"topic-{number}" for number in range(7)] + [_EVIL]
    traffic = {
        "messages": 600,
        "bytes": 6000,
        "messages_per_second": 10.0,
        "bytes_per_second": 100.0,
    }
    return Figures(
        facts=_facts(sources=[_EVIL]),
        topics=[{"topic": topic, **traffic, "average_bytes": 10.0} for topic in topics],
        timeline=[
            {"time_ms": 1_699_999_980_000 + number * 60_000, "topic": topic, **traffic}
            for number in range(11)
            for topic in topics
        ],
        latency=[{"topic": topic, "messages": 600, **_TIMES} for topic in topics],
        latency_timeline=[{"time_ms": 1_699_999_980_000, "messages": 6, **_TIMES}],
        lag=[_lag_row(_EVIL)],
        retries=[{"group": _EVIL, "topic": _EVIL, "retries": 3, "dead_letters": 1}],
        waiting=[{"topic": _EVIL, "group": _EVIL, "messages": 4, **_TIMES}],
        handling=[{"group": _EVIL, "handled": 4, "failed": 1, **_TIMES, "max_ms": None}],
        skew=[
            {
                "topic": _EVIL,
                "queues": 2,
                "fullest_queue": _EVIL,
                "fullest_messages": 9,
                "mean_messages": 5.0,
                "fullest_to_mean": 1.8,
                "deviation_to_mean": 0.8,
            }
        ],
        queues=[
            {"topic": _EVIL, "queue": _EVIL, "messages": 9, "bytes": 90},
            {"topic": _EVIL, "queue": "broker-a:1", "messages": 1, "bytes": 10},
        ],
        hot_keys=[{"topic": _EVIL, "key": _EVIL, "messages": 9, "share": 0.5}],
    )


def _lag_row(name: str) -> dict[str, Any]:
    return {
        "group": name,
        "topic": name,
        "lag": 42,
        "queues_behind": 2,
        "in_flight": 1,
        "behind_ms": 90_000,
    }


class _Reader(HTMLParser):
    """The tags of a page, whether they are closed in order, and its external references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "data")]
        if tag not in ("meta", "rect", "line", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("rect", "line", "circle", "polyline"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == ["p"] * len(reader.open)
    return reader


def test_names_from_messages_never_become_markup() -> None:
    reader = _read(page(_full()))
    assert "script" not in reader.tags
    assert reader.text.count(_EVIL) >= 8


def test_the_page_fetches_nothing() -> None:
    html = page(_full())
    assert _read(html).fetched == []
    assert "http:" not in html and "https:" not in html and "url(" not in html
    assert "default-src 'none'" in html


def test_the_figures_are_on_the_page() -> None:
    text = _read(page(_full())).text
    for said in ("1,234,567", "5 GiB", "2023-11-14 22:13:20", "1.2 s", "1.02 min", "2 h"):
        assert said in text
    assert "3 others" in text, "of eight topics five have lines of their own"
    assert "1.8 × the mean" in text
    assert "1 (25.0%)" in text


def test_an_empty_report_says_so_in_every_section() -> None:
    facts = _facts(messages=0, bytes=0, topics=0, retries=0, dead_letters=0, lag=None, traced=False)
    text = _read(page(Figures(facts=facts))).text
    for said in (
        "No messages were stored in this time.",
        "Traces were not read.",
        "Only a live cluster knows",
        "None were stored in this time.",
        "No key came more than once.",
    ):
        assert said in text


def test_long_tables_are_cut_and_say_so() -> None:
    lag = [_lag_row(f"group-{number}") for number in range(60)]
    assert "10 more rows are in the CSV file." in _read(page(Figures(_facts(), lag=lag))).text
