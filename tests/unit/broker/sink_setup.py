"""A broker's sinks over a log in memory: the test says what is written, copied and cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from contrail.broker.handlers.sink import SinkHandlers
from contrail.broker.services.send_admission import Admitted
from contrail.broker.services.sink_ledger import SinkLedgerFile
from contrail.broker.services.sink_sends import SinkSend, SinkSends, SinkStored
from contrail.broker.services.sink_transactions import Ended, SinkTransactions
from contrail.broker.state.causes import Delivered
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.half_messages import as_half, is_half
from contrail.broker.state.system_names import SystemNames
from contrail.clock import ManualClock
from contrail.errors import StoreError
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import MessageDraft
from contrail.model.properties import decode_properties, encode_properties
from contrail.model.topic import QueueType
from contrail.protocol.frames import SendRequest
from contrail.runtime.state_file import _seal
from tests.fakes.transaction_log import STORE_HOST, MemoryLog
from tests.unit.broker.transaction_setup import WORK_MS_MAX, World

DAY_MS = 86_400_000


class FilesInMemory:
    """The one file, and its backup."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read_bytes(self, path: Path) -> bytes:
        if path.name not in self.content:
            raise FileNotFoundError(path)
        return self.content[path.name]


class WrittenByHand:
    """Persistence that writes when the test says so."""

    def __init__(self, files: FilesInMemory) -> None:
        self._files = files
        self._has_copy = False

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Callable[[], bytes]],
        on_written: Callable[[], None],
        **_: object,
    ) -> None:
        self._name = name
        self._take_changed, self._snapshot, self._on_written = take_changed, snapshot, on_written

    def copy(self) -> bool:
        """Ask for a copy, as is done each second."""
        self._has_copy |= self._take_changed()
        return self._has_copy

    def write(self) -> None:
        """Write the copy, if there is one."""
        if self._has_copy:
            self._has_copy = False
            self._files.content[self._name] = _seal(self._snapshot()())
            self._on_written()

    def save(self) -> None:
        self.copy()
        self.write()


class TakesEverything:
    """Admission without rules: batches are split, marked messages wait as halves."""

    def __init__(self) -> None:
        self._count = 0

    def admit(self, send: SendRequest, client: str) -> Admitted:
        draft = send.draft
        if send.is_batch:
            return Admitted(draft, "", True, draft.queue_id, QueueType.SIMPLE)
        properties = decode_properties(draft.properties)
        self._count += 1
        properties.setdefault("UNIQ_KEY", f"key-{self._count}")
        if is_half(draft, properties):
            draft = as_half(draft, properties)
        return Admitted(
            draft._replace(properties=encode_properties(properties)), "", True, draft.queue_id
        )


class SinkWorld(World):
    """One life of a broker with sinks; ``next_life`` is the one after a crash."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        files: FilesInMemory | None = None,
        position: int = 0,
        offsets: ConsumerOffsets | None = None,
    ) -> None:
        log = log or MemoryLog(ManualClock())
        self.files = files or FilesInMemory()
        self.persistence = WrittenByHand(self.files)
        # How far the log need not be read at the next start, as it was last written down.
        self.position = position
        self.file = SinkLedgerFile(
            log,
            self.persistence,  # type: ignore[arg-type]
            files=self.files,  # type: ignore[arg-type]
            root=Path("root"),
            retention_ms=lambda: 30 * DAY_MS,
            now_ms=log.clock.now_ms,
        )
        if self.file.forgotten_from is not None:
            position = min(position, self.file.forgotten_from)
        tail = list(log.messages_between(position, log.physical_end))
        super().__init__(log, offsets=offsets, delivered=Delivered.of(tail, position))
        for message in tail:
            self.file.take(message)
        self.file.begin(position)
        self.sends = SinkSends(
            self.file,
            TakesEverything(),  # type: ignore[arg-type]
            log,
            log.clock,
            body_bytes_max=1 << 20,
            store_host=STORE_HOST,
            ensure_topic=lambda now_ms: None,
        )
        self.sink_transactions = SinkTransactions(
            self.file,
            self.transactions,
            self.table,
            log,
            log.clock,
            wake=lambda: None,
            work_ms_max=WORK_MS_MAX,
        )

        self.acknowledgements.waits = True
        self.sink_handlers = SinkHandlers(
            self.file.ledger,
            self.sends,
            self.sink_transactions,
            self.acknowledgements,
            self.settings,
            log,
            log.clock,
            busy_reason=lambda: None,
            names=SystemNames(),
        )

    def note_position(self) -> None:
        self.position = self.file.durable_end

    def next_life(self, record_count: int | None = None) -> SinkWorld:
        """After a crash that kept so many records, and the files as they were written."""
        count = len(self.log.records) if record_count is None else record_count
        return SinkWorld(
            self.log.after_crash(count),
            files=self.files,
            position=self.position,
            offsets=ConsumerOffsets(self.offsets.snapshot().offsets),
        )

    # The requests of sinks.

    def rows(
        self, key: str, seqs: Iterable[int], *, queue_id: int = 0, attempt: str = ""
    ) -> SinkStored:
        body = batch_of(key, seqs, attempt)
        send = SinkSend("orders", queue_id, "sinks", bool(attempt), body, "client", b"\0" * 8)
        return self.sends.take(send)

    def commit(self, sink_id: str, batch_id: int, attempts: dict[int, str]) -> Ended:
        told: list[Ended | StoreError] = []
        self.sink_transactions.commit(sink_id, batch_id, attempts, told.append)
        assert len(told) == 1 and isinstance(told[0], Ended), told
        return told[0]

    def bodies(self, queue_id: int = 0) -> list[str]:
        """The bodies that consumers of a queue see."""
        return [m.body.decode() for m in self.log.of(b"orders") if m.queue_id == queue_id]

    def ordinary(self, key: str, seq: int, **changes: Any) -> None:
        """A message that somebody else sent, with a sink's words in it."""
        unit = _unit(key, seq, "")
        draft = MessageDraft(b"orders", 9, unit.body, unit.properties, **changes)
        self.log.append([draft])


def batch_of(key: str, seqs: Iterable[int], attempt: str = "") -> bytes:
    return encode_batch(_unit(key, seq, attempt) for seq in seqs)


def _unit(key: str, seq: int, attempt: str) -> BatchUnit:
    properties = {"SPARK_SINK_KEY": key, "SPARK_SINK_SEQ": str(seq)}
    if attempt:
        properties["SPARK_SINK_ATTEMPT"] = attempt
    return BatchUnit(f"{key}#{seq}".encode(), encode_properties(properties))
