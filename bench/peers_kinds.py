"""Peers suite, kinds of message: ordered, delayed and transactional sends by Apache's Java client.

An ordered send chooses its queue by a key. A delayed one asks for level 1 and is delivered after a
second, most of them while others are still sent. A transactional one stores a half message, and
its commit stores the message; that counts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import Figures, Row, in_rounds
from bench.peers_java import JavaLoad, loads_on
from bench.peers_send import QUEUE_COUNT, THREADS, Cell, rows_of
from bench.peers_servers import NAMES, both, make_topics
from bench.wire_parts import describe_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How often and how much of each kind is sent; never where the group is left out."""

    round_count: int
    amount: Mapping[str, float]
    is_warmed_up: bool = False
    """Whether each kind is sent once before the rounds, uncounted."""


SIZES = {
    "full": Sizes(round_count=3, amount={"warm_up_s": 1.5, "seconds": 2.5}, is_warmed_up=True),
    "quick": Sizes(round_count=0, amount={}),
    "tiny": Sizes(round_count=1, amount={"warm_up_count": 64, "count": 128}),
}


def _cell(kind: str, **words: object) -> Cell:
    what = {"mode": kind, "topic": f"Peers{kind.title()}", "threads": THREADS, "bytes": 1024}
    return Cell(name=f"{kind}, {THREADS} threads, 1 KB", words={**what, **words})


_CELLS = (_cell("ordered", keys=1000), _cell("delayed", level=1), _cell("transactional"))


def kind_rows(size: str, folder: Path) -> list[Row]:
    """Rate and broker CPU of each kind, ours beside Apache's."""
    sizes = SIZES[size]
    if sizes.round_count == 0:
        return []
    with both(folder, flush="ASYNC_FLUSH") as servers, loads_on(servers, folder) as loads:
        for server in servers.values():
            make_topics(server, [str(cell.words["topic"]) for cell in _CELLS], queues=QUEUE_COUNT)
        sides: dict[str, Callable[[], Figures]] = {
            f"{cell.name} {name}": partial(_sent, loads[name], cell, sizes)
            for cell in _CELLS
            for name in NAMES
        }
        warm_up = sides.values() if sizes.is_warmed_up else ()
        taken = in_rounds(sizes.round_count, sides, warm_up=warm_up)
    rows: list[Row] = []
    for cell in _CELLS:
        of_cell = {name: taken[f"{cell.name} {name}"] for name in NAMES}
        rows += rows_of(cell, of_cell, cores=describe_cores())
    return rows


def _sent(load: JavaLoad, cell: Cell, sizes: Sizes) -> Figures:
    return load.run({"command": "send", **cell.words, **sizes.amount})


GROUPS: dict[str, Callable[[str, Path], list[Row]]] = {"kinds": kind_rows}
