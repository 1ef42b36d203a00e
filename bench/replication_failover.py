"""The group ``failover``: how long a group's clients wait when its leader is lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.client_peers import Absent
from bench.failover_groups import OurGroup, apache_group
from bench.failover_parts import TOPIC, EndlessSends, quantile, times_of
from bench.harness import BenchError, Limit, Row, Samples
from bench.peers_servers import apache_peer
from contrail.client.blocking.admin import Admin
from tests.chaos.group import ChaosGroup


@dataclass(frozen=True, slots=True)
class Counts:
    kills: int
    others: int
    restarts: int
    apache: int


COUNTS = {
    "full": Counts(kills=200, others=40, restarts=100, apache=20),
    "quick": Counts(kills=10, others=5, restarts=6, apache=3),
    "tiny": Counts(kills=1, others=1, restarts=1, apache=1),
}
_MODES = {"controller": "Apache's controller mode", "dledger": "Apache's DLedger"}
_THIRD = 1 / 3


def failover_rows(size: str, folder: Path) -> list[Row]:
    counts = COUNTS[size]
    with _our_group(folder / "contrail") as (group, sends):
        kill_ms, received_ms = times_of(group, sends, counts.kills)
        taken = {}
        for how in ("stop", "cut", "transfer"):
            group.how = how
            taken[how], _ = times_of(group, sends, counts.others)
        failed_before = len(sends.failed)
        restarted = _restart_in_turn(group, counts.restarts)
        failed = len(sends.failed) - failed_before
    rows = [
        _row("leader killed, next SEND_OK, p50", kill_ms, 0.5, 1_500),
        _row("leader killed, next SEND_OK, p99", kill_ms, 0.99, 3_000),
        _row("leader killed, consumer's first new message, p99", received_ms, 0.99, 4_000),
        _row("leader stopped, next SEND_OK, p99", taken["stop"], 0.99, 4_000),
        _row("leader cut off, next SEND_OK, p99", taken["cut"], 0.99, 4_000),
        _row("leadership handed over, next SEND_OK, p99", taken["transfer"], 0.99, 300),
        Row(
            name=f"failed sends during {restarted} rolling restarts",
            unit="sends",
            ours=Samples((float(failed),)),
            limit=Limit("<=", 0, on="figure"),
            details={"answered": len(sends.answered)},
        ),
    ]
    return rows


def apache_rows(size: str, folder: Path) -> list[Row]:
    """Kills of leaders, as many for each: ours, then Apache's two modes."""
    counts = COUNTS[size]
    with _our_group(folder / "contrail") as (group, sends):
        kill_ms, _ = times_of(group, sends, counts.apache)
    return [
        row
        for mode, name in _MODES.items()
        for row in _beside(mode, name, counts.apache, kill_ms, folder)
    ]


@contextmanager
def _our_group(folder: Path) -> Iterator[tuple[OurGroup, EndlessSends]]:
    folder.mkdir(parents=True)
    with ChaosGroup(folder) as chaos:
        group = OurGroup(chaos)
        chaos.make_topic(TOPIC)
        with EndlessSends(group.namesrv) as sends:
            yield group, sends


def _restart_in_turn(group: OurGroup, count: int) -> int:
    """Stop and start one member after the other, as an operator does; so many restarts."""
    cluster = group.group.cluster
    for number in range(count):
        broker = cluster.brokers[number % len(cluster.brokers)]
        broker.stop()
        cluster.wait_for_leader()
        broker.start()
        cluster.wait_for_voters()
    return count


def _row(name: str, times_ms: Sequence[float], share: float, bound_ms: int) -> Row:
    return Row(
        name=f"{name} of {len(times_ms)}",
        unit="ms",
        ours=Samples((quantile(times_ms, share),)),
        limit=Limit("<=", bound_ms, on="figure"),
        details={
            "p50_ms": round(quantile(times_ms, 0.5)),
            "p99_ms": round(quantile(times_ms, 0.99)),
            "max_ms": round(max(times_ms)),
        },
    )


def _beside(mode: str, name: str, count: int, ours_ms: Sequence[float], folder: Path) -> list[Row]:
    try:
        apache_peer()
        with apache_group(folder / mode, mode) as group:
            with Admin(group.namesrv, timeout_ms=60_000) as admin:
                admin.create_topic(TOPIC, queues=4)
            with EndlessSends(group.namesrv) as sends:
                theirs_ms, _ = times_of(group, sends, count)
    except (Absent, BenchError) as problem:
        print(f" {name} does not run here: {problem}", file=sys.stderr)
        return [
            Row(
                name=f"leader killed, next SEND_OK, p50, beside {name}",
                unit="ms",
                ours=Samples((quantile(ours_ms, 0.5),)),
                details={"absent": str(problem)},
            )
        ]
    return [
        Row(
            name=f"leader killed, next SEND_OK, p{round(100 * share)}, beside {name}",
            unit="ms",
            ours=Samples((quantile(ours_ms, share),)),
            reference=Samples((quantile(theirs_ms, share),)),
            reference_name=name,
            limit=Limit("<=", _THIRD),
            details={"kills": f"{count} each", "client": "ours for both"},
        )
        for share in (0.5, 0.99)
    ]
