"""Every file beside the log, removed, emptied, halved, doubled or swapped with another.

Each case names the outcome it must have; see ``Outcome``.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.kernels.java_hash import java_hash
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.campaigns.history import CLOCK_MS, Verdict, check_index, read_everything
from tests.fault.campaigns.oracle import QueueKey
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


class Outcome(Enum):
    """The outcome that a case must have. In every case no read returns a body that was not sent."""

    WHOLE = "starts, with every message in its queue and every key in the index"
    HEALS = "starts; the first scrub pass makes everything whole"
    REFUSES = "refuses to start with a named error"
    REPORTS = "refuses, or starts and the scrubber names the damaged bytes"
    SHORTER = "starts without the messages of that file, as if they had never been there"


class Target(NamedTuple):
    """A kind of file, and its outcome. ``differs`` names the damages with another outcome."""

    name: str
    pattern: str
    outcome: Outcome = Outcome.WHOLE
    differs: dict[str, Outcome] = {}  # noqa: RUF012
    differs_after_kill: dict[str, Outcome] = {}  # noqa: RUF012

    def expected(self, damage: str, *, killed: bool) -> Outcome:
        outcome = self.differs.get(damage, self.outcome)
        return self.differs_after_kill.get(damage, outcome) if killed else outcome


_SWAP_HEALS = {"swapped": Outcome.HEALS}
_REFUSED_WHEN_DAMAGED = {
    "emptied": Outcome.REFUSES,
    "halved": Outcome.REFUSES,
    "doubled": Outcome.REFUSES,
}

# Derived files never keep a store from starting. Contrail's sealed files have a backup from the
# write before; with content in both but neither readable the store refuses to start, because it
# can no longer tell a torn tail from lost messages.
TARGETS = (
    Target("consume queue, first file", "consumequeue/orders/*/first", differs=_SWAP_HEALS),
    Target("consume queue, last file", "consumequeue/orders/*/last", differs=_SWAP_HEALS),
    Target("consume queue ext, first file", "consumequeue_ext/orders/*/first", Outcome.HEALS),
    Target("consume queue ext, last file", "consumequeue_ext/orders/*/last", Outcome.HEALS),
    Target("index, first file", "index/first", differs=_SWAP_HEALS),
    Target("index, last file", "index/last", differs=_SWAP_HEALS),
    Target("checkpoint", "checkpoint"),
    Target("contrail.checkpoint", "contrail.checkpoint"),
    Target(
        "contrail.checkpoint and its backup",
        "contrail.checkpoint*",
        differs=_REFUSED_WHEN_DAMAGED,
    ),
    Target("contrail.queues", "contrail.queues"),
    Target("contrail.queues and its backup", "contrail.queues*", differs=_REFUSED_WHEN_DAMAGED),
    Target("abort", "abort"),
    Target("lock", "lock"),
)

# The log itself is not derived. A segment of another length cannot be what was written. One that
# is missing at the front is what retention leaves; one missing at the end is refused when it held
# durable bytes, and after a kill that is known only up to the last checkpoint.
_SEGMENT_DIFFERS = {"removed": Outcome.SHORTER, "swapped": Outcome.REPORTS}
LOG_TARGETS = (
    Target("segment, first", "commitlog/first", Outcome.REFUSES, differs=_SEGMENT_DIFFERS),
    Target(
        "segment, last",
        "commitlog/last",
        Outcome.REFUSES,
        differs={"swapped": Outcome.REPORTS},
        differs_after_kill={"removed": Outcome.SHORTER, "emptied": Outcome.SHORTER},
    ),
)


@dataclass
class DamageFigures:
    """The findings of the campaign."""

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
            # Twice, so that the sealed files have their backup.
            if first in (MESSAGE_COUNT // 4, MESSAGE_COUNT // 2):
                store.checkpoint()
        if killed:
            # Nothing is under way: the last checkpoint was waited for, and no tick began another.
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
        _judge(config, target.expected(damage, killed=killed), seed, figures, where)
    shutil.rmtree(config.root)


def _partners(root: Path, paths: list[Path]) -> Iterator[Path]:
    """For each path another file of its kind to swap with, or any other where there is none."""
    kinds = ("consumequeue", "consumequeue_ext", "index", "commitlog")
    for path in paths:
        kind = path.relative_to(root).parts[0]
        pool = (root / kind).rglob("*") if kind in kinds else root.glob("c*")
        others = [other for other in sorted(pool) if other.is_file() and other not in paths]
        yield others[0]


def _judge(
    config: StoreConfig, expected: Outcome, seed: int, figures: DamageFigures, where: str
) -> None:
    verdict = Verdict()
    try:
        with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
            figures.started += 1
            verdict.require(expected is not Outcome.REFUSES, "started")
            _judge_open(store, expected, seed, verdict)
    except StoreError as error:
        figures.refused += 1
        may_refuse = expected in (Outcome.REFUSES, Outcome.REPORTS)
        verdict.require(may_refuse and bool(str(error)), f"refused: {error!r}")
    except Exception as error:
        verdict.problems.append(f"failed: {error!r}")
    figures.problems += [f"{where}: {problem}" for problem in verdict.problems]


def _judge_open(store: MessageStore, expected: Outcome, seed: int, verdict: Verdict) -> None:
    _require_true_bodies(store, seed, verdict)
    if expected is Outcome.WHOLE:
        _require_everything(store, verdict)
    report = store.scrubber.run_once(1 << 30)
    if expected is Outcome.REPORTS:
        verdict.require(bool(report.damaged), "the scrubber found nothing")
    if expected in (Outcome.WHOLE, Outcome.HEALS):
        _require_everything(store, verdict)
        _require_true_tags(store, verdict)
    run = store.append_one(draft_of(seed, MESSAGE_COUNT))
    verdict.require(store.wait_flushed(run.physical_end, 60_000), "appends do not go on")


def _require_true_bodies(store: MessageStore, seed: int, verdict: Verdict) -> None:
    content = read_everything(store, Verdict())
    for queue in content.values():
        for message in queue.values():
            sent = draft_of(seed, sequence_of(message.body))
            verdict.require(message.body == sent.body, "a body that was never sent")


def _require_everything(store: MessageStore, verdict: Verdict) -> None:
    content = read_everything(store, verdict)
    sequences = sorted(
        sequence_of(message.body) for queue in content.values() for message in queue.values()
    )
    verdict.require(sequences == list(range(MESSAGE_COUNT)), f"{len(sequences)} messages are there")
    check_index(store, content, verdict)


def _require_true_tags(store: MessageStore, verdict: Verdict) -> None:
    """A read by tag finds every message with it: the codes in rows and ext units are right."""
    for number in range(5):
        codes = frozenset({java_hash(b"tag%d" % number)})
        found = 0
        for key in store.queues():
            found += _count_tagged(store, key, codes)
        expected = len(range(number, MESSAGE_COUNT, 5))
        verdict.require(found == expected, f"tag{number}: {found} found, {expected} sent")


def _count_tagged(store: MessageStore, key: QueueKey, codes: frozenset[int]) -> int:
    found, queue_offset = 0, store.queue_offset_min(*key)
    while queue_offset < store.queue_offset_max(*key):
        result = store.get(*key, queue_offset, tag_codes=codes)
        found += len(result.records)
        queue_offset = max(result.next_queue_offset, queue_offset + 1)
    return found
