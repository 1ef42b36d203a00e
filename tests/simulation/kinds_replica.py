"""One member of a simulated group with the real services of the message kinds over a real store.

The log is copied, committed and cut by the story: what is simulated here is only who leads, and
what is committed when. The services' workers are stepped, so that a seed replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrail.broker.config import BrokerConfig
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.delivery_memory import DeliveryMemory, recall_deliveries
from contrail.broker.services.followed_sends import FollowedSends
from contrail.broker.services.group_deletions import TopicDeletions
from contrail.broker.services.group_kinds import CarriedKinds, GroupKinds
from contrail.broker.services.send_dedupe import SendDedupe
from contrail.broker.services.sink_ledger import SinkLedgerFile, forget_draft
from contrail.broker.services.timers import Timers
from contrail.broker.services.topics import Topics
from contrail.broker.services.transactions import Transactions
from contrail.broker.state.attributes import DEDUPE_COUNT_ATTRIBUTE
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.topics import TopicTable
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import ManualClock
from contrail.model.fastjson import JsonValue
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.model.topic import TopicConfig
from contrail.replication.state.group_records import Marker
from contrail.replication.state.state_records import (
    STATE_TOPIC,
    Change,
    StateRecord,
    Table,
    TopicDeletion,
    decode_state_record,
    encode_state_record,
)
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import write_state
from contrail.store import CONFIG_FOLDER
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from tests.fakes.transaction_log import STORE_HOST
from tests.fault.store_setup import small_config

_ONCE = TopicConfig("once", 1, 1, 6, attributes={DEDUPE_COUNT_ATTRIBUTE: "1000"})
RULES = TimerRules(True, 1000, 31_536_000)
RETENTION_MS = 60_000


class AtOnce(Executor):
    """Carries work out where it is handed in."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done


@dataclass(slots=True)
class _Table:
    take_changed: Callable[[], bool]
    snapshot: Callable[[], Callable[[], bytes]]
    sealed: bool
    on_written: Callable[[], None]


class Files:
    """The part of ``Persistence`` that tables register with; written when the story says so."""

    def __init__(self, root: Path) -> None:
        self._folder = root / CONFIG_FOLDER
        self._tables: dict[str, _Table] = {}

    def register(
        self,
        name: str,
        *,
        take_changed: Callable[[], bool],
        snapshot: Callable[[], Callable[[], bytes]],
        interval_ms: int = 0,
        sealed: bool = False,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        self._tables[name] = _Table(take_changed, snapshot, sealed, on_written)

    def write(self) -> None:
        for name, table in self._tables.items():
            if table.take_changed():
                data = table.snapshot()()
                write_state(FileSystem(), self._folder / name, data, sealed=table.sealed)
                table.on_written()


class NoChecks:
    """Producers are not asked: the story decides."""

    interval_ms = 100

    def run(self, now_ms: int) -> None: ...
    def stop(self) -> None: ...


class Replica:
    """A member and its folder; ``restart`` opens the folder again as a kill has left it."""

    def __init__(self, name: str, folder: Path, clock: ManualClock) -> None:
        self.name = name
        self.clock = clock
        self._root = folder / name
        self._root.mkdir()
        # Of the last record of the tables that is committed here.
        self.carried: JsonValue = None
        # Where each epoch begins in this log.
        self.epochs: list[tuple[int, int]] = []
        self.leads = False
        self._open()

    def _open(self) -> None:
        config = small_config(
            self._root,
            segment_bytes=1 << 16,
            queue_file_bytes=20 * 200,
            index_enabled=False,
            timer_log_file_bytes=4192,
            timer_roll_window_slots=5,
            timer_flush_interval_ms=10,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
        )
        files = FileSystem()
        self.store = MessageStore.open(
            config, clock=self.clock, files=files, in_group=True, is_stepped=True
        )
        stats = BrokerStats("c", started_ms=0, utc_offset_ms=0, is_system=lambda topic: False)
        self.deliveries = Deliveries(self.store, stats, on_appended=lambda: None)
        self.files = Files(self._root)
        self.timers = Timers(
            self.store,
            self.deliveries,
            self.files,
            config=config,
            files=files,
            clock=self.clock,
            writer=AtOnce(),
        )
        self.timers.follow_in_group()
        self.table = OpenTransactions()
        self.transactions = Transactions(
            self.store,
            self.deliveries,
            ConsumerOffsets(),
            self.table,
            self.clock,
            store_host=STORE_HOST,
            work_ms_max=60_000,
        )
        self.sinks = SinkLedgerFile(
            self.store,
            self.files,  # type: ignore[arg-type]
            files=files,
            root=self._root,
            retention_ms=lambda: RETENTION_MS,
            now_ms=self.clock.now_ms,
            in_group=True,
        )
        topics = Topics(TopicTable({"once": _ONCE}), RuntimeSettings(BrokerConfig()))
        self.dedupe = SendDedupe(topics, self.store, self.clock)
        self.kinds = GroupKinds(
            self.store,
            self.timers,
            self.transactions,
            NoChecks(),
            self.sinks,
            NoChecks(),
            lambda: self.carried,
            FollowedSends(self.dedupe, self.store),
            forget_sinks=self._forget_sinks,
        )
        self.memory = DeliveryMemory(
            self.files,  # type: ignore[arg-type]
            [lambda: self.timers.durable_end, lambda: self.sinks.durable_end],
        )
        self._recover(files)
        self.fed_end = self.store.dispatched_end
        self.deletions = TopicDeletions(self.store)
        self._next_state = 0
        self._read_states(is_start=True)

    def _recover(self, files: FileSystem) -> None:
        bounds = [self.sinks.forgotten_from]
        carried = CarriedKinds.parse(self.carried)
        if carried is not None:
            bounds.append(carried.physical_end)
            self.transactions.take_cursors(carried.half, carried.op)
        delivered = recall_deliveries(
            files,
            self._root,
            self.store,
            read_from=min((one for one in bounds if one is not None), default=None),
            watch=self.sinks.take,
        )
        self.sinks.begin(delivered.physical_start)
        self.timers.recover(delivered)
        self.transactions.recover(delivered)
        self.dedupe.rebuild()
        self.kinds.begin()

    def _forget_sinks(self, sink_ids: list[str]) -> None:
        now_ms = self.clock.now_ms()
        self.deliveries.append([forget_draft(sink_ids, now_ms=now_ms, store_host=STORE_HOST)])
        self.sinks.ledger.forget(sink_ids)

    # The log.

    @property
    def end(self) -> int:
        return self.store.physical_end

    @property
    def commit(self) -> int:
        return self.store.positions.commit_limit

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][1] if self.epochs else 0

    def data(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The bytes between, in pieces within one segment."""
        while start < end:
            limit = min(end, (start // self.store.segment_bytes + 1) * self.store.segment_bytes)
            yield start, self.store.log_bytes(start, limit - start)
            start = limit

    def take_raw(self, other: Replica, end: int) -> None:
        """Copy what a leader has behind this log's end, up to the end of a unit."""
        start = self.end
        data = b"".join(piece for _, piece in other.data(start, end))
        assert self.store.append_raw(start, data) == len(data)
        self.epochs = [one for one in other.epochs if one[0] < end]

    def cut(self, end: int) -> None:
        self.store.truncate(end)
        self.epochs = [one for one in self.epochs if one[0] < end]

    def commit_to(self, end: int) -> None:
        if end > self.commit:
            self.store.commit_to(end)
        self.deletions.committed(self.commit)
        self.store.flush_now()
        self.feed()

    def feed(self) -> None:
        """Derive what is committed, have all parts follow, and carry out deletions in turn."""
        while True:
            self.store.dispatch()
            start, end = self.fed_end, self.store.dispatched_end
            if end == start:
                return
            self.fed_end = end
            self.kinds.committed(start, end)
            self._read_states()

    def _read_states(self, *, is_start: bool = False) -> None:
        """The tables' records: what they carry, and deletions of topics."""
        topic = STATE_TOPIC.encode()
        while self._next_state < self.store.queue_offset_max(topic, 0):
            [message] = self.store.get(topic, 0, self._next_state, count_max=1).messages
            self._next_state += 1
            end = message.physical_offset + message.record_bytes
            record = decode_state_record(message.body)
            if isinstance(record, TopicDeletion):
                self.deletions.carry_out(record.topic, end)
                if not is_start:
                    self.kinds.topic_deleted(record.topic)
            elif isinstance(record, Change):
                self.carried = record.put[Table.CARRIED]["kinds",]  # type: ignore[assignment]

    # Roles.

    def append_marker(self, term: int) -> None:
        start = self.end
        draft = Marker(term, self.name, self.last_epoch, start, frozenset(self.name)).draft(0)
        self.store.append_marker(draft, len(self.epochs))
        self.epochs.append((start, term))

    def lead(self) -> None:
        """Everything up to the marker is committed and fed."""
        self.store.lead({})
        asyncio.run(self.kinds.lead(1))
        self.leads = True

    def follow(self) -> None:
        if self.leads:
            self.leads = False
            self.store.stop_leading()
            self.kinds.follow(1)

    # Life.

    def run(self) -> None:
        now_ms = self.clock.now_ms()
        self.kinds._run_timers(now_ms)
        if self.leads:
            self.transactions.run(now_ms)
            self.kinds._expire_sinks()

    def write_files(self) -> None:
        self.store.tick(self.clock.now_ms())
        self.files.write()

    def restart(self) -> None:
        self.leads = False
        self.close()
        self._open()

    def close(self) -> None:
        self.store._closed = True
        self.store._release()

    # Clients.

    def append_state(self, record: StateRecord) -> int:
        body = encode_state_record(record)
        return self.store.append([MessageDraft(STATE_TOPIC.encode(), 0, body)]).physical_end

    def delete_topic(self, topic: str) -> int:
        end = self.append_state(TopicDeletion(topic))
        self.store.begin_topic_anew(topic.encode())
        return end

    def send_timed(self, key: str, deliver_ms: int, *, deletes: str = "") -> int:
        """Send a message, or a deletion of one; the end of its record."""
        properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(deliver_ms)}
        if deletes:
            properties["TIMER_DEL_UNIQKEY"] = f"orders+{deletes}"
        draft = MessageDraft(b"orders", 0, key.encode())
        placed = place(draft, properties, level_max=18, timers=RULES, now_ms=self.clock.now_ms())
        run = self.store.append([placed._replace(properties=encode_properties(properties))])
        return run.physical_end
