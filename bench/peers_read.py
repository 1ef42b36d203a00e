"""Peers suite, what reads cost: consuming a short and a large backlog, filters, latency.

Bare pulls, by the C load, show the broker alone; Apache's Java push consumer shows what an
application gets. Both brokers hold the same messages, stored by the same frames, which are still in
the page cache on both sides. The short backlog was written last; the large one is larger than the
heap that Apache's broker may use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from pathlib import Path
from typing import NamedTuple

from bench.harness import (
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    cpu_us_per_record,
    figure,
    in_rounds,
    records_per_second,
)
from bench.peers_bare import (
    BATCH_MESSAGES,
    KIND_COUNT,
    KIND_PROPERTY,
    PULL_MESSAGES,
    QUEUE_COUNT,
    bare,
    walking_pull,
)
from bench.peers_java import JavaLoad, loads_on
from bench.peers_servers import (
    HEAP,
    NAMES,
    Name,
    RocketServer,
    apache_peer,
    both,
    make_topics,
    others,
    standing_still,
)
from bench.wire_frames import BODY_BYTES
from bench.wire_parts import Shape, describe_cores, loaded, settle

Servers = Mapping[Name, RocketServer]
Taken = Mapping[str, list[Figures]]

SMALL_HEAP = "1g"

_SHORT_TOPIC = "PeersShortBacklog"
_BACKLOG_TOPIC = "PeersBacklog"
_LATENCY_TOPIC = "PeersLatency"
# For sends without consumers.
_PROBED_TOPIC = "PeersProbed"
# With this many messages every kind is equally often in every queue.
_WHOLE_COUNT = KIND_COUNT * BATCH_MESSAGES * QUEUE_COUNT
_CONSUME_TIMEOUT_S = 150
_CPU_S_MIN = 1e-6
CALM = ", calm"
_QUICK_LEAVES_OUT = "backlog, Java push consumer, filters, latency, kinds of message"
_GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many messages are read, and how often; how long latency is watched."""

    round_count: int
    java_round_count: int
    short_count: int
    backlog_count: int
    filtered_count: int
    filter_round_count: int
    probe: Mapping[str, float]
    """How Apache's largest rate is found: as in its sends, once the JVM has compiled them."""
    latency_s: float
    latency_warm_up_s: float
    latency_round_count: int
    is_warmed_up: bool = False
    """Whether all sides run once before the rounds, uncounted."""


SIZES = {
    "full": Sizes(
        round_count=3,
        java_round_count=2,
        short_count=16 * _WHOLE_COUNT,
        backlog_count=86 * _WHOLE_COUNT,
        filtered_count=32 * _WHOLE_COUNT,
        filter_round_count=3,
        probe={"warm_up_s": 25, "seconds": 4},
        latency_s=5,
        latency_warm_up_s=3,
        latency_round_count=2,
        is_warmed_up=True,
    ),
    "quick": Sizes(
        round_count=2,
        java_round_count=0,
        short_count=2 * _WHOLE_COUNT,
        backlog_count=0,
        filtered_count=0,
        filter_round_count=0,
        probe={},
        latency_s=0,
        latency_warm_up_s=0,
        latency_round_count=0,
    ),
    "tiny": Sizes(
        round_count=1,
        java_round_count=1,
        short_count=_WHOLE_COUNT,
        backlog_count=_WHOLE_COUNT,
        filtered_count=_WHOLE_COUNT,
        filter_round_count=1,
        probe={"warm_up_count": 100, "count": 100},
        latency_s=0.5,
        latency_warm_up_s=0.3,
        latency_round_count=1,
    ),
}


class Stock(NamedTuple):
    """Messages that both brokers hold in a topic, and the words for them."""

    words: str
    topic: str
    record_count: int


# Consuming.


def consume_rows(size: str, folder: Path) -> list[Row]:
    """Messages for each second of the broker's CPU, from a short and from a large backlog."""
    sizes = SIZES[size]
    backlog = Stock("a backlog", _BACKLOG_TOPIC, sizes.backlog_count)
    short = Stock("a short backlog, just written", _SHORT_TOPIC, sizes.short_count)
    stocks = [stock for stock in (backlog, short) if stock.record_count]
    with both(folder, flush="ASYNC_FLUSH", heap=SMALL_HEAP) as servers:
        for stock in stocks:
            _fill(servers, stock)
        details = _stock_details(servers)
        sides = _pull_sides(servers, stocks, folder)
        pulled = in_rounds(sizes.round_count, sides, warm_up=_warm_up(sizes, sides))
        consumed = _consumed(sizes, folder, servers, stocks)
    if not consumed:
        return [
            _consume_row(stock, "bare pulls", pulled, {**details, "left_out": _QUICK_LEAVES_OUT})
            for stock in stocks
        ]
    return [
        _consume_row(stock, how, taken, details)
        for how, taken in {"bare pulls": pulled, "Java push consumer": consumed}.items()
        for stock in stocks
    ]


def _warm_up(
    sizes: Sizes, sides: Mapping[str, Callable[[], Figures]]
) -> Iterable[Callable[[], Figures]]:
    return sides.values() if sizes.is_warmed_up else ()


def _fill(servers: Servers, stock: Stock) -> None:
    for server in servers.values():
        make_topics(server, [stock.topic], queues=QUEUE_COUNT)
        bare("filled", server, topic=stock.topic, count=stock.record_count)
        settle(server.under_load)


def _stock_details(servers: Servers) -> dict[str, object]:
    stored = {name: f"{server.disk_bytes() / _GB:.2f} GB" for name, server in servers.items()}
    return {"stored": stored["contrail"], "stored_by_apache": stored["apache"]}


def _pull_sides(
    servers: Servers, stocks: list[Stock], folder: Path
) -> dict[str, Callable[[], Figures]]:
    return {
        _side(stock, server): partial(_pulled, server, others(server, servers), stock, folder)
        for stock in stocks
        for server in servers.values()
    }


def _pulled(
    server: RocketServer, beside: list[RocketServer], stock: Stock, folder: Path
) -> Figures:
    """Every queue from the first message to the last, by the C load.

    As official clients do it: one connection for all queues, one pull in flight for each.
    """
    frame_file = folder / f"{stock.topic}.pull"
    frame_file.write_bytes(walking_pull(stock.topic))
    # A fifth as many again, which is not counted, comes first.
    shape = Shape(connections=1, depth=QUEUE_COUNT, count=stock.record_count // PULL_MESSAGES)
    walk = (PULL_MESSAGES, stock.record_count // QUEUE_COUNT)
    with standing_still(beside):
        figures = loaded(server.under_load, frame_file, shape, walk=walk)
    message_count = figures["record_count"] * PULL_MESSAGES
    if figures["answer_bytes"] < message_count * BODY_BYTES:
        raise BenchError(f"{server.name} gave fewer than {PULL_MESSAGES} messages for a pull")
    return {**figures, "record_count": message_count}


def _side(stock: Stock, server: RocketServer) -> str:
    return f"{stock.topic} {server.name}"


def _walked(
    server: RocketServer,
    beside: list[RocketServer],
    stock: Stock,
    share: int,
    **subscription: str,
) -> Figures:
    """One of ``share`` messages of the topic, pulled from the first to the last."""
    end = stock.record_count // QUEUE_COUNT
    with standing_still(beside):
        figures = bare("walked", server, topic=stock.topic, first=0, end=end, **subscription)
    if figures["record_count"] != stock.record_count // share:
        raise BenchError(
            f"{server.name} delivered {figures['record_count']:,} messages of {stock.topic}; "
            f"{stock.record_count // share:,} match"
        )
    return figures


def _consumed(sizes: Sizes, folder: Path, servers: Servers, stocks: list[Stock]) -> Taken:
    """The same by the Java client, each time by a group that is new."""
    if sizes.java_round_count == 0:
        return {}
    group_numbers = numbers()
    with loads_on(servers, folder) as loads:
        sides = {
            _side(stock, servers[name]): partial(_pushed, loads[name], stock, group_numbers)
            for stock in stocks
            for name in NAMES
        }
        return in_rounds(sizes.java_round_count, sides, warm_up=_warm_up(sizes, sides))


def _pushed(load: JavaLoad, stock: Stock, group_numbers: Iterator[int]) -> Figures:
    group = f"readers_{next(group_numbers)}"
    where = {"topic": stock.topic, "group": group, "count": stock.record_count}
    return load.run({"command": "consume", **where, "timeout_s": _CONSUME_TIMEOUT_S})


def _consume_row(stock: Stock, how: str, taken: Taken, details: Mapping[str, object]) -> Row:
    ours, theirs = taken[f"{stock.topic} contrail"], taken[f"{stock.topic} apache"]
    return Row(
        name=f"consume 1 KB from {stock.words}, {how}",
        unit="messages/broker CPU s",
        ours=_records_per_cpu_second(ours),
        reference=_records_per_cpu_second(theirs),
        reference_name=apache_name(SMALL_HEAP),
        limit=Limit(">=", 2),
        details={
            "messages": f"{stock.record_count:,}",
            "rate": _rate(ours),
            "apache_rate": _rate(theirs),
            **details,
            "cores": describe_cores(),
        },
    )


def _records_per_cpu_second(taken: list[Figures]) -> Samples:
    rates = (run["record_count"] / max(run["cpu_s"], _CPU_S_MIN) for run in taken)
    return Samples(tuple(rates), higher_is_better=True)


def _rate(taken: list[Figures]) -> str:
    return f"{records_per_second(taken).best:,.0f}/s"


def apache_name(heap: str) -> str:
    return f"Apache {apache_peer().version}, -Xmx{heap}"


# Filters.

_FILTERS = {
    "tag": {"subscription": "Tag7", "expression_type": "TAG"},
    "SQL92": {"subscription": f"{KIND_PROPERTY} = 7", "expression_type": "SQL92"},
}


def filter_rows(size: str, folder: Path) -> list[Row]:
    """One message of a hundred is wanted: their rate, and the cost of the others."""
    sizes = SIZES[size]
    if sizes.filter_round_count == 0:
        return []
    stock = Stock("a backlog", _BACKLOG_TOPIC, sizes.filtered_count)
    with both(folder, flush="ASYNC_FLUSH") as servers:
        _fill(servers, stock)
        sides = {
            f"{kind} {server.name}": partial(
                _walked, server, others(server, servers), stock, KIND_COUNT, **subscription
            )
            for kind, subscription in _FILTERS.items()
            for server in servers.values()
        }
        taken = in_rounds(sizes.filter_round_count, sides, warm_up=_warm_up(sizes, sides))
    return [row for kind in _FILTERS for row in _rows_of_filter(kind, stock, taken)]


def _rows_of_filter(kind: str, stock: Stock, taken: Taken) -> list[Row]:
    ours, theirs = taken[f"{kind} contrail"], taken[f"{kind} apache"]
    name = f"{kind} filter, 1 of {KIND_COUNT}"
    details = {"filter": _FILTERS[kind]["subscription"], "backlog": f"{stock.record_count:,}"}
    return [
        Row(
            name=f"{name}, delivered",
            unit="messages/s",
            ours=records_per_second(ours),
            reference=records_per_second(theirs),
            reference_name=apache_name(HEAP),
            details=details,
        ),
        Row(
            name=f"{name}, scanned",
            unit="µs broker CPU/message",
            ours=_cpu_us_per_scanned(ours),
            reference=_cpu_us_per_scanned(theirs),
            reference_name=apache_name(HEAP),
            details={**details, "cores": describe_cores()},
        ),
    ]


def _cpu_us_per_scanned(taken: list[Figures]) -> Samples:
    return Samples(tuple(run["cpu_s"] / run["scanned_count"] * 1e6 for run in taken))


# Latency.


class Pace(NamedTuple):
    """A fixed rate, as a share of the largest rate that Apache's broker stores."""

    share: float
    words: str
    # The addition to the names of rows; nothing at the rate that targets are about.
    mark: str


_PACES = (Pace(1 / 2, "half", ""), Pace(1 / 8, "an eighth", CALM))
_ALONE = " alone"
# With a consumer and, at the rate that targets are about, without one.
_WITH_AND_WITHOUT: Mapping[str, Mapping[str, str]] = {
    "": {"topic": _LATENCY_TOPIC},
    _ALONE: {"topic": _PROBED_TOPIC, "alone": "true"},
}


def latency_rows(size: str, folder: Path) -> list[Row]:
    """From the intended send to the handler, both brokers at the same fixed rate.

    And what that costs them: the only way to consume at the very end is while messages arrive.
    """
    sizes = SIZES[size]
    if sizes.latency_round_count == 0:
        return []
    with both(folder, flush="ASYNC_FLUSH") as servers, loads_on(servers, folder) as loads:
        for server in servers.values():
            make_topics(server, [_LATENCY_TOPIC, _PROBED_TOPIC])
        # Both clients send for as long before, so that neither is the warmer one.
        rate_max = {name: _rate_max(load, sizes) for name, load in loads.items()}["apache"]
        sides: dict[str, Callable[[], Figures]] = {
            f"{name}{pace.mark}{mark}": partial(_paced, load, rate_max * pace.share, sizes, **more)
            for pace in _PACES
            for mark, more in _WITH_AND_WITHOUT.items()
            if not (mark and pace.mark)
            for name, load in loads.items()
        }
        # A client that still compiles cannot keep up with such a rate, and its broker would be
        # charged for a backlog.
        warm_up = [sides[name] for name in NAMES] if sizes.is_warmed_up else []
        taken = in_rounds(sizes.latency_round_count, sides, warm_up=warm_up)
    return [
        row
        for pace in _PACES
        for row in (
            *(_latency_row(at, pace, taken, rate_max) for at in ("p50", "p99", "p999")),
            _tail_row(pace, taken, rate_max),
        )
    ]


def _rate_max(load: JavaLoad, sizes: Sizes) -> float:
    """The rate of the Java client when 64 threads send as fast as they can."""
    what = {"mode": "sync", "threads": 64, "bytes": 1024, "topic": _PROBED_TOPIC}
    figures = load.run({"command": "send", **what, **sizes.probe})
    rate: float = figures["record_count"] / figures["wall_s"]
    return rate


def _paced(load: JavaLoad, rate: float, sizes: Sizes, **more: str) -> Figures:
    what = {"group": "latency_readers", "bytes": 1024, "rate": round(rate)}
    times = {"warm_up_s": sizes.latency_warm_up_s, "seconds": sizes.latency_s}
    return load.run({"command": "latency", **what, **times, **more})


def _latency_row(at: str, pace: Pace, taken: Taken, rate_max: float) -> Row:
    ours, theirs = taken[f"contrail{pace.mark}"], taken[f"apache{pace.mark}"]
    return Row(
        name=f"end-to-end latency of 1 KB, {'p99.9' if at == 'p999' else at}{pace.mark}",
        unit="ms",
        ours=figure(ours, f"{at}_ms"),
        reference=figure(theirs, f"{at}_ms"),
        reference_name=apache_name(HEAP),
        limit=Limit("<=", 1) if at == "p99" and not pace.mark else None,
        details=_pace_details(pace, taken, rate_max),
    )


def _tail_row(pace: Pace, taken: Taken, rate_max: float) -> Row:
    ours, theirs = taken[f"contrail{pace.mark}"], taken[f"apache{pace.mark}"]
    return Row(
        name=f"send and consume 1 KB at the end of queues, Java push consumer{pace.mark}",
        unit="messages/broker CPU s",
        ours=_records_per_cpu_second(ours),
        reference=_records_per_cpu_second(theirs),
        reference_name=apache_name(HEAP),
        limit=None if pace.mark else Limit(">=", 2),
        details=_pace_details(pace, taken, rate_max) | ({} if pace.mark else _alone(taken)),
    )


def _alone(taken: Taken) -> dict[str, object]:
    """The part of the figures that sends alone take."""
    return {
        "us_broker_cpu_of_sends_alone": _us(taken[f"contrail{_ALONE}"]),
        "apache_us_broker_cpu_of_sends_alone": _us(taken[f"apache{_ALONE}"]),
    }


def _us(taken: list[Figures]) -> float:
    return round(cpu_us_per_record(taken).best, 1)


def _pace_details(pace: Pace, taken: Taken, rate_max: float) -> dict[str, object]:
    ours, theirs = taken[f"contrail{pace.mark}"], taken[f"apache{pace.mark}"]
    return {
        "rate": f"{rate_max * pace.share:,.0f}/s, {pace.words} of Apache's {rate_max:,.0f}/s",
        "us_broker_cpu": _us(ours),
        "apache_us_broker_cpu": _us(theirs),
        "broker_core_share": broker_share(ours),
        "apache_broker_core_share": broker_share(theirs),
        "client_cpu_share": client_share(ours),
        "client_cpu_share_on_apache": client_share(theirs),
        "cores": describe_cores(),
    }


def broker_share(taken: list[Figures]) -> float:
    share: float = max(run["cpu_s"] / run["wall_s"] for run in taken)
    return round(share, 2)


def client_share(taken: list[Figures]) -> float:
    share: float = max(run["client_cpu_s"] / run["wall_s"] for run in taken)
    return round(share, 2)


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {
    "consume": consume_rows,
    "filters": filter_rows,
    "latency": latency_rows,
}
