"""The peers suite: our broker beside Apache's, Redis, NATS, RabbitMQ and Kafka.

Every server is started here, on loopback, as its own project recommends for one machine. The groups
are spread over the ``peers_*`` modules; with ``FULL=1`` in the environment all cells are measured.
A peer that cannot be had is named with its error, and its rows are left out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from bench import peers_kinds, peers_others, peers_read, peers_scale, peers_send
from bench.client_peers import Absent
from bench.harness import BenchError, Row
from bench.peers_others import absent_peers
from bench.plots import Ratio, plot_bars, plot_ratios
from bench.report import Result

Measure = Callable[[str, Path], list[Row]]

_MODULES: tuple[ModuleType, ...] = (
    peers_others,
    peers_send,
    peers_read,
    peers_kinds,
    peers_scale,
)
# The only rows that can be measured without Apache's servers and client.
_WITHOUT_APACHE = peers_others
_SENDS = (
    "Three fifths of a send are the system's: writing to the log, waking the peer, reading; Python "
    "has a fifth (decision 22)"
)
_PULLS = (
    "Half of a pull is the system's, waking the peer and copying 38 KB, which both brokers pay; "
    "Python has a quarter (decision 26)"
)
_PUSH = (
    "The push consumer has fewer than two pulls in a read, so each bears more of the wake-up, the "
    f"read and the write than a bare one. {_PULLS}"
)
_TAIL = (
    "At such a rate a read holds one or two messages. Most of what is left is sending them, and "
    "half of that the system's: reading, writing, waking the peer, which both brokers pay. "
    "Consumers are woken once a millisecond; fewer system calls for a message would be next "
    "(decision 35)"
)
# By row: the cause found for a missed target.
CAUSES = {
    "C load 1x64, 1 KB, beside redis": _SENDS,
    "broker CPU, 64 threads, 1 KB": _SENDS,
    "broker CPU, Apache's benchmark, 64 threads, 1 KB": (
        "Its client starts anew in each round and sends slowly, so that a read holds few sends and "
        f"each bears more of it. {_SENDS}"
    ),
    "consume 1 KB from a backlog, bare pulls": _PULLS,
    "consume 1 KB from a short backlog, just written, bare pulls": _PULLS,
    "consume 1 KB from a backlog, Java push consumer": _PUSH,
    "consume 1 KB from a short backlog, just written, Java push consumer": _PUSH,
    "send and consume 1 KB at the end of queues, Java push consumer": _TAIL,
}
_PERCENTILE = re.compile(r"\bp(50|99|99\.9)\b(?!\.)")


def groups() -> list[str]:
    return [name for module in _MODULES for name in _groups_of(module)]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    module = next(module for module in _MODULES if group in _groups_of(module))
    absent = _told_absent_peers()
    if "apache" in absent and module is not _WITHOUT_APACHE:
        return _left_out(group, f"Apache's servers are {absent['apache']}")
    try:
        return _groups_of(module)[group](size, folder)
    except Absent as reason:
        return _left_out(group, str(reason))


def _left_out(group: str, reason: str) -> list[Row]:
    print(f"    {group} is left out: {reason}", file=sys.stderr, flush=True)
    return []


def _groups_of(module: ModuleType) -> dict[str, Measure]:
    """A module's groups; with ``EXTRA_GROUPS`` in a run of all groups."""
    found: dict[str, Measure] = dict(module.GROUPS)
    if os.environ.get("FULL") == "1":
        found |= getattr(module, "EXTRA_GROUPS", {})
    return found


@cache
def _told_absent_peers() -> dict[str, str]:
    """The peers that cannot be had; said once."""
    absent = absent_peers()
    for peer, reason in absent.items():
        print(f"    {peer} is {reason}", file=sys.stderr, flush=True)
    return absent


# Pictures.


def draw(result: Result, folder: Path) -> list[Path]:
    """Every ratio with its target, the cost of a message on each server, and its lateness."""
    found = [
        _draw_ratios(result, folder / "peers-ratios.svg"),
        _draw_cpu(result, folder / "peers-cpu.svg"),
        _draw_latencies(result, folder / "peers-latency.svg"),
    ]
    return [path for path in found if path is not None]


def _draw_ratios(result: Result, path: Path) -> Path:
    ratios = [
        Ratio(f"{row.name} [{row.unit}]", row.ratio, _bound(row), row.passed)
        for row in result.rows
        if row.ratio is not None
    ]
    if not ratios:
        raise BenchError("no row has a reference: nothing to draw")
    plot_ratios(path, "Ours beside each peer", ratios, caption=result.where)
    return path


def _bound(row: Row) -> float | None:
    return row.limit.bound if row.limit is not None and row.limit.on == "ratio" else None


def _draw_cpu(result: Result, path: Path) -> Path | None:
    """One bar per server and shape; ours has one more beside the servers that are never idle."""
    rows = [row for row in result.rows if row.name.startswith("C load ") and "1 KB" in row.name]
    if not rows:
        return None
    title = "Server CPU per message of 1 KB, C load"
    plot_bars(path, title, "µs CPU/message", _beside(rows, _shape), caption=result.where)
    return path


def _draw_latencies(result: Result, path: Path) -> Path | None:
    rows = [row for row in result.rows if _PERCENTILE.search(row.name)]
    if not rows:
        return None
    title = "From send to handler, at half of Apache's largest rate; calm: an eighth"
    plot_bars(path, title, rows[0].unit, _beside(rows, _percentile), caption=result.where)
    return path


def _beside(rows: Sequence[Row], word: Callable[[Row], str]) -> dict[str, float]:
    """``ours, WORD`` and ``reference, WORD`` of each row, those of one word together."""
    figures: dict[str, float] = {}
    for row in sorted(rows, key=word):
        figures.setdefault(_ours(row, word(row)), row.ours.best)
        if row.reference is not None:
            figures[f"{row.reference_name}, {word(row)}"] = row.reference.best
    return figures


def _ours(row: Row, word: str) -> str:
    """Contrail was measured twice: a load that shares a core with a JVM is slower."""
    is_beside_machines = row.name.endswith(peers_others.BESIDE_MACHINES)
    return f"ours, {word}, beside the JVMs" if is_beside_machines else f"ours, {word}"


def _shape(row: Row) -> str:
    return row.name.removeprefix("C load ").split(",")[0]


def _percentile(row: Row) -> str:
    found = _PERCENTILE.search(row.name)
    assert found is not None, "only rows of a percentile are asked"
    return found[0] + (peers_read.CALM if row.name.endswith(peers_read.CALM) else "")
