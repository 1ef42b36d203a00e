"""Peers suite, what reads cost: consuming a short and a large backlog, filters, latency.

Bare pulls, by the C load, show the broker alone; Apache's Java push consumer shows what an
application gets. Both brokers hold the same messages, stored by the same frames, which are still in
the page cache on both sides. The short backlog was written last; the large one is larger than the
heap that Apache's broker may use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from bench.peers_java import JavaLoad
from bench.peers_servers import HEAP, NAMES, Name, RocketServer, apache_peer, both, make_topics
from bench.wire_frames import BODY_BYTES
from bench.wire_parts import Shape, describe_cores, loaded, settle

Servers = Mapping[Name, RocketServer]
Taken = Mapping[str, list[Figures]]

SMALL_HEAP = "1g"

_SHORT_TOPIC = "PeersShortBacklog"
_BACKLOG_TOPIC = "PeersBacklog"
_LATENCY_TOPIC = "PeersLatency"
# So many messages have every kind equally often in every queue.
_WHOLE_COUNT = KIND_COUNT * BATCH_MESSAGES * QUEUE_COUNT
_CONSUME_TIMEOUT_S = 150
_CPU_S_MIN = 1e-6
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
    """How Apache's largest rate is found: as in its sends, once everything is compiled."""
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
        probe={"warm_up_s": 10, "seconds": 3},
        latency_s=8,
        latency_warm_up_s=4,
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
        _side(stock, server): partial(_pulled, server, stock, folder)
        for stock in stocks
        for server in servers.values()
    }


def _pulled(server: RocketServer, stock: Stock, folder: Path) -> Figures:
    """Every queue from the first message to the last, by the C load.

    As official clients do it: one connection for all queues, one pull in flight for each.
    """
    frame_file = folder / f"{stock.topic}.pull"
    frame_file.write_bytes(walking_pull(stock.topic))
    # A fifth as many again, which is not counted, comes first.
    shape = Shape(connections=1, depth=QUEUE_COUNT, count=stock.record_count // PULL_MESSAGES)
    walk = (PULL_MESSAGES, stock.record_count // QUEUE_COUNT)
    figures = loaded(server.under_load, frame_file, shape, walk=walk)
    message_count = figures["record_count"] * PULL_MESSAGES
    if figures["answer_bytes"] < message_count * BODY_BYTES:
        raise BenchError(f"{server.name} gave fewer than {PULL_MESSAGES} messages for a pull")
    return {**figures, "record_count": message_count}


def _side(stock: Stock, server: RocketServer) -> str:
    return f"{stock.topic} {server.name}"


def _walked(server: RocketServer, stock: Stock, share: int = 1, **subscription: str) -> Figures:
    """Every message of the topic, or one of ``share``, pulled from the first to the last."""
    end = stock.record_count // QUEUE_COUNT
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


@contextmanager
def loads_on(servers: Servers, folder: Path) -> Iterator[dict[Name, JavaLoad]]:
    """A Java client for each broker; both live as long as the rounds, so that both are warm."""
    with ExitStack() as running:
        yield {
            name: running.enter_context(
                JavaLoad(
                    servers[name],
                    folder,
                    beside=[server for other, server in servers.items() if other != name],
                )
            )
            for name in NAMES
        }


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
    """One message of a hundred is wanted: how fast they come, and what the others cost."""
    sizes = SIZES[size]
    if sizes.filter_round_count == 0:
        return []
    stock = Stock("a backlog", _BACKLOG_TOPIC, sizes.filtered_count)
    with both(folder, flush="ASYNC_FLUSH") as servers:
        _fill(servers, stock)
        sides = {
            f"{kind} {server.name}": partial(_walked, server, stock, KIND_COUNT, **subscription)
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


def latency_rows(size: str, folder: Path) -> list[Row]:
    """From the intended send to the handler, both brokers at half of Apache's maximum rate."""
    sizes = SIZES[size]
    if sizes.latency_round_count == 0:
        return []
    with both(folder, flush="ASYNC_FLUSH") as servers, loads_on(servers, folder) as loads:
        for server in servers.values():
            make_topics(server, [_LATENCY_TOPIC])
        # Both clients send for as long before, so that neither is the warmer one.
        rate_max = {name: _rate_max(load, sizes) for name, load in loads.items()}["apache"]
        sides: dict[str, Callable[[], Figures]] = {
            name: partial(_paced, load, rate_max / 2, sizes) for name, load in loads.items()
        }
        taken = in_rounds(sizes.latency_round_count, sides)
    limits = {"p50": None, "p99": Limit("<=", 1), "p999": None}
    return [_latency_row(at, limit, taken, rate_max) for at, limit in limits.items()]


def _rate_max(load: JavaLoad, sizes: Sizes) -> float:
    """What the Java client gets stored when 64 threads send as fast as they can."""
    what = {"mode": "sync", "threads": 64, "bytes": 1024, "topic": _LATENCY_TOPIC}
    figures = load.run({"command": "send", **what, **sizes.probe})
    rate: float = figures["record_count"] / figures["wall_s"]
    return rate


def _paced(load: JavaLoad, rate: float, sizes: Sizes) -> Figures:
    what = {"topic": _LATENCY_TOPIC, "group": "latency_readers", "bytes": 1024, "rate": round(rate)}
    times = {"warm_up_s": sizes.latency_warm_up_s, "seconds": sizes.latency_s}
    return load.run({"command": "latency", **what, **times})


def _latency_row(at: str, limit: Limit | None, taken: Taken, rate_max: float) -> Row:
    ours, theirs = taken["contrail"], taken["apache"]
    return Row(
        name=f"end-to-end latency of 1 KB, {'p99.9' if at == 'p999' else at}",
        unit="ms",
        ours=figure(ours, f"{at}_ms"),
        reference=figure(theirs, f"{at}_ms"),
        reference_name=apache_name(HEAP),
        limit=limit,
        details={
            "rate": f"{rate_max / 2:,.0f}/s, half of Apache's {rate_max:,.0f}/s",
            "us_broker_cpu": round(cpu_us_per_record(ours).best, 1),
            "apache_us_broker_cpu": round(cpu_us_per_record(theirs).best, 1),
            "client_cpu_share": client_share(ours),
            "client_cpu_share_on_apache": client_share(theirs),
            "cores": describe_cores(),
        },
    )


def client_share(taken: list[Figures]) -> float:
    share: float = max(run["client_cpu_s"] / run["wall_s"] for run in taken)
    return round(share, 2)


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {
    "consume": consume_rows,
    "filters": filter_rows,
    "latency": latency_rows,
}
