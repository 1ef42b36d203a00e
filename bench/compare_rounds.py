"""Paired rounds: both trees' brokers under the same load in turn, the CPU of each pair as a ratio.

Brokers are started anew for every block of pairs, because where a process happens to lie in memory
shifts all of its rounds alike. The broker that is not measured is stopped meanwhile.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import statistics
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.compare_cases import Case
from bench.compare_trees import Tree
from bench.harness import Figures
from bench.wire_parts import Server, Shape, ask, loaded, process_cpu_s, running_broker, settle

BLOCK_COUNT = 5
_QUIET_SHARE_MAX = 0.05
# A delay of level 1 is over after this, and its deliveries are settled.
_AFTERWARDS_S = 1.5


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of the pairs' ratios, and where it lies with a confidence of 95 %."""

    median: float
    low: float
    high: float
    count: int

    @property
    def is_worse(self) -> bool:
        """The whole interval lies above 1.00x and the median above 1.03x."""
        return self.low > 1.0 and self.median > 1.03

    def __str__(self) -> str:
        return f"{self.median:.3f}x [{self.low:.3f}, {self.high:.3f}]"


def interval_of(ratios: list[float]) -> Interval:
    """By order statistics: no shape of the distribution is assumed."""
    ordered = sorted(ratios)
    count = len(ordered)
    spread = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - spread))
    high = min(count - 1, math.ceil(count / 2 + spread))
    return Interval(statistics.median(ordered), ordered[low], ordered[high], count)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The figures of one case's pairs: CPU in µs for a message, by tree, and their ratio."""

    base_us: float
    head_us: float
    ratio: Interval


def measured_rounds(
    case: Case, trees: tuple[Tree, Tree], folder: Path, *, pair_count: int, scale: float
) -> Rounds:
    """Run ``pair_count`` pairs of rounds; ``scale`` is how much of a full round each one is."""
    taken: dict[str, list[float]] = {tree.name: [] for tree in trees}
    blocks = min(BLOCK_COUNT, pair_count)
    for block in range(blocks):
        count = pair_count // blocks + (block < pair_count % blocks)
        _measure_block(case, trees, folder / f"block-{block}", count, scale, taken)
    base, head = taken["base"], taken["head"]
    ratios = [ours / theirs for ours, theirs in zip(head, base, strict=True)]
    return Rounds(statistics.median(base), statistics.median(head), interval_of(ratios))


def _measure_block(
    case: Case,
    trees: tuple[Tree, Tree],
    folder: Path,
    pair_count: int,
    scale: float,
    taken: dict[str, list[float]],
) -> None:
    with ExitStack() as running:
        # The tree whose broker starts first alternates with the blocks, as the rounds do.
        servers = {
            tree.name: running.enter_context(_prepared(case, tree, folder / tree.name))
            for tree in (trees if len(taken["base"]) % 2 == 0 else trees[::-1])
        }
        for number in range(-1, pair_count):
            names = list(servers) if number % 2 == 0 else list(reversed(servers))
            for name in names:
                us = _one_round(case, servers[name], folder, scale)
                if number >= 0:
                    taken[name].append(us)
    shutil.rmtree(folder)


@contextmanager
def _prepared(case: Case, tree: Tree, folder: Path) -> Iterator[Server]:
    with running_broker(folder, case.flush, source=tree.source) as server:
        for frame, count in case.before:
            for _ in range(count):
                ask(server, frame)
        settle(server)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            yield server
        finally:
            os.kill(server.pid, signal.SIGCONT)


def _one_round(case: Case, server: Server, folder: Path, scale: float) -> float:
    os.kill(server.pid, signal.SIGCONT)
    try:
        settle(server, _QUIET_SHARE_MAX)
        before_s = process_cpu_s(server.pid)
        figures = _loaded(case, server, folder, scale)
        if not case.counts_afterwards:
            return float(figures["cpu_s"] / figures["record_count"]) / case.records * 1e6
        _wait(_AFTERWARDS_S)
        settle(server, _QUIET_SHARE_MAX)
        cpu_s = process_cpu_s(server.pid) - before_s
        return cpu_s / (int(figures["answered"]) * case.records) * 1e6
    finally:
        os.kill(server.pid, signal.SIGSTOP)


def _loaded(case: Case, server: Server, folder: Path, scale: float) -> Figures:
    frame_file = folder / "first.frame"
    frame_file.write_bytes(case.frame)
    second_file = None
    if case.second:
        second_file = folder / "second.frame"
        second_file.write_bytes(case.second)
    count = max(case.connections * case.depth * 2, int(case.round_count * scale))
    shape = Shape(connections=case.connections, depth=case.depth, count=count)
    return loaded(server, frame_file, shape, case.protocol, second_file=second_file)


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)
