"""The client suite: our Python client beside other clients, on the same broker in the same rounds.

Servers keep to one core and clients to another, all sides alike. Every run is a process of its
own, and its clock runs once it has warmed up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from pathlib import Path

from bench.client_parts import DECODERS, PULL_COUNT, QUEUE_COUNT
from bench.client_peers import (
    CPP_VERSION,
    GRPC_VERSION,
    absent_peers,
    cpp_python,
    cpp_sent,
    grpc_consumed,
    grpc_python,
    grpc_sent,
    is_here,
    java_client,
    java_sent,
    proxy_peer,
)
from bench.client_proxy import ApacheEnds, apache_with_proxy
from bench.harness import (
    Figures,
    Limit,
    Row,
    cpu_us_per_record,
    in_child,
    in_rounds,
    records_per_second,
)
from bench.wire_frames import TOPIC as _TOPIC
from bench.wire_parts import describe_cores, pinned

Sides = dict[str, Callable[[], Figures]]
Taken = dict[str, list[Figures]]

TASKS = 64
_ON_APACHE = "1 KB, Apache's broker"
_BACKLOG_TOPIC = "BenchBacklog"
# Whole segments of a real broker, and a send is never turned away on a busy machine.
_BROKER_PROPERTIES = {
    "mappedFileSizeCommitLog": str(256 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 300_000),
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many messages each run of a group moves, and how often."""

    round_count: int
    sends: int
    concurrent_sends: int
    backlog: int
    proxy_round_count: int
    proxy_warm_up: int
    proxy_sends: int
    grpc_sends: int
    proxy_backlog: int
    grpc_backlog: int


SIZES = {
    "full": Sizes(
        round_count=9,
        sends=10_000,
        concurrent_sends=64_000,
        backlog=160_000,
        proxy_round_count=7,
        proxy_warm_up=10_000,
        proxy_sends=10_000,
        grpc_sends=3_000,
        proxy_backlog=80_000,
        grpc_backlog=5_000,
    ),
    "quick": Sizes(
        round_count=1,
        sends=1_000,
        concurrent_sends=6_400,
        backlog=16_000,
        proxy_round_count=1,
        proxy_warm_up=200,
        proxy_sends=1_000,
        grpc_sends=200,
        proxy_backlog=8_000,
        grpc_backlog=200,
    ),
    "tiny": Sizes(
        round_count=1,
        sends=50,
        concurrent_sends=128,
        backlog=512,
        proxy_round_count=1,
        proxy_warm_up=20,
        proxy_sends=50,
        grpc_sends=20,
        proxy_backlog=512,
        grpc_backlog=64,
    ),
}


def groups() -> list[str]:
    return list(_GROUPS)


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    return _GROUPS[group](SIZES[size], folder)


# Sending to our broker.


def _send_rows(sizes: Sizes, folder: Path) -> list[Row]:
    with _our_cluster(folder / "cluster") as (namesrv, broker):
        _child("topic_made", namesrv=namesrv, topic=_TOPIC)
        sides = _send_sides(sizes, folder, namesrv)
        sides["bare"] = _bare_sends(sizes.sends, broker)
        taken = in_rounds(sizes.round_count, sides)
    rows = [_sync_row(taken), _concurrent_row(taken)]
    if "java" in taken:
        rows.append(
            _row(
                "sync send, beside the Java client",
                taken,
                "sync",
                "java",
                f"rocketmq-client {java_client().version}",
            )
        )
    return rows


def _bare_sends(count: int, broker: str) -> Callable[[], Figures]:
    return partial(_child, "sent_barely", broker=broker, warm_up_count=count // 5, count=count)


def _send_sides(sizes: Sizes, folder: Path, namesrv: str) -> Sides:
    where: dict[str, str] = {"namesrv": namesrv, "topic": _TOPIC}
    warm, sends = sizes.sends // 5, sizes.sends
    sides: Sides = {
        "sync": partial(_child, "sent_in_turn", **where, warm_up_count=warm, count=sends),
        "concurrent": partial(
            _child,
            "sent_concurrently",
            **where,
            warm_up_count=sizes.concurrent_sends // 5,
            count=sizes.concurrent_sends,
            tasks=TASKS,
        ),
    }
    if is_here(cpp_python):
        home = folder / "cpp"
        sides["cpp"] = partial(cpp_sent, home, **where, warm_up_count=warm, count=sends)
    if is_here(java_client):
        home = folder / "java"
        # Its compiler needs more than a fifth to have seen enough.
        sides["java"] = partial(java_sent, home, **where, warm_up_count=sends, count=sends)
    return sides


def _sync_row(taken: Taken) -> Row:
    name = f"rocketmq {CPP_VERSION}, C++"
    limit = Limit(">=", 0.7) if "cpp" in taken else None
    rates = {"bare_rate": _rate(taken["bare"])}
    if "java" in taken:
        rates["java_rate"] = _rate(taken["java"])
    return _row("sync send 1 KB", taken, "sync", "cpp", name, limit, **rates, **absent_peers())


def _concurrent_row(taken: Taken) -> Row:
    name = f"{TASKS} concurrent sends of 1 KB"
    return _row(name, taken, "concurrent", "sync", "sync send", Limit(">=", 3))


# Consuming from our broker.


def _consume_rows(sizes: Sizes, folder: Path) -> list[Row]:
    backlog = sizes.backlog // QUEUE_COUNT * QUEUE_COUNT
    with _our_cluster(folder / "cluster") as (namesrv, broker):
        _child("topic_made", namesrv=namesrv, topic=_BACKLOG_TOPIC, backlog=backlog)
        group_numbers = numbers()
        where = {"broker": broker, "topic": _BACKLOG_TOPIC, "count": backlog}
        sides: Sides = {
            "consume": lambda: _consumed_by_a_new_group(namesrv, group_numbers, backlog)
        }
        for decoder in DECODERS:
            sides[decoder] = partial(_child, "pulled_barely", **where, decoder=decoder)
        taken = in_rounds(sizes.round_count, sides)
    name = f"consume a backlog of {backlog:,} x 1 KB"
    bare = f"bare pulls of {PULL_COUNT}, decoded"
    return [
        _row(name, taken, "consume", "messages", f"{bare} by the client", Limit(">=", 0.5)),
        _row(f"{name}, plainly", taken, "consume", "records", f"{bare} plainly"),
    ]


def _consumed_by_a_new_group(namesrv: str, group_numbers: Iterator[int], backlog: int) -> Figures:
    group = f"ours-{next(group_numbers)}"
    return _child("consumed", namesrv=namesrv, topic=_BACKLOG_TOPIC, group=group, count=backlog)


# Apache's broker with its proxy.


def _proxy_rows(sizes: Sizes, folder: Path) -> list[Row]:
    if not (is_here(proxy_peer) and is_here(grpc_python)):
        # The row of the sync send says why.
        return []
    backlog = sizes.proxy_backlog // QUEUE_COUNT * QUEUE_COUNT
    with apache_with_proxy(folder / "apache") as ends:
        _child("topic_made", namesrv=ends.namesrv, topic=_TOPIC)
        _child("topic_made", namesrv=ends.namesrv, topic=_BACKLOG_TOPIC, backlog=backlog)
        _warm_up(sizes.proxy_warm_up, folder, ends)
        taken = in_rounds(
            sizes.proxy_round_count,
            {
                **_proxy_send_sides(sizes, folder, ends),
                **_proxy_consume_sides(sizes, folder, ends, backlog),
            },
        )
    peer = f"rocketmq-python-client {GRPC_VERSION}, gRPC"
    limit = Limit(">=", 5)
    bare = _rate(taken["bare"])
    return [
        _row(f"sync send {_ON_APACHE}", taken, "send", "grpc send", peer, limit, bare_rate=bare),
        _row(f"asyncio send, one task, {_ON_APACHE}", taken, "aio send", "grpc send", peer),
        _row(f"consume {_ON_APACHE}", taken, "consume", "grpc consume", peer, limit),
    ]


def _warm_up(count: int, folder: Path, ends: ApacheEnds) -> None:
    """As many sends on both ways in: a JVM that has compiled one of them only would flatter it."""
    counts = {"warm_up_count": 0, "count": count}
    _child("sent_in_turn", namesrv=ends.namesrv, topic=_TOPIC, **counts)
    grpc_sent(folder / "grpc", proxy=ends.proxy, topic=_TOPIC, **counts)


def _proxy_send_sides(sizes: Sizes, folder: Path, ends: ApacheEnds) -> Sides:
    ours, theirs = sizes.proxy_sends, sizes.grpc_sends
    where = {"namesrv": ends.namesrv, "topic": _TOPIC}
    counts = {"warm_up_count": ours // 5, "count": ours}
    return {
        "send": partial(_child, "sent_in_turn", **where, **counts),
        "aio send": partial(_child, "sent_concurrently", **where, **counts, tasks=1),
        "bare": _bare_sends(ours, ends.broker),
        "grpc send": partial(
            grpc_sent,
            folder / "grpc",
            proxy=ends.proxy,
            topic=_TOPIC,
            warm_up_count=theirs // 5,
            count=theirs,
        ),
    }


def _proxy_consume_sides(sizes: Sizes, folder: Path, ends: ApacheEnds, backlog: int) -> Sides:
    """Theirs stops after a part of the backlog: all of it would take minutes."""
    group_numbers = numbers()

    def theirs() -> Figures:
        group = f"theirs-{next(group_numbers)}"
        _child("group_made", namesrv=ends.namesrv, group=group)
        return grpc_consumed(
            folder / "grpc",
            proxy=ends.proxy,
            topic=_BACKLOG_TOPIC,
            group=group,
            count=min(sizes.grpc_backlog, backlog),
        )

    return {
        "consume": lambda: _consumed_by_a_new_group(ends.namesrv, group_numbers, backlog),
        "grpc consume": theirs,
    }


_GROUPS: dict[str, Callable[[Sizes, Path], list[Row]]] = {
    "send": _send_rows,
    "consume": _consume_rows,
    "proxy": _proxy_rows,
}


@contextmanager
def _our_cluster(folder: Path) -> Iterator[tuple[str, str]]:
    """A NameServer and a broker of Contrail in children; their addresses."""
    from contrail.testing.cluster import LocalCluster

    cluster = LocalCluster(folder=folder, in_children=True, properties=_BROKER_PROPERTIES)
    try:
        with pinned("server"):
            cluster.start()
        yield cluster.namesrv, cluster.brokers[0].address
    finally:
        cluster.stop()


def _child(part: str, **arguments: object) -> Figures:
    with pinned("load"):
        return in_child(f"bench.client_parts:{part}", **arguments)


def _row(
    name: str,
    taken: Taken,
    ours: str,
    theirs: str,
    reference_name: str,
    limit: Limit | None = None,
    **details: object,
) -> Row:
    """Rates of one side beside those of another, which may be absent."""
    from contrail.runtime.event_loop import choose_event_loop

    reference = taken.get(theirs)
    own_details: dict[str, object] = {
        "us_cpu_per_message": round(cpu_us_per_record(taken[ours]).best, 1),
        "loop": choose_event_loop().name,
        "cores": describe_cores(),
    }
    if reference is not None:
        own_details["their_us_cpu"] = round(cpu_us_per_record(reference).best, 1)
    return Row(
        name=name,
        unit="messages/s",
        ours=records_per_second(taken[ours]),
        reference=records_per_second(reference) if reference is not None else None,
        reference_name=reference_name if reference is not None else "",
        limit=limit,
        details={**own_details, **details},
    )


def _rate(taken: list[Figures]) -> str:
    return f"{records_per_second(taken).best:,.0f}/s"
