"""A report as one self-contained HTML page: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from contrail.pipeline.jobs.report_figures import Buckets, Figures, Row
from contrail.pipeline.jobs.report_plots import (
    SERIES_COLOURS,
    Bar,
    Series,
    bar_plot,
    bytes_text,
    column_plot,
    count_text,
    duration_text,
    line_plot,
    short_count,
    shortened,
)
from contrail.pipeline.jobs.report_style import STYLE

_ROWS_MAX = 50
_BARS_MAX = 15
_SKEWED_MAX = 12
_COLUMNS_MAX = 256
_UNEVEN = 1.5
_CARD_COUNT_MAX = 10_000_000

# A column: its heading, the text of a row's cell, and whether it is a right-aligned number.
Column = tuple[str, Callable[[Row], str], bool]


def page(figures: Figures) -> str:
    """The whole page."""
    sections = [
        _traffic(figures),
        _latency(figures),
        _waiting(figures),
        _lag(figures),
        _retries(figures),
        _skew(figures),
        _hot_keys(figures),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Traffic report</title><style>{STYLE}</style></head><body><main>"
        f"{_head(figures.facts)}{''.join(sections)}{_foot(figures.facts)}</main></body></html>\n"
    )


def _head(facts: Row) -> str:
    span_ms = facts["end_ms"] - facts["start_ms"]
    rate = facts["messages"] * 1000 / max(span_ms, 1000)
    cards = [
        ("messages", _card_count(facts["messages"])),
        ("a second", count_text(rate)),
        ("stored", bytes_text(facts["bytes"])),
        ("topics", count_text(facts["topics"])),
        ("lag", "–" if facts["lag"] is None else _card_count(facts["lag"])),
        ("retries", count_text(facts["retries"])),
        ("dead letters", count_text(facts["dead_letters"])),
    ]
    shown = "".join(
        f'<div class="card"><b>{value}</b><span>{name}</span></div>' for name, value in cards
    )
    sources = ", ".join(escape(source) for source in facts["sources"])
    return (
        f"<h1>Traffic report</h1><p class=note>{_moment(facts['start_ms'])} to "
        f"{_moment(facts['end_ms'])} UTC ({duration_text(span_ms)}), from {sources}</p>"
        f'<div class="cards">{shown}</div>'
    )


def _card_count(value: int) -> str:
    return count_text(value) if value < _CARD_COUNT_MAX else short_count(value)


def _foot(facts: Row) -> str:
    return (
        f"<footer>Made at {_moment(facts['made_ms'])} UTC by Contrail. Times are those at which "
        "brokers stored messages. Percentiles and hot keys are approximate. The tables are beside "
        "this page as CSV, and all of them in report.json.</footer>"
    )


# Sections.


def _traffic(figures: Figures) -> str:
    if not figures.topics:
        return _section("Traffic", "<p class=none>No messages were stored in this time.</p>")
    width = duration_text(figures.facts["bucket_ms"])
    rates = _rates(figures, "messages_per_second")
    volumes = _rates(figures, "bytes_per_second")
    times = _times(figures)
    table = _table(
        figures.topics,
        [
            ("topic", lambda row: escape(row["topic"]), False),
            ("messages", lambda row: count_text(row["messages"]), True),
            ("a second", lambda row: count_text(row["messages_per_second"]), True),
            ("stored", lambda row: bytes_text(row["bytes"]), True),
            ("stored a second", lambda row: bytes_text(row["bytes_per_second"]), True),
            ("a message", lambda row: bytes_text(row["average_bytes"]), True),
        ],
    )
    return _section(
        "Traffic",
        f"<h3>Messages a second, mean of {width}</h3>",
        line_plot(times, rates, y_label="messages a second"),
        f"<h3>Stored bytes a second, mean of {width}</h3>",
        line_plot(
            times,
            volumes,
            y_label="bytes a second",
            y_format=bytes_text,
            value_format=bytes_text,
            radix=1024,
        ),
        table,
    )


def _latency(figures: Figures) -> str:
    if not figures.latency:
        return ""
    by_time = {row["time_ms"]: row for row in figures.latency_timeline}
    times = _times(figures)
    lines = [
        Series(name, [by_time.get(time, {}).get(column) for time in times])
        for name, column in (
            ("half within", "p50_ms"),
            ("90 % within", "p90_ms"),
            ("99 % within", "p99_ms"),
        )
    ]
    return _section(
        "Latency: born to stored",
        "<p class=note>From when the producer made a message until the broker stored it, by both "
        "clocks; delayed messages count with their delay.</p>",
        line_plot(
            times,
            lines,
            y_label="latency",
            y_format=duration_text,
            value_format=duration_text,
        ),
        _table(figures.latency, [_name("topic"), _count("messages"), *_PERCENTILES]),
    )


def _waiting(figures: Figures) -> str:
    if not figures.waiting and not figures.handling:
        why = (
            "No traces were found for these messages: producers and consumers write them when "
            "message trace is on."
            if figures.facts["traced"]
            else "Traces were not read."
        )
        return _section("Latency: stored to consumed", f"<p class=none>{why}</p>")
    handled = [
        _name("group"),
        _count("handled"),
        ("failed", lambda row: _share(row["failed"], row["handled"]), True),
        *_PERCENTILES,
    ]
    return _section(
        "Latency: stored to consumed",
        "<p class=note>From the store until a handler of the group first began with the message, "
        "of messages that were traced.</p>",
        _table(
            figures.waiting, [_name("topic"), _name("group"), _count("messages"), *_PERCENTILES]
        ),
        "<h3>Time in handlers, by group</h3>",
        _table(figures.handling, handled),
    )


def _lag(figures: Figures) -> str:
    if figures.facts["lag"] is None:
        return _section(
            "Lag", "<p class=none>Only a live cluster knows how far its groups are.</p>"
        )
    behind = [row for row in figures.lag if row["lag"]]
    if not behind:
        return _section("Lag", "<p class=none>No group is behind.</p>")
    bars = [Bar(f"{row['group']} · {row['topic']}", row["lag"]) for row in behind[:_BARS_MAX]]
    return _section(
        "Lag",
        "<p class=note>When the report was made. <i>Behind by</i> is the age of what a group "
        "consumed last on its slowest queue.</p>",
        bar_plot(bars, label="lag by group and topic"),
        _table(
            behind,
            [
                _name("group"),
                _name("topic"),
                _count("lag"),
                ("queues behind", lambda row: count_text(row["queues_behind"]), True),
                ("in flight", lambda row: count_text(row["in_flight"]), True),
                ("behind by", lambda row: _duration(row["behind_ms"]), True),
            ],
        ),
    )


def _retries(figures: Figures) -> str:
    if not figures.retries:
        return _section(
            "Retries and dead letters", "<p class=none>None were stored in this time.</p>"
        )
    bars: list[Bar] = []
    for row in figures.retries[: _BARS_MAX // 2]:
        name = f"{row['group']} · {row['topic'] or 'unknown topic'}"
        bars.append(Bar(f"{name}: retries", row["retries"], 2))
        bars.append(Bar(f"{name}: dead", row["dead_letters"], 5))
    return _section(
        "Retries and dead letters",
        bar_plot([bar for bar in bars if bar.value], label="retries and dead letters by group"),
        _table(
            figures.retries,
            [
                _name("group"),
                ("of topic", lambda row: escape(row["topic"]) or "unknown", False),
                _count("retries"),
                ("dead letters", lambda row: count_text(row["dead_letters"]), True),
            ],
        ),
    )


def _skew(figures: Figures) -> str:
    if not figures.skew:
        return ""
    by_topic: dict[str, list[tuple[str, float]]] = {}
    for row in figures.queues:
        by_topic.setdefault(row["topic"], []).append((row["queue"], row["messages"]))
    # Only the first of many queues are shown; the figures beside them count all.
    tiles = [
        f"<figure>{column_plot(by_topic[row['topic']][:_COLUMNS_MAX])}<figcaption>"
        f"{escape(shortened(row['topic']))}, {_queues(row)}{_uneven(row)}"
        "</figcaption></figure>"
        for row in figures.skew[:_SKEWED_MAX]
    ]
    return _section(
        "Skew across queues",
        "<p class=note>Messages by queue; the line is the mean. The most uneven topics first.</p>",
        f'<div class="tiles">{"".join(tiles)}</div>',
        _table(
            figures.skew,
            [
                _name("topic"),
                _count("queues"),
                ("fullest queue", lambda row: escape(row["fullest_queue"]), False),
                ("messages there", lambda row: count_text(row["fullest_messages"]), True),
                ("mean", lambda row: count_text(row["mean_messages"]), True),
                ("fullest to mean", lambda row: f"{row['fullest_to_mean']:.2f}", True),
            ],
        ),
    )


def _hot_keys(figures: Figures) -> str:
    if not figures.hot_keys:
        return _section("Hot keys", "<p class=none>No key came more than once.</p>")
    bars = [
        Bar(f"{row['key']} · {row['topic']}", row["messages"])
        for row in figures.hot_keys[:_BARS_MAX]
    ]
    return _section(
        "Hot keys",
        bar_plot(bars, label="messages by key"),
        _table(
            figures.hot_keys,
            [
                ("key", lambda row: f"<code>{escape(shortened(row['key'], 80))}</code>", False),
                _name("topic"),
                _count("messages"),
                ("of the topic", lambda row: f"{row['share']:.1%}", True),
            ],
        ),
    )


# Pieces.


def _section(title: str, *content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(content)}</section>"


def _table(rows: Sequence[Row], columns: Iterable[Column]) -> str:
    columns = list(columns)
    heads = "".join(
        f"<th{' class=number' if is_number else ''}>{escape(name)}</th>"
        for name, _, is_number in columns
    )
    lines = []
    for row in rows[:_ROWS_MAX]:
        cells = "".join(
            f"<td{' class=number' if is_number else ''}>{write(row)}</td>"
            for _, write, is_number in columns
        )
        lines.append(f"<tr>{cells}</tr>")
    left = len(rows) - _ROWS_MAX
    more = f"<p class=note>{left:,} more rows are in the CSV file.</p>" if left > 0 else ""
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _name(column: str) -> Column:
    return column, lambda row: escape(str(row[column] or "")), False


def _count(column: str) -> Column:
    return column, lambda row: count_text(row[column]), True


def _time(heading: str, column: str) -> Column:
    return heading, lambda row: _duration(row[column]), True


_PERCENTILES = (
    _time("half within", "p50_ms"),
    _time("90 %", "p90_ms"),
    _time("99 %", "p99_ms"),
    _time("99.9 %", "p99_9_ms"),
    _time("longest", "max_ms"),
)


def _rates(figures: Figures, column: str) -> list[Series]:
    """A line for each of the busiest topics, and one for the sum of the others."""
    times = _times(figures)
    place = {time: number for number, time in enumerate(times)}
    busiest = [row["topic"] for row in figures.topics[: SERIES_COLOURS - 1]]
    values: dict[str, list[float | None]] = {topic: [0.0] * len(times) for topic in busiest}
    rest: list[float | None] = [0.0] * len(times)
    for row in figures.timeline:
        line = values.get(row["topic"], rest)
        number = place[row["time_ms"]]
        line[number] = (line[number] or 0.0) + row[column]
    series = [Series(shortened(topic), values[topic]) for topic in busiest]
    left = len(figures.topics) - len(busiest)
    return [*series, Series(f"{left:,} others", rest, is_rest=True)] if left else series


def _times(figures: Figures) -> list[int]:
    facts = figures.facts
    return Buckets(facts["bucket_start_ms"], facts["bucket_ms"], facts["bucket_count"]).times_ms


def _duration(value_ms: Any) -> str:
    return "–" if value_ms is None else duration_text(value_ms)


def _share(part: int, whole: int) -> str:
    return f"{count_text(part)} ({part / whole:.1%})" if part else "0"


def _queues(row: Row) -> str:
    return "1 queue" if row["queues"] == 1 else f"{row['queues']:,} queues"


def _uneven(row: Row) -> str:
    ratio = row["fullest_to_mean"]
    return f' <b class="warn">{ratio:.1f} × the mean</b>' if ratio >= _UNEVEN else ""


def _moment(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
