"""A master's log as the bytes it sends, and slaves' stores that are fed with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from contrail.clock import ManualClock
from contrail.store.log import MessageStore
from tests.fault.store_setup import draft, small_config

SEGMENT = 8192


def master_log(folder: Path, count: int = 120, **changes: Any) -> bytes:
    """The log of a closed master with ``count`` messages of many sizes, over several segments."""
    with MessageStore.open(small_config(folder, **changes), clock=ManualClock()) as store:
        for number in range(count):
            body_bytes = 20 + number * 7919 % 900
            store.append([draft(number, queue_id=number % 3, body_bytes=body_bytes)])
        store.dispatch()
        end = store.physical_end
    segments = sorted((folder / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in segments)[:end]


def open_slave(folder: Path, **options: Any) -> MessageStore:
    """An open slave's store; options that the door does not know are settings."""
    known = {name: options.pop(name) for name in ("files", "on_flushed") if name in options}
    return MessageStore.open(
        small_config(folder, **options), clock=ManualClock(), follows=True, **known
    )


def cut(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """The data in pieces of these sizes; the last one takes the rest."""
    at = 0
    for size in sizes:
        if at >= len(data):
            return
        yield data[at : at + size]
        at += size
    if at < len(data):
        yield data[at:]


def feed(store: MessageStore, log: bytes, pieces: Iterable[bytes]) -> None:
    """Feed pieces that continue the store's log, as a slave does: the rest of each is held."""
    held = bytearray()
    for piece in pieces:
        held += piece
        taken = store.append_raw(store.physical_end, held)
        del held[:taken]
        assert log.startswith(held, store.physical_end)
        store.dispatch()


def derived_files(folder: Path) -> dict[str, bytes]:
    """Log, queues and index of a closed store by their names; an index is named by its time."""
    found = {}
    for name in ("commitlog", "consumequeue", "index"):
        paths = sorted(path for path in (folder / name).rglob("*") if path.is_file())
        for number, path in enumerate(paths):
            key = f"index/{number}" if name == "index" else str(path.relative_to(folder))
            found[key] = path.read_bytes()
    return found
