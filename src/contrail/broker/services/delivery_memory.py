"""After a crash: which messages that waited were delivered already.

The services write their cursors now and then; later deliveries stand in the log. This
keeps the position in the log up to which all written cursors speak for themselves, and at the
start reads the log from there on. Each delivered record names the one that waited
(``state.causes``), so nothing is delivered twice because a cursor was old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from contrail.broker.services.persistence import Persistence
from contrail.broker.state.causes import Delivered
from contrail.errors import RecordDamaged, StateFileDamaged
from contrail.model.message import StoredMessage
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state
from contrail.store import CONFIG_FOLDER, MessageStore, RecordMarks

_log = logging.getLogger(__name__)

FILE_NAME = "contrailDeliveries"
_INTERVAL_MS = 1000


def recall_deliveries(
    files: FileSystem,
    root: Path,
    store: MessageStore,
    *,
    read_from: int | None = None,
    watch: Callable[[StoredMessage], None] | None = None,
    topics: frozenset[bytes] = frozenset(),
) -> Delivered:
    """Read the log's deliveries that no cursor knows of yet; off the loop.

    ``read_from`` is for cursors that were lost: their deliveries stand behind it in the log.
    ``watch`` is shown what was delivered, and every message of the ``topics``.
    """
    try:
        read = read_state(files, root / CONFIG_FOLDER / FILE_NAME, sealed=True, parse=int)
    except StateFileDamaged as damage:
        # Only a shortcut is lost: the whole log is read instead.
        _log.warning("%s: the log is read from its beginning", damage)
        position: int | None = 0
    else:
        position = read.value
    if position is None:
        position = _begin(files, root, store)
    elif read_from is not None:
        position = min(position, read_from)
    return read_deliveries(store, position, watch=watch, topics=topics)


def read_deliveries(
    store: MessageStore,
    physical_start: int,
    *,
    watch: Callable[[StoredMessage], None] | None = None,
    topics: frozenset[bytes] = frozenset(),
) -> Delivered:
    """The log's deliveries from ``physical_start`` on; off the loop.

    A record that waited for nothing is not decoded: a slave that starts as master reads all that
    it copied.
    """
    start = max(physical_start, store.physical_min)
    delivered = Delivered(start)
    for message in _sound_messages(store, start, RecordMarks(topics)):
        delivered.add(message)
        if watch is not None:
            watch(message)
    return delivered


def begin_memory(files: FileSystem, root: Path, store: MessageStore) -> None:
    """Note where the log ends, in a folder that nothing was noted in yet; off the loop."""
    if not files.exists(root / CONFIG_FOLDER / FILE_NAME):
        _begin(files, root, store)


def _begin(files: FileSystem, root: Path, store: MessageStore) -> int:
    """Nothing was ever delivered by us: a new folder, or one that Apache's broker wrote.

    Deliveries from now on must be found here after a crash.
    """
    position = store.settled_end
    path = root / CONFIG_FOLDER / FILE_NAME
    write_state(files, path, str(position).encode(), sealed=True)
    return position


def _sound_messages(
    store: MessageStore, physical_start: int, marks: RecordMarks
) -> Iterator[StoredMessage]:
    try:
        yield from store.marked_between(physical_start, store.visible_end, marks)
    except RecordDamaged as damage:
        _log.warning("%s: messages delivered after it may be delivered again", damage)


class DeliveryMemory:
    """Writes down how far the written cursors speak for themselves."""

    def __init__(self, persistence: Persistence, ends: Iterable[Callable[[], int]]) -> None:
        self._ends = tuple(ends)
        self._position = -1
        persistence.register(
            FILE_NAME,
            take_changed=self._take_changed,
            snapshot=self._snapshot,
            interval_ms=_INTERVAL_MS,
            sealed=True,
        )

    def _take_changed(self) -> bool:
        position = min(end() for end in self._ends)
        changed = position != self._position
        self._position = position
        return changed

    def _snapshot(self) -> Callable[[], bytes]:
        text = str(self._position).encode()
        return lambda: text
