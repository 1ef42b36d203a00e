"""Every file beside the log, removed, emptied, halved, doubled or swapped with another.

A case says what must happen: the store ``starts`` with every message in its queue and every key in
its index, or it ``refuses`` with a named error, having changed nothing that could be mended.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from contrail.clock import ManualClock
from contrail.errors import StateFileDamaged, StoreError, StoreLayoutError
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.campaigns.history import CLOCK_MS, Verdict, check_index, read_everything
from tests.fault.campaigns.workload import draft_of, sequence_of, small_config

MESSAGE_COUNT = 160

Damage = Callable[[Path, Path], None]


def _remove(path: Path, other: Path) -> None:
    path.unlink()


def _empty(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def _halve(path: Path, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _double(path: Path, other: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + data)


def _swap(path: Path, other: Path) -> None:
    path_data, other_data = path.read_bytes(), other.read_bytes()
    path.write_bytes(other_data)
    other.write_bytes(path_data)


DAMAGES: dict[str, Damage] = {
    "removed": _remove,
    "emptied": _empty,
    "halved": _halve,
    "doubled": _double,
    "swapped": _swap,
}


class Target(NamedTuple):
    """A kind of file, which ones of it to damage, and the errors allowed per damage."""

    name: str
    pattern: str
    after_kill: bool = True
    refusals: tuple[type[StoreError], ...] = ()


# Derived files never keep a store from starting. The sealed files of our own have a backup from
# the write before; with both gone wrong the store refuses, because it can no longer tell a torn
# tail from lost messages.
TARGETS = (
    Target("consume queue, first file", "consumequeue/orders/*/00000000000000000000"),
    Target("consume queue, last file", "consumequeue/orders/*/last"),
    Target("consume queue ext, first file", "consumequeue_ext/orders/*/00000000000000000000"),
    Target("consume queue ext, last file", "consumequeue_ext/orders/*/last"),
    Target("index, first file", "index/first"),
    Target("index, last file", "index/last"),
    Target("checkpoint", "checkpoint"),
    Target("contrail.checkpoint", "contrail.checkpoint"),
    Target("contrail.checkpoint and its backup", "contrail.checkpoint*", refusals=(StateFileDamaged,)),
    Target("contrail.queues", "contrail.queues"),
    Target("contrail.queues and its backup", "contrail.queues*", refusals=(StateFileDamaged,)),
    Target("abort", "abort"),
    Target("lock", "lock"),
)

# The log itself is not derived: a segment of another length cannot be what was written.
LOG_TARGETS = (
    Target("segment, first", "commitlog/first", refusals=(StoreError,)),
    Target("segment, last", "commitlog/last", refusals=(StoreError,)),
)


@dataclass
class DamageFigures:
    """What the campaign saw."""

    cases: int = 0
    started: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)


def make_template(folder: Path, *, seed: int, killed: bool) -> StoreConfig:
    """A store with several files of each kind, closed in order or copied while it was running."""
    config = small_config(folder / "live", segment_bytes=16 << 10)
    with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
        for first in range(0, MESSAGE_COUNT, 8):
            store.append([draft_of(seed, sequence) for sequence in range(first, first + 8)])
            store.wait_flushed(store.physical_end)
            store.dispatch()
            if first == MESSAGE_COUNT // 2:
                store.checkpoint()
        if killed:
            store.tick(CLOCK_MS)
            shutil.copytree(config.root, folder / "template")
    if not killed:
        shutil.copytree(config.root, folder / "template")
    return dataclasses.replace(config, root=folder / "template")


def found_paths(root: Path, pattern: str) -> list[Path]:
    """The files a pattern means; ``first`` and ``last`` are by name within the folder."""
    head, _, tail = pattern.rpartition("/")
    if tail not in ("first", "last"):
        return [path for path in sorted(root.glob(pattern)) if path.suffix != ".tmp"]
    folders = sorted(root.glob(head)) if head else [root]
    pick = 0 if tail == "first" else -1
    return [sorted(folder.iterdir())[pick] for folder in folders]


def run_campaign(folder: Path, *, seed: int, targets: tuple[Target, ...]) -> DamageFigures:
    """Every target, damaged in every way, after a clean stop and after a kill."""
    figures = DamageFigures()
    for killed in (False, True):
        place = folder / ("killed" if killed else "closed")
        template = make_template(place, seed=seed, killed=killed)
        for target in targets:
            for name in DAMAGES:
                _run_case(place, template, target, name, killed, seed, figures)
    return figures


def _run_case(
    place: Path,
    template: StoreConfig,
    target: Target,
    damage: str,
    killed: bool,
    seed: int,
    figures: DamageFigures,
) -> None:
    config = dataclasses.replace(template, root=place / "case")
    shutil.copytree(template.root, config.root)
    paths = found_paths(config.root, target.pattern)
    partners = list(_partners(config.root, paths))
    for path, partner in zip(paths, partners, strict=True):
        DAMAGES[damage](path, partner)
    if paths:
        figures.cases += 1
        where = f"{target.name} {damage} after a {'kill' if killed else 'clean stop'}"
        _judge(config, target, seed, figures, where)
    shutil.rmtree(config.root)


def _partners(root: Path, paths: list[Path]) -> Iterator[Path]:
    """For each path another file to swap with: its neighbour, or the lock file."""
    for path in paths:
        others = [other for other in sorted(path.parent.iterdir()) if other.is_file()]
        others = [other for other in others if other not in paths and other.name != "lock"]
        yield others[0] if others else root / "checkpoint"


def _judge(
    config: StoreConfig, target: Target, seed: int, figures: DamageFigures, where: str
) -> None:
    try:
        store = MessageStore.open(config, clock=ManualClock(CLOCK_MS))
    except target.refusals as error:
        figures.refused += 1
        if not str(error):
            figures.problems.append(f"{where}: refused without a word")
        return
    except Exception as error:
        figures.problems.append(f"{where}: {error!r}")
        return
    figures.started += 1
    verdict = Verdict()
    try:
        _require_everything(store, seed, verdict)
        store.close()
    except Exception as error:
        verdict.problems.append(repr(error))
    figures.problems += [f"{where}: {problem}" for problem in verdict.problems]


def _require_everything(store: MessageStore, seed: int, verdict: Verdict) -> None:
    content = read_everything(store, verdict)
    sequences = sorted(
        sequence_of(message.body) for queue in content.values() for message in queue.values()
    )
    verdict.require(sequences == list(range(MESSAGE_COUNT)), f"{len(sequences)} messages are there")
    for queue in content.values():
        for message in queue.values():
            sent = draft_of(seed, sequence_of(message.body))
            verdict.require(message.body == sent.body, "a body that was never sent")
    check_index(store, content, verdict)
    run = store.append_one(draft_of(seed, MESSAGE_COUNT))
    verdict.require(store.wait_flushed(run.physical_end, 60_000), "appends do not go on")
