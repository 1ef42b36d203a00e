"""The services behind the message kinds, put together: retries, delays, transactions, replies.

They share one way into the log (``Deliveries``) and one memory of deliveries
(``DeliveryMemory``), and all of them run on the loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.handlers.figures import WaitingCounts
from contrail.broker.handlers.replies import ReplyHandlers
from contrail.broker.handlers.send_back import SendBackHandlers
from contrail.broker.handlers.timers import TimerHandlers
from contrail.broker.handlers.transactions import TransactionHandlers
from contrail.broker.kinds_need import KindsNeed
from contrail.broker.pop_side import PopSide
from contrail.broker.services.delay_levels import DelayLevels
from contrail.broker.services.delivery_memory import (
    DeliveryMemory,
    begin_memory,
    recall_deliveries,
)
from contrail.broker.services.escape_ledger import keep_escaped
from contrail.broker.services.group_kinds import CARRIED as KINDS
from contrail.broker.services.group_kinds import CarriedKinds
from contrail.broker.services.persistence import Keeping
from contrail.broker.services.stored_tables import load_delay_cursors
from contrail.broker.services.timers import Timers
from contrail.broker.services.transaction_checks import HalfRetention, TransactionChecks
from contrail.broker.services.transaction_operators import TransactionOperators
from contrail.broker.services.transactions import Transactions
from contrail.broker.sinks import Sinks
from contrail.broker.state.transactions import OpenTransactions
from contrail.model.fastjson import JsonValue
from contrail.model.message import StoredMessage
from contrail.model.topic import TIMER_TOPIC
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.runtime.schedule import Schedule
from contrail.wire.peer import Handler


class MessageKinds:
    """Everything that is more than taking a message and handing it out."""

    def __init__(self, need: KindsNeed) -> None:
        self._need = need
        tables, config = need.tables, need.store_config
        self.escaped = need.escaped
        keep_escaped(tables.persistence, self.escaped)
        self.delays = DelayLevels(
            need.store,
            need.deliveries,
            tables.persistence,
            load_delay_cursors(need.files, config.root, config.delay_table),
            interval_ms=config.delay_offset_flush_ms,
        )
        self._send_backs = SendBackHandlers(
            settings=tables.settings,
            topics=tables.topics,
            groups=tables.groups,
            consumers=tables.consumers,
            store=need.store,
            deliveries=need.deliveries,
            answers=need.answers,
            stats=need.stats,
            clock=need.clock,
            delay_table=config.delay_table,
            records=need.records,
        )
        self._replies = ReplyHandlers(
            settings=tables.settings,
            admission=need.admission,
            producers=tables.producers,
            deliveries=need.deliveries,
            answers=need.answers,
            clock=need.clock,
            address=need.address,
            store_host=need.store_host,
        )
        self.timers = self.new_timers(tables.persistence)
        if need.in_group:
            self.timers.follow_in_group()
        # A failover group's facts by name, as they are committed.
        self.carried: Callable[[str], JsonValue] = lambda name: None
        self._timer_handlers = TimerHandlers(
            self.timers,
            tables.topics,
            tables.settings,
            need.deliveries,
            need.answers,
            need.clock,
            rules=need.timer_rules,
            seal=need.recall_seal,
            store=need.store,
        )
        self.open_transactions = OpenTransactions()
        self._wire_transactions(self.open_transactions)
        self.sinks = Sinks(need, self.transactions, self.open_transactions)
        self.pop = PopSide(need)
        if need.leads or need.in_group:
            self._keep_memory()

    def new_timers(self, persistence: Keeping) -> Timers:
        """The timers of this folder, to be filled from the log by ``recover``."""
        need = self._need
        return Timers(
            need.store,
            need.deliveries,
            persistence,
            config=need.store_config,
            files=need.files,
            clock=need.clock,
        )

    def _keep_memory(self) -> None:
        """Last of all: it speaks for the cursors that were written before it.

        A slave has no cursors: its master's deliveries stand in the log, to be found from where
        the memory ends when the slave becomes a master. Members of a failover group have cursors
        of delay levels and transactions in the group's tables, with their places in the log.
        """
        ends = [lambda: self.timers.durable_end, lambda: self.sinks.file.durable_end]
        if not self._need.in_group:
            ends += [
                lambda: self.delays.durable_end,
                lambda: self.transactions.durable_end,
                lambda: self.pop.memory.durable_end,
            ]
        self._memory = DeliveryMemory(self._need.tables.persistence, ends)

    def _wire_transactions(self, table: OpenTransactions) -> None:
        need, tables = self._need, self._need.tables
        self.transactions = Transactions(
            need.store,
            need.deliveries,
            tables.consumer_offsets,
            table,
            need.clock,
            store_host=need.store_host,
            attempt=need.far_reads.attempt,
        )
        self.checks = TransactionChecks(
            self.transactions,
            table,
            need.store,
            tables.producers,
            tables.settings,
            HalfRetention(
                need.store_config.file_reserved_hours * 3_600_000, need.store_config.segment_bytes
            ),
            store_host=need.store_host,
            ensure_exhausted_topic=tables.topics.ensure_transaction_exhausted_topic,
            attempt=need.far_reads.attempt,
            may_check=need.may_check,
        )
        operators = TransactionOperators(
            self.transactions,
            self.checks,
            table,
            need.store,
            need.clock,
            store_host=need.store_host,
        )
        self._transaction_handlers = TransactionHandlers(
            self.transactions,
            operators,
            need.answers,
            tables.settings,
            need.clock,
            need.ways,
            need.records,
        )

    def recover(self) -> None:
        """Learn which messages were delivered before the last stop; off the loop, it may take long.

        A slave learns this when it starts as a master; until then it notes only where to begin.
        """
        need = self._need
        if not need.leads and not need.in_group:
            begin_memory(need.files, need.store_config.root, need.store)
            return
        forgotten = [self.delays.forgotten_from, self.sinks.file.forgotten_from]
        if need.in_group:
            forgotten = [self._begin_at_carried(), self.sinks.file.forgotten_from]
        delivered = recall_deliveries(
            need.files,
            need.store_config.root,
            need.store,
            read_from=min((place for place in forgotten if place is not None), default=None),
            watch=self._watch,
            topics=frozenset((TIMER_TOPIC.encode(), self.pop.revive_topic.encode())),
        )
        self.escaped.forget_before(need.store.physical_min)
        delivered.take_escaped(self.escaped.waited, self.escaped.halves)
        self.sinks.file.begin(delivered.physical_start)
        if need.in_group:
            self.timers.recover(delivered)
            self.transactions.recover(delivered)
            return
        self.delays.recover(delivered)
        self.timers.note_waiting(self.pop.revive_topic.encode())
        self.timers.recover(delivered)
        self.pop.memory.begin(delivered.physical_start)
        self.pop.revive.recover(self.timers.take_noted(), delivered)
        self.transactions.recover(delivered)

    def _begin_at_carried(self) -> int | None:
        """Take the transactions' cursors of the group; where the log must be read from for them."""
        carried = CarriedKinds.parse(self.carried(KINDS))
        if carried is None:
            return None
        self.transactions.take_cursors(carried.half, carried.op)
        return carried.physical_end

    def waiting(self) -> WaitingCounts:
        return WaitingCounts(self.timers.pending_count, len(self.open_transactions))

    def _watch(self, message: StoredMessage) -> None:
        """A message that the cursors may not know of."""
        self.sinks.file.take(message)
        self.pop.memory.take(message)

    def table(self) -> dict[int, Handler]:
        families = (
            self._send_backs,
            self._replies,
            self._timer_handlers,
            self._transaction_handlers,
            self.sinks.handlers,
            self.pop,
        )
        return {code: handler for family in families for code, handler in family.table().items()}

    def register(self, schedule: Schedule) -> None:
        """Have the services called when something may be due; a slave delivers nothing."""
        if not self._need.leads:
            return
        schedule.every(lambda: self.delays.interval_ms, self.delays.run, name="delay levels")
        schedule.every(lambda: self.timers.interval_ms, self.timers.run, name="timers")
        schedule.every(
            lambda: self.transactions.interval_ms, self.transactions.run, name="transactions"
        )
        schedule.every(lambda: self.checks.interval_ms, self.checks.run, name="transaction checks")
        self.sinks.register(schedule)
        self.pop.register(schedule)

    def ends_a_recent_half(self, frame: object) -> bool:
        """Whether a frame is the end of a transaction that is looked for in memory alone."""
        return (
            isinstance(frame, Request)
            and frame.code == RequestCode.END_TRANSACTION
            and self._transaction_handlers.is_of_recent(frame)
        )

    def append_run(self) -> None:
        """Everything of this tick has been handed over."""
        if self.transactions.waiting:
            self.transactions.append_run()
        if self.sinks.transactions.is_behind:
            self.sinks.transactions.carry_on()
        if self.pop.pops.has_work:
            self.pop.pops.append_run()

    async def close(self) -> None:
        """Answer nobody any more; the log stays open."""
        await self._replies.close()

    def close_files(self) -> None:
        """Write down how far things are, once the log is durable; blocks."""
        if self._need.leads:
            self.transactions.keep_cursors()
            self.pop.close_files()
        if self._need.leads or self._need.in_group:
            self.timers.close()
