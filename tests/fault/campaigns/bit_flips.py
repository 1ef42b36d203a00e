"""One flipped bit at a time, in any file of a store, stopped or running.

The log: a flip in a byte some check covers is detected. Derived files: after a scrub every message
is found again. After any flip, no read ever returns a body that was not sent to that queue.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from contrail.store.state.reading import GetStatus
from tests.fault.campaigns.history import CLOCK_MS
from tests.fault.campaigns.oracle import Found, QueueKey, decode, queue_rows, walk_log
from tests.fault.campaigns.workload import draft_of, small_config

MESSAGE_COUNT = 80
_KINDS = ("log", "queue", "ext", "index", "small")
_WEIGHTS = (45, 20, 10, 15, 10)
_SMALL = ("checkpoint", "contrail.checkpoint", "contrail.queues")


class Flip(NamedTuple):
    """One bit of one file; ``path`` is relative to the store."""

    kind: str
    path: Path
    position: int
    bit: int

    def apply(self, root: Path) -> None:
        """Flip the bit; a second flip restores it."""
        fd = os.open(root / self.path, os.O_RDWR)
        try:
            byte = os.pread(fd, 1, self.position)[0]
            os.pwrite(fd, bytes([byte ^ 1 << self.bit]), self.position)
        finally:
            os.close(fd)


@dataclass
class FlipFigures:
    """The campaign's figures. ``covered`` are flips that some check must notice."""

    flips: Counter[str] = field(default_factory=Counter)
    covered: int = 0
    detected: int = 0
    refused_starts: int = 0
    wrong_bodies: int = 0
    repairs: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass
class Template:
    """A sound store and everything known about it."""

    config: StoreConfig
    seed: int
    messages: list[Found]
    rows: dict[QueueKey, list[bytes]]
    files: dict[str, list[Path]]

    def at(self, path: Path, position: int) -> Found | None:
        """The record that holds a byte of a segment."""
        physical_offset = int(path.name) + position
        for message in self.messages:
            if 0 <= physical_offset - message.physical_offset < message.record_bytes:
                return message
        return None


def make_template(folder: Path, *, seed: int, record_crc: bool, flush: str = "sync") -> Template:
    """A few segments of messages, cleanly closed."""
    config = small_config(
        folder / "template", flush, record_crc_enabled=record_crc, record_crc_required=record_crc,
        segment_bytes=16 << 10,
    )  # fmt: skip
    with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
        fill(store, seed)
    messages = list(walk_log(config.root, config.segment_bytes))
    keys = Counter((message.topic, message.queue_id) for message in messages)
    rows = {key: queue_rows(config.root, key, 0, count) for key, count in keys.items()}
    return Template(config, seed, messages, rows, files_by_kind(config.root))


def fill(store: MessageStore, seed: int) -> None:
    """The messages every check expects."""
    for first in range(0, MESSAGE_COUNT, 8):
        store.append([draft_of(seed, sequence) for sequence in range(first, first + 8)])
    store.wait_flushed(store.physical_end)
    store.dispatch()
    store.checkpoint()


def files_by_kind(root: Path) -> dict[str, list[Path]]:
    folders = {"log": "commitlog", "queue": "consumequeue", "ext": "consumequeue_ext"}
    found = {
        kind: [path for path in sorted((root / name).rglob("*")) if path.is_file()]
        for kind, name in (folders | {"index": "index"}).items()
    }
    found["small"] = [root / name for name in _SMALL]
    return {kind: [path.relative_to(root) for path in paths] for kind, paths in found.items()}


def pick(template: Template, rng: random.Random, kinds: tuple[str, ...] = _KINDS) -> Flip:
    """Any bit; in the log a bit of a record, since other bytes hold no data."""
    weights = [_WEIGHTS[_KINDS.index(kind)] for kind in kinds]
    kind = rng.choices(kinds, weights)[0]
    if kind == "log":
        message = rng.choice(template.messages)
        physical_offset = message.physical_offset + rng.randrange(message.record_bytes)
        start = physical_offset // template.config.segment_bytes * template.config.segment_bytes
        path = Path("commitlog", f"{start:020d}")
        return Flip(kind, path, physical_offset - start, rng.randrange(8))
    path = rng.choice(template.files[kind])
    size = (template.config.root / path).stat().st_size
    return Flip(kind, path, rng.randrange(size), rng.randrange(8))


def is_covered(template: Template, flip: Flip) -> bool:
    """Whether the log's checks promise to notice this flip."""
    if flip.kind != "log":
        return False
    message = template.at(flip.path, flip.position)
    if message is None or template.config.record_crc_enabled:
        return message is not None
    place = int(flip.path.name) + flip.position - message.physical_offset
    # The body checksum has 31 bits: its highest bit is not part of it, and always 0.
    body_at = message.tail_at - len(message.body)
    return place < 12 or 28 <= place < 36 or body_at <= place < message.tail_at


def run_stopped(folder: Path, *, seed: int, flips: int, record_crc: bool) -> FlipFigures:
    """Flip a bit of a closed store, open it, read all of it, scrub it, read it again."""
    template = make_template(folder, seed=seed, record_crc=record_crc)
    figures, rng = FlipFigures(), random.Random(seed)
    for _ in range(flips):
        flip = pick(template, rng)
        root = folder / "case"
        shutil.copytree(template.config.root, root)
        flip.apply(root)
        _judge_stopped(template, dataclasses.replace(template.config, root=root), flip, figures)
        shutil.rmtree(root)
    return figures


def _judge_stopped(
    template: Template, config: StoreConfig, flip: Flip, figures: FlipFigures
) -> None:
    figures.flips[flip.kind] += 1
    covered = is_covered(template, flip)
    figures.covered += covered
    try:
        store = MessageStore.open(config, clock=ManualClock(CLOCK_MS))
    except StoreError as error:
        figures.refused_starts += 1
        figures.detected += covered
        if flip.kind not in ("log", "small"):
            figures.problems.append(f"{flip}: refused to start: {error!r}")
        return
    except Exception as error:
        figures.problems.append(f"{flip}: failed to start: {error!r}")
        return
    try:
        _judge_open(template, store, flip, covered, figures)
    except Exception as error:
        figures.problems.append(f"{flip}: {error!r}")
    finally:
        _close(store, flip, figures)


def _close(store: MessageStore, flip: Flip, figures: FlipFigures) -> None:
    try:
        store.close()
    except Exception as error:
        figures.problems.append(f"{flip}: failed to close: {error!r}")


def _judge_open(
    template: Template, store: MessageStore, flip: Flip, covered: bool, figures: FlipFigures
) -> None:
    missed = read_all(template, store, flip, figures)
    report = store.scrubber.run_once(1 << 30)
    seen = bool(missed or report.damaged or store.recovery.cut_at is not None)
    figures.detected += covered and seen
    figures.repairs += bool(report.repaired_rows or report.repaired_index_files)
    if covered and not seen:
        figures.problems.append(f"{flip}: not detected")
    if flip.kind != "log":
        left = read_all(template, store, flip, figures)
        figures.problems += [f"{flip}: not repaired: {problem}" for problem in left]
        figures.problems += [f"{flip}: {problem}" for problem in _key_problems(template, store)]


def read_all(
    template: Template, store: MessageStore, flip: Flip, figures: FlipFigures
) -> list[str]:
    """Read every queue from its first message; returns missed messages, counts wrong bodies."""
    queues: dict[QueueKey, list[bytes]] = {}
    for message in template.messages:
        queues.setdefault((message.topic, message.queue_id), []).append(message.body)
    missed = []
    for key, bodies in queues.items():
        queue_offset = 0
        while queue_offset < len(bodies):
            result = store.get(*key, queue_offset)
            found = [decode(record).body for record in result.records]
            if result.status is not GetStatus.FOUND:
                missed.append(f"{key} {queue_offset}: {result.status}")
            elif found != bodies[queue_offset : queue_offset + len(found)]:
                figures.wrong_bodies += 1
                figures.problems.append(f"{flip}: a wrong body was returned")
            queue_offset += max(len(found), 1)
    return missed


def _key_problems(template: Template, store: MessageStore) -> list[str]:
    problems = []
    for sequence in range(0, MESSAGE_COUNT, 3):
        draft = draft_of(template.seed, sequence)
        bodies = [hit.body for hit in store.query(draft.topic, b"u%d" % sequence)]
        if bodies != [draft.body]:
            problems.append(f"message {sequence} is not found by its key")
    return problems


def run_running(folder: Path, *, seed: int, flips: int, record_crc: bool) -> FlipFigures:
    """Flip bits under a store that is open, whose messages are partly older and partly its own."""
    template = make_template(folder, seed=seed, record_crc=record_crc)
    own = make_own(folder, template)
    figures, rng = FlipFigures(), random.Random(seed)
    with MessageStore.open(own, clock=ManualClock(CLOCK_MS)) as store:
        fill(store, template.seed)
        template = dataclasses.replace(
            template, config=own, messages=list(walk_log(own.root, own.segment_bytes)),
            files=files_by_kind(own.root),
        )  # fmt: skip
        for _ in range(flips):
            flip = pick(template, rng, _KINDS[:-1])
            if not (own.root / flip.path).exists():
                template.files = files_by_kind(own.root)
                continue
            _judge_running(template, store, flip, figures)
    return figures


def make_own(folder: Path, template: Template) -> StoreConfig:
    return dataclasses.replace(template.config, root=folder / "running")


def _judge_running(
    template: Template, store: MessageStore, flip: Flip, figures: FlipFigures
) -> None:
    figures.flips[flip.kind] += 1
    covered = is_covered(template, flip)
    figures.covered += covered
    flip.apply(template.config.root)
    try:
        _judge_open(template, store, flip, covered, figures)
        if flip.kind == "queue":
            _require_rows(template, flip, figures)
    except Exception as error:
        figures.problems.append(f"{flip}: {error!r}")
    if flip.kind == "log":
        flip.apply(template.config.root)


def _require_rows(template: Template, flip: Flip, figures: FlipFigures) -> None:
    for key, rows in template.rows.items():
        if queue_rows(template.config.root, key, 0, len(rows)) != rows:
            figures.problems.append(f"{flip}: the rows of {key} on disk are still wrong")
