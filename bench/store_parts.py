"""The measured parts of the store suite: each runs in its own process and returns figures."""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from bench.harness import BenchError, Figures, Stopwatch, wait_until_idle
from contrail.model.message import MessageDraft
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore

BODY_BYTES = 1024
RUN_RECORDS = 64
_TOPIC = b"BenchTopic"
_QUEUE_COUNT = 4
_FILLER_BODY_BYTES = 1 << 20


class CountingFiles(FileSystem):
    """The real file system, counting syncs: records per sync is the batch really reached."""

    def __init__(self) -> None:
        self.sync_count = 0

    def fdatasync(self, fd: int) -> None:
        self.sync_count += 1
        super().fdatasync(fd)


def append_runs(folder: str, run_count: int, dispatches: bool = False) -> Figures:
    """Appends runs of 64 into a segment that was prepared ahead."""
    drafts = sample_drafts(RUN_RECORDS)
    store = _settled_store(Path(folder), RUN_RECORDS * run_count)
    with Stopwatch() as watch:
        for _ in range(run_count):
            store.append(drafts)
            if dispatches:
                store.dispatch()
    return _closed(store, watch.figures(run_count * RUN_RECORDS))


def append_singles(folder: str, record_count: int) -> Figures:
    """Appends one record a call."""
    draft = sample_drafts(1)[0]
    store = _settled_store(Path(folder), record_count)
    with Stopwatch() as watch:
        for _ in range(record_count):
            store.append_one(draft)
    return _closed(store, watch.figures(record_count))


def append_everything(folder: str, run_count: int) -> Figures:
    """Appends over several segments and counts it all: preparation, dispatch, the last sync."""
    drafts = sample_drafts(RUN_RECORDS)
    segment_bytes = RUN_RECORDS * run_count * record_bytes() // 4 + (1 << 20)
    store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
    wait_until_idle()
    with Stopwatch() as watch:
        for _ in range(run_count):
            end = store.append(drafts).physical_end
            store.dispatch()
        store.wait_flushed(end)
    return _closed(store, watch.figures(run_count * RUN_RECORDS))


def sync_flush_runs(folder: str, commit_count: int) -> Figures:
    """One owner appends what 64 waiting producers sent, and answers them all after the sync."""
    drafts = sample_drafts(RUN_RECORDS)
    files = CountingFiles()
    store = _settled_store(Path(folder), RUN_RECORDS * commit_count, sync=True, files=files)
    syncs_before = files.sync_count
    with Stopwatch() as watch:
        for _ in range(commit_count):
            store.wait_flushed(store.append(drafts).physical_end)
    sync_count = files.sync_count - syncs_before
    return _closed(store, watch.figures(commit_count * RUN_RECORDS, sync_count=sync_count))


def sync_flush_threads(folder: str, waiter_count: int, commit_count: int) -> Figures:
    """``waiter_count`` threads each append one record and wait for its sync, over and over."""
    files = CountingFiles()
    record_count = waiter_count * commit_count
    store = _settled_store(Path(folder), record_count, sync=True, files=files)
    drafts = sample_drafts(waiter_count)
    owner = threading.Lock()  # A log has one writer at a time; waiting takes no turns.

    def produce(draft: MessageDraft) -> None:
        for _ in range(commit_count):
            with owner:
                physical_end = store.append_one(draft).physical_end
            store.wait_flushed(physical_end)

    producers = [threading.Thread(target=produce, args=(draft,)) for draft in drafts]
    syncs_before = files.sync_count
    with Stopwatch() as watch:
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
    sync_count = files.sync_count - syncs_before
    return _closed(store, watch.figures(record_count, sync_count=sync_count))


def build_keyed_store(folder: str, record_count: int) -> Figures:
    """A closed store whose records all carry UNIQ_KEY, KEYS and TAGS; nothing is timed."""
    segment_bytes = min(1 << 30, max(1 << 20, record_count * record_bytes() // 3))
    store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
    for first in range(0, record_count, RUN_RECORDS):
        numbers = range(first, min(first + RUN_RECORDS, record_count))
        store.append([sample_draft(number) for number in numbers])
    physical_end = store.physical_end
    store.close()
    return {"physical_end": physical_end, "segment_bytes": segment_bytes}


def recover(folder: str, segment_bytes: int, record_count: int) -> Figures:
    """Opens a killed store without its derived files; checks that every record came back."""
    with Stopwatch() as watch:
        store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
        store.dispatch()
    _require(not store.recovery.was_clean, "the store believes it was closed cleanly")
    rows = sum(store.queue_offset_max(topic, queue) for topic, queue in store.queues())
    _require(rows == record_count, f"{rows} queue rows for {record_count} records")
    for number in (0, record_count // 2, record_count - 1):
        found = store.query(_TOPIC, b"order-%d" % number)
        _require(len(found) == 1, f"key order-{number} finds {len(found)} messages")
    scanned = store.recovery.scanned_bytes
    return _closed(store, watch.figures(record_count, scanned_bytes=scanned))


def checksum(paths: list[str], byte_count: int) -> Figures:
    """Runs ``zlib.crc32`` over the same cached bytes."""
    blocks = [block for path in paths for block in _blocks(Path(path))]
    left = byte_count
    total = 0
    with Stopwatch() as watch:
        for block in blocks:
            total = zlib.crc32(block[:left], total)
            left = max(0, left - len(block))
    return watch.figures(1, byte_count=byte_count - left)


def open_and_close(folder: str, segment_bytes: int) -> Figures:
    """Opens a cleanly closed store, reads the last message of a queue, and closes it again."""
    with Stopwatch() as watch:
        store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
    _require(store.recovery.was_clean, "the store believes it was killed")
    _require_readable(store)
    held = store.physical_end - store.physical_min
    return _closed(store, watch.figures(1, held_bytes=held, open_files=_open_file_count()))


def fill_cold_segments(
    folder: str, segment_bytes: int, cold_count: int, tail_count: int
) -> Figures:
    """A store of ``cold_count`` sparse segments, one record each, and a real tail after them.

    A blank record that says "the rest is unused" makes a nearly empty segment a valid one.
    """
    root = Path(folder)
    _write_cold_segments(root / "commitlog", segment_bytes, cold_count)
    store = MessageStore.open(_config(root, segment_bytes=segment_bytes))
    for first in range(0, tail_count, RUN_RECORDS):
        store.append([sample_draft(first + step) for step in range(RUN_RECORDS)])
        store.dispatch()
    return _closed(store, {"physical_end": store.physical_end})


def build_many_queues(
    folder: str, segment_bytes: int, topic_count: int, queue_count: int
) -> Figures:
    """A store with two messages in each of a number of queues, killed before a checkpoint."""
    store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
    for _ in range(2):
        for number in range(topic_count):
            topic = b"Topic-%06d" % number
            store.append([MessageDraft(topic, queue, b"x" * 200) for queue in range(queue_count)])
        store.dispatch()
    print("{}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


def reopen_many_queues(folder: str, segment_bytes: int, queue_total: int) -> Figures:
    """Opens that store, then reads from every queue; open files are counted after both."""
    with Stopwatch() as watch:
        store = MessageStore.open(_config(Path(folder), segment_bytes=segment_bytes))
        store.dispatch()
    opened = _open_file_count()
    queues = store.queues()
    _require(len(queues) == queue_total, f"{len(queues)} queues instead of {queue_total}")
    most = opened
    for number, (topic, queue) in enumerate(queues):
        _require(bool(store.get(topic, queue, 0).records), f"queue {topic!r} {queue} is empty")
        if number % 512 == 0:
            most = max(most, _open_file_count())
    most = max(most, _open_file_count())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = watch.figures(1, open_files=most, open_files_at_start=opened, peak_mib=peak_mib)
    return _closed(store, {**figures, "was_clean": store.recovery.was_clean})


def sample_draft(number: int) -> MessageDraft:
    """A 1 KB message as a Java client sends it: unique key, business key and tag."""
    properties = (
        b"UNIQ_KEY\x017F0000010A2B18B4AAC2%012X\x02KEYS\x01order-%d\x02TAGS\x01Tag%d\x02"
        % (
            number,
            number,
            number % 8,
        )
    )
    body = _BODIES[number % len(_BODIES)]
    return MessageDraft(_TOPIC, number % _QUEUE_COUNT, body, properties, 0, 0, 1_760_000_000_000)


def sample_drafts(count: int) -> list[MessageDraft]:
    """Drafts of one record size, so that the reference can write the same bytes."""
    return [sample_draft(100_000 + number) for number in range(count)]


def record_bytes() -> int:
    """The size in the log of each of ``sample_drafts``."""
    from contrail.kernels.record_build import measure_run

    return int(measure_run(sample_drafts(1), 4 << 20, False, 8)[0])


_BODIES = [os.urandom(BODY_BYTES) for _ in range(RUN_RECORDS)]


def _config(root: Path, *, segment_bytes: int, sync: bool = False) -> StoreConfig:
    flush = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    return StoreConfig(root=root, segment_bytes=segment_bytes, flush_disk_type=flush)


def _settled_store(
    root: Path, record_count: int, *, sync: bool = False, files: FileSystem | None = None
) -> MessageStore:
    """A store at the start of a prepared segment, with nothing left to do in the background.

    The first segment is left behind, since a broker meets one that was not prepared ahead once
    in its life. The records take less than half of the next, where another would be prepared.
    """
    segment_bytes = 2 * record_count * record_bytes() + 8 * _FILLER_BODY_BYTES
    config = _config(root, segment_bytes=segment_bytes, sync=sync)
    store = MessageStore.open(config, files=files or FileSystem())
    filler = MessageDraft(b"Filler", 0, bytes(_FILLER_BODY_BYTES))
    while store.physical_end < segment_bytes - 2 * _FILLER_BODY_BYTES:
        store.append_one(filler)
    wait_until_idle()  # A segment taken earlier would be taken half prepared.
    while store.physical_end < segment_bytes:
        store.append_one(filler)
    store.dispatch()
    store.wait_flushed(store.physical_end)
    for path in sorted((root / "commitlog").iterdir()):
        _sync_file(path)
    wait_until_idle()
    gc.collect()
    return store


def _closed(store: MessageStore, figures: Figures) -> Figures:
    store.close()
    return figures


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _blocks(path: Path) -> Iterator[memoryview]:
    data = memoryview(path.read_bytes())
    for start in range(0, len(data), 1 << 20):
        yield data[start : start + (1 << 20)]


def _write_cold_segments(folder: Path, segment_bytes: int, cold_count: int) -> None:
    from contrail.kernels.record_build import build_run
    from contrail.model.message import LOOPBACK_HOST
    from contrail.model.record import BLANK_MAGIC

    folder.mkdir(parents=True)
    day_ms = 86_400_000
    for number in range(cold_count):
        start = number * segment_bytes
        stored_ms = time.time_ns() // 1_000_000 - day_ms + number * 1000
        parts = build_run([sample_draft(0)], [number], start, stored_ms, LOOPBACK_HOST, False)
        record = b"".join(parts)
        blank = (segment_bytes - len(record)).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
        with open(folder / f"{start:020d}", "wb") as segment:
            segment.write(record + blank)
            segment.truncate(segment_bytes)


def _require_readable(store: MessageStore) -> None:
    for topic, queue in store.queues():
        queue_offset_max = store.queue_offset_max(topic, queue)
        if queue_offset_max:
            found = store.get(topic, queue, queue_offset_max - 1)
            _require(len(found.records) == 1, f"queue {topic!r} {queue} has no last message")


def _open_file_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise BenchError(f"the store answered wrongly, so its speed means nothing: {what}")
