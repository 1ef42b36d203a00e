"""Stores of a failover group's members, and the logs of two leaders that begin alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contrail.clock import ManualClock
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from tests.fault.store_setup import draft, small_config

MARKER_TOPIC = "rmq_sys_contrail_epoch"


def open_member(folder: Path, **options: Any) -> MessageStore:
    """An open member's store; options that the door does not know are settings."""
    doors = ("files", "on_flushed", "is_stepped")
    known = {name: options.pop(name) for name in doors if name in options}
    config = small_config(folder, flush_disk_type=FlushDiskType.SYNC_FLUSH, **options)
    return MessageStore.open(config, clock=ManualClock(), in_group=True, **known)


def begin_epoch(store: MessageStore, queue_offset: int) -> None:
    """Let a member lead by itself: its marker is committed, and own appends are open."""
    store.append_marker(draft(queue_offset, topic=MARKER_TOPIC), queue_offset)
    commit_all(store)
    store.lead({})


def commit_all(store: MessageStore) -> None:
    store.wait_flushed(store.physical_end)
    store.commit_to(store.physical_end)
    store.dispatch()


def append_some(store: MessageStore, first: int, last: int) -> list[int]:
    """Messages of many sizes, each one append; returns where each ends."""
    ends = []
    for number in range(first, last):
        body_bytes = 20 + number * 7919 % 900
        run = store.append([draft(number, queue_id=number % 3, body_bytes=body_bytes)])
        ends.append(run.physical_end)
    return ends


def log_of(store: MessageStore) -> bytes:
    """The log's bytes from the first to its end."""
    found = b""
    while len(found) < store.physical_end:
        rest = store.segment_bytes - len(found) % store.segment_bytes
        found += store.log_bytes(len(found), min(rest, store.physical_end - len(found)))
    return found


def two_logs(folder: Path, common: int, count: int) -> tuple[bytes, bytes, list[int]]:
    """Two leaders' logs that share ``common`` messages; and the ends of the first one's records."""
    with open_member(folder / "one") as one, open_member(folder / "two") as two:
        begin_epoch(one, 0)
        ends = [one.physical_end, *append_some(one, 0, common)]
        two.append_raw(0, log_of(one))
        commit_all(two)
        begin_epoch(two, 1)
        append_some(two, 1000, 1000 + count)
        ends += append_some(one, common, common + count)
        return log_of(one), log_of(two), ends
