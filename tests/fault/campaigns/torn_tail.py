"""The last record of the log, torn at every byte and in every way a disk can leave it."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.campaigns.history import CLOCK_MS, Verdict, read_everything
from tests.fault.campaigns.oracle import Found, decode
from tests.fault.campaigns.workload import draft_of, sequence_of, small_config

MESSAGE_COUNT = 24
_CHECKER = 900_000

# From the record's bytes and those of an older record: the bytes after the tear.
Overwrite = Callable[[bytes, bytes, random.Random], bytes]

OVERWRITES: dict[str, Overwrite] = {
    "zeros": lambda was, old, rng: bytes(len(was)),
    "ones": lambda was, old, rng: b"\xff" * len(was),
    "old record": lambda was, old, rng: (old * (len(was) // len(old) + 1))[: len(was)],
    "old record's end": lambda was, old, rng: old[-len(was) :].rjust(len(was), b"\0"),
    "noise": lambda was, old, rng: rng.randbytes(len(was)),
}


class Template(NamedTuple):
    """A folder as a crash left it, whose last record is above the durable mark."""

    config: StoreConfig
    seed: int
    last: Found
    old: Found
    segment: str

    @property
    def end(self) -> int:
        return self.last.physical_offset + self.last.record_bytes


@dataclass
class TornFigures:
    """The campaign's figures. ``kept`` are tears that changed no byte that a check covers."""

    cases: int = 0
    cut: int = 0
    kept: int = 0
    problems: list[str] = field(default_factory=list)


def make_template(folder: Path, *, seed: int, record_crc: bool, **settings: Any) -> Template:
    """Messages, a checkpoint, more messages, and the folder copied as it stands."""
    config = small_config(folder / "live", record_crc_enabled=record_crc, **settings)
    with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
        for sequence in range(MESSAGE_COUNT):
            if sequence == MESSAGE_COUNT // 2:
                store.dispatch()
                store.checkpoint()
            run = store.append_one(draft_of(seed, sequence))
        store.wait_flushed(run.physical_end)
        store.dispatch()
        shutil.copytree(config.root, folder / "template")
        old, last = (_record(store, sequence, seed) for sequence in (2, MESSAGE_COUNT - 1))
    segment = sorted(path.name for path in (folder / "template" / "commitlog").iterdir())[0]
    return Template(dataclasses.replace(config, root=folder / "template"), seed, last, old, segment)


def _record(store: MessageStore, sequence: int, seed: int) -> Found:
    draft = draft_of(seed, sequence)
    hit = store.query(draft.topic, b"u%d" % sequence)[0]
    result = store.get(draft.topic, draft.queue_id, hit.queue_offset, count_max=1)
    return decode(result.records[0])


def run_campaign(
    folder: Path, *, seed: int, record_crc: bool, every: int = 1, **settings: Any
) -> TornFigures:
    """Tear the last record at each ``every``th byte, in each way."""
    template = make_template(folder, seed=seed, record_crc=record_crc, **settings)
    path = template.config.root / "commitlog" / template.segment
    whole = path.read_bytes()
    assert template.end <= len(whole), "the template fits one segment"
    figures = TornFigures()
    for name, torn in _torn(template, whole, every, random.Random(seed)):
        _judge(folder / "case", template, name, whole, torn, figures)
    return figures


def _torn(
    template: Template, whole: bytes, every: int, rng: random.Random
) -> Iterator[tuple[str, bytes]]:
    start, end = template.last.physical_offset, template.end
    old = whole[template.old.physical_offset :][: template.old.record_bytes]
    for cut in range(start, end, every):
        for name, overwrite in OVERWRITES.items():
            torn = overwrite(whole[cut:end], old, rng)
            yield f"{name} from byte {cut - start}", whole[:cut] + torn + whole[end:]


def _judge(
    folder: Path, template: Template, name: str, whole: bytes, torn: bytes, figures: TornFigures
) -> None:
    shutil.copytree(template.config.root, folder)
    (folder / "commitlog" / template.segment).write_bytes(torn)
    config = dataclasses.replace(template.config, root=folder)
    figures.cases += 1
    try:
        problems = _problems(config, template, whole, torn, figures)
    except (StoreError, OSError, ValueError) as error:
        problems = [f"did not start: {error!r}"]
    figures.problems += [f"{name}: {problem}" for problem in problems]
    shutil.rmtree(folder)


def _problems(
    config: StoreConfig, template: Template, whole: bytes, torn: bytes, figures: TornFigures
) -> list[str]:
    must_cut = covered_change(whole, torn, template.last, record_crc=config.record_crc_enabled)
    verdict = Verdict()
    with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
        cut = store.physical_end == template.last.physical_offset
        figures.cut += cut
        figures.kept += not cut
        verdict.require(cut or store.physical_end == template.end, f"end {store.physical_end}")
        verdict.require(cut or not must_cut, "a torn record was kept")
        verdict.require(whole != torn or not cut, "a whole record was cut")
        _require_the_others(store, template, verdict)
        _require_appends_go_on(store, template, verdict)
    with MessageStore.open(config, clock=ManualClock(CLOCK_MS)) as store:
        _require_the_others(store, template, verdict)
    return verdict.problems


def covered_change(whole: bytes, torn: bytes, record: Found, *, record_crc: bool) -> bool:
    """Whether a byte changed that some check covers.

    With the record checksum all are; else size, magic, body checksum, physical offset and body.
    """
    start = record.physical_offset
    changed = [at for at in range(record.record_bytes) if whole[start + at] != torn[start + at]]
    if record_crc:
        return bool(changed)
    body_at = record.tail_at - len(record.body)
    covered = {*range(12), *range(28, 36), *range(body_at - 4, record.tail_at)}
    return not covered.isdisjoint(changed)


def _require_the_others(store: MessageStore, template: Template, verdict: Verdict) -> None:
    content = read_everything(store, verdict)
    bodies = {message.body for queue in content.values() for message in queue.values()}
    for sequence in range(MESSAGE_COUNT - 1):
        body = draft_of(template.seed, sequence).body
        verdict.require(body in bodies, f"message {sequence} before the tear is gone")
    sent = {draft_of(template.seed, sequence_of(body)).body for body in bodies}
    verdict.require(bodies == sent, "a body that was never sent")


def _require_appends_go_on(store: MessageStore, template: Template, verdict: Verdict) -> None:
    draft = draft_of(template.seed, _CHECKER)
    run = store.append_one(draft)
    store.wait_flushed(run.physical_end)
    store.dispatch()
    result = store.get(draft.topic, draft.queue_id, run.queue_offsets[0])
    bodies = [decode(record).body for record in result.records]
    verdict.require(bodies == [draft.body], f"a new message reads back as {result.status}")
