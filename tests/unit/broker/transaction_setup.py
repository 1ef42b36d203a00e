"""A broker's transactions over a log in memory, with a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contrail.broker.config import BrokerConfig
from contrail.broker.handlers.transactions import TransactionHandlers
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.transaction_checks import HalfRetention, TransactionChecks
from contrail.broker.services.transaction_operators import TransactionOperators
from contrail.broker.services.transactions import GROUP, Transactions
from contrail.broker.state.causes import Delivered
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import ManualClock
from contrail.errors import RequestRejected
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, Response
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer
from tests.fakes.transaction_log import STORE_HOST, MemoryLog, half_draft

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
HOUR_MS = 3_600_000
# On a busy machine milliseconds pass by themselves: a test is done with all that is due.
WORK_MS_MAX = 60_000
HALF, OP = HALF_TOPIC.encode(), OP_HALF_TOPIC.encode()


class World:
    """One life of a broker; ``crashed`` gives the next one."""

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        offsets: ConsumerOffsets | None = None,
        delivered: Delivered | None = None,
        waits: bool = False,
    ) -> None:
        self.log = log or MemoryLog(ManualClock())
        self.clock = self.log.clock
        self.offsets = offsets or ConsumerOffsets()
        self.settings = RuntimeSettings(BrokerConfig(broker_name="broker-a"))
        self.producers = ProducerTable()
        self.table = OpenTransactions()
        self.transactions = Transactions(
            self.log,
            self.log,
            self.offsets,
            self.table,
            self.clock,
            store_host=STORE_HOST,
            work_ms_max=WORK_MS_MAX,
        )
        self.retention = HalfRetention(72 * HOUR_MS, segment_bytes=1 << 40)
        self.exhausted_topic_made = 0
        self.checks = TransactionChecks(
            self.transactions,
            self.table,
            self.log,
            self.producers,
            self.settings,
            self.retention,
            store_host=STORE_HOST,
            ensure_exhausted_topic=self._make_exhausted_topic,
            work_ms_max=WORK_MS_MAX,
        )
        operators = TransactionOperators(
            self.transactions, self.checks, self.table, self.log, self.clock, store_host=STORE_HOST
        )
        self.acknowledgements = Acknowledgements(self.clock, waits=waits, disk_timeout_ms=5000)
        self.handlers = TransactionHandlers(
            self.transactions, operators, self.acknowledgements, self.settings, self.clock
        )
        self.transactions.recover(delivered or Delivered())

    def _make_exhausted_topic(self, now_ms: int) -> None:
        self.exhausted_topic_made += 1

    def crashed(
        self,
        record_count: int | None = None,
        *,
        written: Mapping[str, Mapping[int, int]] | None = None,
    ) -> World:
        """The next life, from a log cut off behind so many records and cursors that were written.

        The facts of the log's end about deliveries are those that the recovery finds.
        """
        count = len(self.log.records) if record_count is None else record_count
        kept = self.offsets.snapshot().offsets if written is None else written
        return World(self.log.after_crash(count), offsets=ConsumerOffsets(kept))

    # Events.

    def send_half(self, key: str = "k1", **options: str) -> StoredMessage:
        run = self.log.append([half_draft(key, clock=self.clock, **options)])  # type: ignore[arg-type]
        return self.log.record(run.physical_offsets[0])

    def store(self, draft: MessageDraft) -> StoredMessage:
        return self.log.record(self.log.append([draft]).physical_offsets[0])

    def tick(self, *, ms: int = 0) -> None:
        """Move the clock and do what is due."""
        self.clock.advance(ms=ms)
        now_ms = self.clock.now_ms()
        self.transactions.run(now_ms)
        self.checks.run(now_ms)

    def producer(self, group: str = "payers", port: int = 50001) -> FakePeer:
        peer = FakePeer(f"127.0.0.1:{port}")
        now_ms = self.clock.now_ms()
        self.producers.register(group, ClientChannel(peer, f"c{port}", "JAVA", 479, now_ms))
        return peer

    def end(
        self,
        half: StoredMessage,
        commit_or_rollback: int = COMMIT,
        *,
        is_check: bool = False,
        one_way: bool = False,
        **changes: str,
    ) -> Response | None:
        """The answer to an end, if it was given by the end of its tick."""
        fields = {
            "producerGroup": "payers",
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "commitOrRollback": str(commit_or_rollback),
            "fromTransactionCheck": "true" if is_check else "false",
            "msgId": half.properties["UNIQ_KEY"],
            **changes,
        }
        return self.ask(RequestCode.END_TRANSACTION, fields, one_way=one_way)

    def ask(
        self, code: int, fields: Mapping[str, str], *, one_way: bool = False
    ) -> Response | None:
        peer = FakePeer()
        request = Request(code, 1, dict(fields), flag=FLAG_ONE_WAY if one_way else 0)
        try:
            answer = self.handlers.table()[code](request, peer)
        except RequestRejected as refusal:
            return Response(refusal.code, refusal.remark)
        self.transactions.append_run()
        if answer is not LATER:
            assert isinstance(answer, Response)
            return answer
        return peer.replies[0][1] if peer.replies else None

    def listed(self) -> list[dict[str, object]]:
        answer = self.ask(RequestCode.LIST_TRANSACTIONS, {})
        assert answer is not None and answer.code == ResponseCode.SUCCESS
        assert isinstance(answer.body, bytes)
        found: list[dict[str, object]] = json.loads(answer.body)
        return found

    # Observations.

    @property
    def cursors(self) -> tuple[int, int]:
        return (
            self.offsets.query(GROUP, HALF_TOPIC, 0),
            self.offsets.query(GROUP, OP_HALF_TOPIC, 0),
        )

    def ops(self) -> list[tuple[str, str]]:
        """Body and fates of every op record."""
        return [
            (message.body.decode(), message.properties.get("CONTRAIL_FATES", "-"))
            for message in self.log.of(OP)
        ]


def question_place(sent: object) -> tuple[int, int]:
    """The queue offset and physical offset that a question names."""
    fields = sent.fields  # type: ignore[attr-defined]
    return int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
