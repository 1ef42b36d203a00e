"""The services behind sinks, put together."""

from __future__ import annotations

from collections.abc import Iterable

from contrail.broker.handlers.sink import SinkHandlers
from contrail.broker.kinds_need import KindsNeed
from contrail.broker.services.sink_ledger import SinkLedgerFile, forget_draft
from contrail.broker.services.sink_sends import SinkSends
from contrail.broker.services.sink_transactions import SinkTransactions
from contrail.broker.services.transactions import Transactions
from contrail.broker.state.transactions import OpenTransactions
from contrail.runtime.schedule import Schedule


class Sinks:
    """The parts that store a sink's rows once, and commit prepared ones."""

    def __init__(
        self, need: KindsNeed, transactions: Transactions, table: OpenTransactions
    ) -> None:
        tables, clock = need.tables, need.clock
        self.file = SinkLedgerFile(
            need.store,
            tables.persistence,
            files=need.files,
            root=need.store_config.root,
            retention_ms=lambda: tables.settings.config.sink_retention_ms,
            now_ms=clock.now_ms,
            follows=not need.leads and not need.in_group,
            in_group=need.in_group,
        )
        self._need = need
        tables.topics.on_delete.append(self.file.forget_topic)
        sends = SinkSends(
            self.file,
            need.admission,
            need.deliveries,
            clock,
            body_bytes_max=need.store_config.body_bytes_max,
            store_host=need.store_host,
            ensure_topic=tables.topics.ensure_sink_topic,
        )
        self.transactions = SinkTransactions(
            self.file,
            transactions,
            table,
            need.store,
            clock,
            wake=need.wake,
            attempt=need.far_reads.attempt,
        )
        self.handlers = SinkHandlers(
            self.file.ledger,
            sends,
            self.transactions,
            need.answers,
            tables.settings,
            need.store,
            clock,
            busy_reason=need.busy_reason,
            names=tables.topics.names,
        )

    def forget(self, sink_ids: list[str]) -> None:
        """Have all members of a failover group forget sinks."""
        draft = forget_draft(
            sink_ids, now_ms=self._need.clock.now_ms(), store_host=self._need.store_host
        )
        self._need.deliveries.append([draft])
        self.file.ledger.forget(sink_ids)

    def topics_of(self, sink_id: str) -> Iterable[str]:
        """The topics of a sink's newest batch, as far as this broker was told."""
        layout = self.file.ledger.status(sink_id).layout
        return () if layout is None else layout.topics

    def register(self, schedule: Schedule) -> None:
        """Have commits carried on with."""
        schedule.every(lambda: self.transactions.interval_ms, self.transactions.run, name="sinks")
