"""Judges a store against the journal of what it promised."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from contrail.clock import ManualClock
from contrail.model.batch import inner_batch_count
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from contrail.store.state.reading import GetStatus
from tests.fault.campaigns.oracle import Found, QueueKey, decode, queue_rows
from tests.fault.campaigns.workload import (
    BATCH_TOPICS,
    CONFIG_NAME,
    Event,
    draft_of,
    sequence_of,
)

CLOCK_MS = 1_770_000_000_000


class Ack(NamedTuple):
    """A message that the store acknowledged."""

    sequence: int
    key: QueueKey
    queue_offset: int
    physical_offset: int
    body_crc: int


@dataclass
class History:
    """The messages that must and may be there, by the journal of one or several workloads."""

    seed: int
    acks: list[Ack] = field(default_factory=list)
    retention_begun: bool = False
    config_versions: tuple[int, int] = (-1, -1)

    @classmethod
    def from_events(cls, seed: int, events: Iterable[Event]) -> History:
        history = cls(seed)
        for event in events:
            history.take(event)
        return history

    def take(self, event: Event) -> None:
        kind, *rest = event
        if kind == "ack":
            sequence, topic, queue_id, queue_offset, physical_offset, crc = rest
            key = (topic.encode(), queue_id)
            self.acks.append(Ack(sequence, key, queue_offset, physical_offset, crc))
        elif kind == "retention begun":
            self.retention_begun = True
        elif kind == "deletion begun":
            # From here on the topic's older messages may be there or not.
            self.acks = [ack for ack in self.acks if ack.key[0] != rest[0].encode()]
        elif kind == "config begun":
            self.config_versions = (self.config_versions[0], rest[0])
        elif kind == "config done":
            self.config_versions = (rest[0], rest[0])


@dataclass
class Verdict:
    """The messages looked at, and the faults."""

    checked_acks: int = 0
    expired_acks: int = 0
    checked_messages: int = 0
    problems: list[str] = field(default_factory=list)

    def require(self, holds: bool, problem: str) -> None:
        if not holds:
            self.problems.append(problem)


Content = dict[QueueKey, dict[int, Found]]


def read_everything(store: MessageStore, verdict: Verdict) -> Content:
    """All queues through the door, each dense from its minimum to its maximum."""
    store.dispatch()
    return {key: _read_queue(store, key, verdict) for key in store.queues()}


def _read_queue(store: MessageStore, key: QueueKey, verdict: Verdict) -> dict[int, Found]:
    low, high = store.queue_offset_min(*key), store.queue_offset_max(*key)
    found: dict[int, Found] = {}
    queue_offset = expected = low
    while queue_offset < high:
        result = store.get(*key, queue_offset, count_max=64)
        if result.status is not GetStatus.FOUND or not result.records:
            verdict.problems.append(f"{key} at {queue_offset} of {low}..{high}: {result.status}")
            break
        for record in result.records:
            message = decode(record)
            verdict.require(
                message.queue_offset == expected,
                f"{key}: queue offset {message.queue_offset} where {expected} belongs",
            )
            found[message.queue_offset] = message
            expected = message.queue_offset + inner_batch_count(message.properties)
        queue_offset = result.next_queue_offset
    return found


def check_history(store: MessageStore, history: History) -> Verdict:
    """Every acknowledged message is there, nothing is there that was not sent."""
    verdict = Verdict()
    content = read_everything(store, verdict)
    _check_phantoms(content, history.seed, verdict)
    for ack in history.acks:
        _check_ack(store, content, ack, history, verdict)
    return verdict


def _check_phantoms(content: Content, seed: int, verdict: Verdict) -> None:
    seen: set[int] = set()
    for key, messages in content.items():
        last = -1
        for message in messages.values():
            verdict.checked_messages += 1
            sequence = sequence_of(message.body)
            sent = draft_of(seed, sequence)
            verdict.require(
                message.body == sent.body and (sent.topic, sent.queue_id) == key == message[:2],
                f"{key} holds a message nobody sent at {message.queue_offset}",
            )
            verdict.require(sequence not in seen, f"message {sequence} is there twice")
            verdict.require(sequence > last, f"{key}: message {sequence} came after {last}")
            seen.add(sequence)
            last = sequence


def _check_ack(
    store: MessageStore, content: Content, ack: Ack, history: History, verdict: Verdict
) -> None:
    verdict.checked_acks += 1
    if ack.physical_offset < store.physical_min and history.retention_begun:
        verdict.expired_acks += 1
        return
    message = content.get(ack.key, {}).get(ack.queue_offset)
    if message is None:
        verdict.problems.append(f"acknowledged message lost: {ack}")
    elif message.physical_offset != ack.physical_offset:
        verdict.problems.append(f"{ack} is at physical offset {message.physical_offset}")
    elif sequence_of(message.body) != ack.sequence:
        verdict.problems.append(f"{ack} is message {sequence_of(message.body)} now")


def only_acknowledged(content: Content, history: History) -> Content:
    """Without messages that were not acknowledged.

    Of those, a power cut may leave the body and lose a page of properties with the keys: only the
    record checksum covers them.
    """
    promised = {(ack.key, ack.queue_offset) for ack in history.acks}
    return {
        key: {at: message for at, message in queue.items() if (key, at) in promised}
        for key, queue in content.items()
    }


def check_index(store: MessageStore, content: Content, verdict: Verdict, *, every: int = 1) -> None:
    """Each message is found by its unique key, and only there."""
    for (topic, _), messages in content.items():
        for message in list(messages.values())[::every]:
            key = b"u%d" % sequence_of(message.body)
            hits = [hit.physical_offset for hit in store.query(topic, key)]
            verdict.require(
                hits == [message.physical_offset],
                f"{topic!r} {key!r}: index says {hits}, message is at {message.physical_offset}",
            )


def check_config(root: Path, history: History, verdict: Verdict) -> None:
    """The state file is the last one confirmed, or the one being written."""
    path = root / "config" / CONFIG_NAME
    read = read_state(FileSystem(), path, sealed=False, parse=json.loads, set_aside=False)
    version = read.value["version"] if read.value else -1
    verdict.require(
        version in history.config_versions,
        f"config version {version} found, expected one of {history.config_versions}",
    )


def check_writable(store: MessageStore, history: History, sequence: int, verdict: Verdict) -> None:
    """One more message goes in and comes out."""
    draft = draft_of(history.seed, sequence)
    run = store.append_one(draft)
    store.wait_flushed(run.physical_end, 60_000)
    store.dispatch()
    result = store.get(draft.topic, draft.queue_id, run.queue_offsets[0])
    bodies = [decode(record).body for record in result.records]
    verdict.require(bodies == [draft.body], f"a new message reads back as {result.status}")


def check_folder(
    config: StoreConfig, history: History, sequence: int, *, scrubbed: bool = False
) -> Verdict:
    """Everything a folder must satisfy after a crash.

    It opens, holds every acknowledged message, takes more, and its derived files equal those of a
    rebuild from the log alone. With ``scrubbed``, a scrub pass may first repair derived files.
    """
    store = MessageStore.open(config, clock=ManualClock(CLOCK_MS), batch_topics=BATCH_TOPICS)
    try:
        if scrubbed:
            store.scrubber.run_once(1 << 30)
        verdict = check_history(store, history)
        check_writable(store, history, sequence, verdict)
        content = read_everything(store, verdict)
        check_index(store, content, verdict)
    finally:
        store.close()
    check_config(config.root, history, verdict)
    check_rebuild(config, content, verdict)
    return verdict


def check_rebuild(config: StoreConfig, content: Content, verdict: Verdict) -> None:
    """Remove everything derived from a copy and let the store make it again."""
    copy = config.root.with_name(config.root.name + ".rebuilt")
    shutil.copytree(config.root, copy)
    for derived in ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index"):
        shutil.rmtree(copy / derived, ignore_errors=True)
    store = MessageStore.open(
        dataclasses.replace(config, root=copy),
        clock=ManualClock(CLOCK_MS),
        batch_topics=BATCH_TOPICS,
    )
    try:
        again = read_everything(store, verdict)
        check_index(store, again, verdict)
    finally:
        store.close()
    _compare_rows(config.root, copy, content, again, verdict)
    shutil.rmtree(copy)


def _compare_rows(root: Path, copy: Path, first: Content, again: Content, verdict: Verdict) -> None:
    for key, messages in first.items():
        if not messages:
            continue
        if again.get(key) != messages:
            verdict.problems.append(f"{key} has other messages after a rebuild")
        if again.get(key) != messages or key[0] in BATCH_TOPICS:
            continue
        low, high = min(messages), max(messages) + 1
        verdict.require(
            queue_rows(root, key, low, high) == queue_rows(copy, key, low, high),
            f"{key} has other rows after a rebuild",
        )
