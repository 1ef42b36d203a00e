"""The ledger of sinks on the disk: read back from the log, shortened by a copy in a small file.

The log is the truth: messages of sinks are marked in their headers (``state.sink_ledger``), and
layouts and decisions are records of a topic of their own. A copy of the ledger is written every
few seconds with the log position that it covers, and not before the log is durable up to there:
a copy that knows rows which a power cut took would have their repeats dropped. At the start the
log is read from the copy's position on, in the pass that also finds delivered messages.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from contrail.broker.services.persistence import Persistence, Render
from contrail.broker.state.sink_ledger import (
    SINK_MARK,
    SinkLedger,
    SinkMemory,
    read_row,
    target_of,
)
from contrail.errors import RecordDamaged, RequestRejected, StateFileDamaged
from contrail.model.fastjson import Fields, JsonValue, loads, whole_number
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import TAGS, encode_properties
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_MASK
from contrail.model.topic import HALF_TOPIC, SINK_TOPIC
from contrail.protocol.bodies.sinks import (
    SINK_KEY,
    SinkStatus,
    encode_status,
    read_status,
    status_as_json,
)
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state
from contrail.store import CONFIG_FOLDER, checked_length

_log = logging.getLogger(__name__)

FILE_NAME = "contrailSinks"
_INTERVAL_MS = 2000
_VERSION = 1
_TOPIC = SINK_TOPIC.encode()
_KEY_NAME = SINK_KEY.encode()


class SinkLog(Protocol):
    """The ledger's view of the store."""

    def record(self, physical_offset: int) -> StoredMessage: ...
    @property
    def physical_end(self) -> int: ...
    @property
    def settled_end(self) -> int: ...


class _Copy(NamedTuple):
    """A ledger as it was, and the log position up to which it knows everything."""

    physical_end: int
    ledger: SinkLedger


class SinkLedgerFile:
    """Keeps the ledger, and the file that spares reading all of the log at the start."""

    def __init__(
        self,
        store: SinkLog,
        persistence: Persistence,
        *,
        files: FileSystem,
        root: Path,
        retention_ms: Callable[[], int],
        now_ms: Callable[[], int],
        follows: bool = False,
        in_group: bool = False,
    ) -> None:
        """A slave ``follows``: its file stays as it is, for it takes no rows into its ledger.

        They stand in the log behind the file's position, to be read when it starts as a master.
        ``in_group`` the file has the ledger of the committed log, which all members keep alike;
        ``ledger`` is the leader's, made from it.
        """
        self._store = store
        self._follows = follows
        self._in_group = in_group
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        # Rows before this place in the log are in the copy that was read.
        self._read_end = 0
        # While the file is behind: where a start has to read the log from.
        self._covered_end = 0
        self._touched = False
        # Copies on their way to the file: before the log is durable, and after.
        self._waiting: _Copy | None = None
        self._held: _Copy | None = None
        self._writing_end = 0
        # Set if the newest copy was lost: its rows stand behind this place.
        self.forgotten_from: int | None = None
        # The log's ledger, and this broker's: one object but in a failover group.
        self.followed = self._load(files, root)
        self.ledger = SinkLedger() if in_group else self.followed
        persistence.register(
            FILE_NAME,
            take_changed=self._take_changed,
            snapshot=self._snapshot,
            interval_ms=_INTERVAL_MS,
            sealed=True,
            on_written=self._note_written,
        )

    def _load(self, files: FileSystem, root: Path) -> SinkLedger:
        try:
            read = read_state(files, root / CONFIG_FOLDER / FILE_NAME, sealed=True, parse=_parse)
        except StateFileDamaged as damage:
            _log.warning("%s: the rows of sinks are read from the whole log", damage)
            self.forgotten_from = 0
            return SinkLedger()
        if read.value is None:
            return SinkLedger()
        self._read_end = read.value.physical_end
        if read.source == "backup":
            _log.warning("%s", read.problem)
            self.forgotten_from = self._read_end
        return read.value.ledger

    # After a start.

    def begin(self, physical_start: int) -> None:
        """The log was read from here on: the rows before are in the file."""
        self._covered_end = physical_start
        _log.info("%d sinks are known", len(self.followed.sinks))

    def take(self, message: StoredMessage) -> None:
        """One message of the log's end, in order: a row that the copy does not have is added."""
        if message.physical_offset < self._read_end:
            return
        prepared = message.prepared_transaction_offset
        if prepared == SINK_MARK:
            self._take_marked(message)
        elif (
            message.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
            and prepared >= 0
            and _KEY_NAME in message.raw_properties
            and self._is_of_a_sink(prepared)
        ):
            self._take_row(message)

    def _take_marked(self, message: StoredMessage) -> None:
        if message.topic == SINK_TOPIC:
            self._take_note(message)
        elif message.topic != HALF_TOPIC:
            self._take_row(message)

    def _take_note(self, message: StoredMessage) -> None:
        try:
            if forgotten := read_forgetting(message.body):
                self.followed.forget([one for one in forgotten if one in self.followed.sinks])
                return
            sink_id, status = read_note(message.body)
        except (ValueError, RequestRejected) as error:
            _log.error(
                "the note of a sink at %d cannot be read and is passed over: %s",
                message.physical_offset,
                error,
            )
            return
        self.followed.told(sink_id, status, message.store_timestamp_ms)

    def _take_row(self, message: StoredMessage) -> None:
        row, target = read_row(message.raw_properties), target_of(message)
        if row is not None and target is not None:
            self.followed.stored(row, *target, message.store_timestamp_ms)

    # As a member of a failover group.

    def follow_to(self, physical_end: int) -> None:
        """All rows of the committed log up to there were taken."""
        self._read_end = max(physical_end, self._read_end)
        if not self.followed.changed and self._held is None:
            self._covered_end = self._read_end

    def lead(self) -> None:
        """Go on for another leader, from what is committed."""
        self.ledger.assign(self.followed)

    def overdue(self) -> list[str]:
        """The sinks that were not heard of for too long: all members forget them by a record."""
        return self.ledger.overdue(self._now_ms() - self._retention_ms())

    def _is_of_a_sink(self, physical_offset: int) -> bool:
        """Whether a committed message was prepared by a sink, not by a client that copied one."""
        try:
            half = self._store.record(physical_offset)
        except RecordDamaged:
            return False
        return half.topic == HALF_TOPIC and half.prepared_transaction_offset == SINK_MARK

    # The copy.

    @property
    def durable_end(self) -> int:
        """The log position up to which the file speaks for the ledger."""
        if self._in_group:
            is_behind = self.followed.changed or self._held is not None
            return self._covered_end if is_behind else self._read_end
        return self._covered_end if self._is_behind else self._store.settled_end

    def changing(self) -> None:
        """The ledger is about to change: the file as it is covers the rows before."""
        if not self._in_group:
            self._covered_end = self.durable_end
            self._touched = True

    @property
    def _is_behind(self) -> bool:
        return self._is_dirty or self._waiting is not None or self._held is not None

    @property
    def _is_dirty(self) -> bool:
        return self._touched or self.ledger.changed

    def _take_changed(self) -> bool:
        if self._follows:
            return False
        if self._in_group:
            return self._take_followed()
        self._expire()
        settled_end, physical_end = self._store.settled_end, self._store.physical_end
        if self._is_dirty and (self._waiting is None or settled_end >= physical_end):
            self._waiting = _Copy(physical_end, _copied(self.ledger))
            self._touched = self.ledger.changed = False
        if self._waiting is None or self._waiting.physical_end > settled_end:
            return False
        self._held, self._waiting = self._waiting, None
        return True

    def _take_followed(self) -> bool:
        """Whether the committed ledger changed; all that it says is durable in the log."""
        if not self.followed.changed:
            return False
        self._held = _Copy(self._read_end, _copied(self.followed))
        self.followed.changed = False
        return True

    def _expire(self) -> None:
        overdue = self.overdue()
        if overdue:
            self.changing()
            self.ledger.forget(overdue)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted, and with it the rows of sinks there."""
        if self._follows:
            return
        self.changing()
        self.ledger.forget_topic(topic)

    def _snapshot(self) -> Render:
        assert self._held is not None, "only what changed is copied"
        copy = self._held
        self._writing_end = copy.physical_end
        return lambda: _render(copy)

    def _note_written(self) -> None:
        self._covered_end = self._writing_end
        if self._held is not None and self._held.physical_end <= self._covered_end:
            self._held = None


def note_draft(sink_id: str, status: SinkStatus, *, now_ms: int, store_host: bytes) -> MessageDraft:
    """The record that a sink's layout and decision are remembered by."""
    document = {"sinkId": sink_id, **status_as_json(status)}
    return MessageDraft(
        _TOPIC,
        0,
        json.dumps(document, separators=(",", ":"), default=dict).encode(),
        encode_properties({TAGS: "sink"}),
        born_timestamp_ms=now_ms,
        born_host=store_host,
        prepared_transaction_offset=SINK_MARK,
    )


def forget_draft(sink_ids: list[str], *, now_ms: int, store_host: bytes) -> MessageDraft:
    """The record by which all members of a failover group forget sinks."""
    draft = note_draft("", SinkStatus(), now_ms=now_ms, store_host=store_host)
    return draft._replace(body=json.dumps({"forget": sink_ids}, separators=(",", ":")).encode())


def read_forgetting(body: bytes) -> list[str]:
    """The sinks that a record has members forget; none for another note."""
    forgotten = Fields(loads(body), "a sink").array("forget")
    return [one for one in forgotten if isinstance(one, str)]


def read_note(body: bytes) -> tuple[str, SinkStatus]:
    """The inverse of ``note_draft``."""
    fields = Fields(loads(body), "a sink")
    return fields.text("sinkId", ""), read_status(fields)


def _copied(ledger: SinkLedger) -> SinkLedger:
    copy = SinkLedger()
    copy.sinks = {
        sink_id: SinkMemory(sink.heard_ms, sink.status, dict(sink.reached))
        for sink_id, sink in ledger.sinks.items()
    }
    copy.entry_count = ledger.entry_count
    return copy


def _render(copy: _Copy) -> bytes:
    document = {
        "version": _VERSION,
        "position": copy.physical_end,
        "sinks": {
            sink_id: {
                "heardMs": sink.heard_ms,
                **status_as_json(sink.status),
                "rows": [[*target, *reached] for target, reached in sink.reached.items()],
            }
            for sink_id, sink in copy.ledger.sinks.items()
        },
    }
    text = json.dumps(document, separators=(",", ":"), default=dict)
    return checked_length(FILE_NAME, text.encode())


def _parse(data: bytes) -> _Copy:
    """Raises ``ValueError`` for text that ``_render`` did not write."""
    fields = Fields(loads(data), FILE_NAME)
    if fields.integer("version", 0) != _VERSION:
        raise ValueError(f"version {fields.integer('version', 0)} is not known here")
    ledger = SinkLedger()
    for sink_id, sink in fields.children("sinks").items():
        ledger.sinks[sink_id] = _read_sink(sink)
        ledger.entry_count += len(ledger.sinks[sink_id].reached)
        ledger.byte_count += ledger.sinks[sink_id].byte_count
    return _Copy(fields.integer("position", 0), ledger)


def _read_sink(fields: Fields) -> SinkMemory:
    memory = SinkMemory(fields.integer("heardMs", 0))
    try:
        memory.status = read_status(fields)
        memory.byte_count = len(encode_status(memory.status))
    except RequestRejected as error:
        raise ValueError(error.remark) from error
    for row in fields.array("rows"):
        topic, queue_id, partition, batch_id, seq = _read_entry(row)
        memory.reached[topic, queue_id, partition] = (batch_id, seq)
    return memory


def _read_entry(row: JsonValue) -> tuple[str, int, int, int, int]:
    if not isinstance(row, list) or len(row) != 5 or not isinstance(row[0], str):
        raise ValueError(f"{str(row)[:80]} is no row of a sink")
    queue_id, partition, batch_id, seq = (whole_number(one, "a row") for one in row[1:])
    return row[0], queue_id, partition, batch_id, seq
