"""A seeded workload over a real store that journals every acknowledgement when it comes.

Every message is a function of the seed and its sequence number, so the checker can tell a message
that was sent from an invented one.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from contrail.clock import ManualClock
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch
from contrail.model.message import MessageDraft
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from contrail.store.services.append import AppendedRun

DOOMED = b"doomed"
TOPICS = (b"orders", b"payments", b"audit", DOOMED, b"%RETRY%" + b"long" * 34)
QUEUE_COUNT = 3
# This topic keeps batches whole, in queues of another kind; its sequence numbers are its own.
BULK = b"bulk"
BATCH_TOPICS = frozenset({BULK})
BULK_FROM = 10_000_000
CONFIG_NAME = "campaign.json"
LONG_AFTER_MS = 2_000_000_000_000

Event = list[Any]


class Journal(Protocol):
    """Where events go the moment they are true."""

    def note(self, *event: Any) -> None: ...


class MemoryJournal:
    """Events in a list."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(self, *event: Any) -> None:
        self.events.append(list(event))


class FileJournal:
    """Events as lines of a file; a line written survives the death of the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *event: Any) -> None:
        os.write(self._fd, json.dumps(event).encode() + b"\n")


def read_journal(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def small_config(root: Path, flush: str = "sync", **changes: Any) -> StoreConfig:
    """Sizes so small that every kind of file rolls many times in a short run."""
    values: dict[str, Any] = {
        "root": root,
        "segment_bytes": 32 << 10,
        "queue_file_bytes": 16 * 20,
        "batch_queue_file_bytes": 4 * 46,
        "queue_ext_enabled": True,
        "queue_ext_file_bytes": 512,
        "index_slot_count": 16,
        "index_entry_count": 64,
        "body_bytes_max": 8 << 10,
        "delete_files_max": 2,
        "delete_interval_ms": 0,
        "flush_disk_type": _flush_type(flush),
        "flush_interval_ms": 20,
        # Damage is planted a moment after it was written, and must be found all the same.
        "sound_ms": 0,
    }
    return StoreConfig(**(values | changes))


def _flush_type(flush: str) -> FlushDiskType:
    return FlushDiskType.SYNC_FLUSH if flush == "sync" else FlushDiskType.ASYNC_FLUSH


def draft_of(seed: int, sequence: int) -> MessageDraft:
    """The message with this sequence number."""
    if sequence >= BULK_FROM:
        return _bulk_of(seed, sequence)
    rng = random.Random(seed * 1_000_003 + sequence)
    topic = rng.choices(TOPICS, (30, 25, 20, 10, 15))[0]
    filler = rng.randbytes(3000 if rng.random() < 0.03 else rng.randint(0, 600))
    properties = f"TAGS\x01tag{sequence % 5}\x02KEYS\x01k{sequence} s{sequence % 7}\x02"
    return MessageDraft(
        topic,
        rng.randrange(QUEUE_COUNT),
        b"%d:%d:" % (seed, sequence) + filler,
        (properties + f"UNIQ_KEY\x01u{sequence}\x02").encode(),
        born_timestamp_ms=1_760_000_000_000 + sequence,
    )


def _bulk_of(seed: int, sequence: int) -> MessageDraft:
    rng = random.Random(seed * 1_000_003 + sequence)
    body = b"%d:%d:" % (seed, sequence)
    units = [BatchUnit(body + rng.randbytes(50)) for _ in range(rng.randint(1, 6))]
    properties = f"KEYS\x01k{sequence}\x02UNIQ_KEY\x01u{sequence}\x02".encode()
    draft = MessageDraft(BULK, rng.randrange(2), encode_batch(units), properties)
    return mark_inner_batch(draft)


def sequence_of(body: bytes) -> int:
    """The sequence number a body, or the first message of a whole batch, claims to have."""
    text = body[20:] if body[:1] == b"\0" else body
    return int(text.split(b":", 2)[1])


class Workload:
    """Takes random steps on a store and journals every acknowledgement, never early."""

    def __init__(
        self,
        config: StoreConfig,
        journal: Journal,
        *,
        seed: int,
        sequence: int = 0,
        files: FileSystem | None = None,
        retention: bool = True,
    ) -> None:
        self._config = config
        self._journal = journal
        self._seed = seed
        self._rng = random.Random(f"{seed}/{sequence}")
        self.sequence = sequence
        self._bulk_sequence = BULK_FROM + sequence
        self.files = files or FileSystem()
        self.clock = ManualClock(1_760_000_000_000 + sequence * 1000)
        self._config_version = sequence
        self._retention = retention
        self.store = self._opened()

    def _opened(self) -> MessageStore:
        return MessageStore.open(
            self._config, clock=self.clock, files=self.files, batch_topics=BATCH_TOPICS
        )

    def run(self, step_count: int) -> None:
        """A spell of random steps, with each rarer one at least once in a long run."""
        rare = self._rare_steps()
        for number in range(step_count):
            self._common_step()()
            if number % 7 == 6:
                rare[number // 7 % len(rare)]()

    def close(self) -> None:
        self.store.close()
        self._journal.note("closed")

    def _common_step(self) -> Callable[[], None]:
        steps = (
            self._single,
            self._run,
            self._batch,
            self._bulk,
            self._dispatch,
            self._tick,
        )
        return self._rng.choices(steps, (27, 25, 10, 10, 20, 8))[0]

    def _rare_steps(self) -> tuple[Callable[[], None], ...]:
        retain = (self._retain,) if self._retention else ()
        return (
            self._checkpoint, self._write_config, *retain, self._dispatch, self._checkpoint,
            self._delete_topic, self._tick, self._scrub, self._reopen,
        )  # fmt: skip

    def _single(self) -> None:
        self._append(self._drafts(1), lambda drafts: self.store.append_one(drafts[0]))

    def _run(self) -> None:
        self._append(self._drafts(self._rng.randint(2, 24)), lambda d: self.store.append(d))

    def _batch(self) -> None:
        drafts = self._drafts(self._rng.randint(2, 8))
        one_queue = [drafts[0]]
        for draft in drafts[1:]:
            if (draft.topic, draft.queue_id) == (drafts[0].topic, drafts[0].queue_id):
                one_queue.append(draft)
        self._append(one_queue, lambda d: self.store.append_batch(d))

    def _bulk(self) -> None:
        draft = draft_of(self._seed, self._bulk_sequence)
        self._bulk_sequence += 1
        self._append([draft], lambda drafts: self.store.append_inner_batch(drafts[0]))

    def _drafts(self, count: int) -> list[MessageDraft]:
        first = self.sequence
        self.sequence += count
        return [draft_of(self._seed, sequence) for sequence in range(first, first + count)]

    def _append(
        self,
        drafts: list[MessageDraft],
        append: Callable[[Sequence[MessageDraft]], AppendedRun],
    ) -> None:
        self.clock.advance(ms=self._rng.randint(0, 40))
        run = append(drafts)
        if self._config.syncs_before_ack:
            assert self.store.wait_flushed(run.physical_end, 60_000), "a flush took a minute"
        for draft, queue_offset, physical_offset in zip(
            drafts, run.queue_offsets, run.physical_offsets, strict=True
        ):
            self._journal.note(
                "ack", sequence_of(draft.body), draft.topic.decode(), draft.queue_id,
                queue_offset, physical_offset, zlib.crc32(draft.body),
            )  # fmt: skip

    def _dispatch(self) -> None:
        self.store.dispatch()

    def _tick(self) -> None:
        self.clock.advance(ms=self._rng.choice((1000, 2500, 61_000)))
        self.store.tick()

    def _checkpoint(self) -> None:
        self.store.dispatch()
        self.store.checkpoint()

    def _scrub(self) -> None:
        self.store.dispatch()
        self.store.scrubber.run_once(1 << 30)

    def _retain(self) -> None:
        self._journal.note("retention begun")
        self.store.retention.request_manual()
        self.store.retention.run_once(LONG_AFTER_MS)

    def _delete_topic(self) -> None:
        self._journal.note("deletion begun", DOOMED.decode())
        self.store.delete_topic(DOOMED)
        self._journal.note("deletion done", DOOMED.decode())

    def _write_config(self) -> None:
        self._config_version += 1
        self._journal.note("config begun", self._config_version)
        content = json.dumps({"version": self._config_version, "filler": "x" * 500}).encode()
        write_state(
            self.files,
            self._config.root / "config" / CONFIG_NAME,
            content,
            sealed=False,
        )
        self._journal.note("config done", self._config_version)

    def _reopen(self) -> None:
        self.close()
        self.store = self._opened()
