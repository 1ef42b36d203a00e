"""END_TRANSACTION, and operators' requests about transactions.

A producer ends a transaction one-way and reads no answer; a two-way end is answered, under
SYNC_FLUSH after the sync. ``append_run`` is called at the end of each tick.
"""

from __future__ import annotations

import logging

from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.services.acknowledgements import Acknowledgements, doubt_fields
from contrail.broker.services.transaction_operators import TransactionOperators
from contrail.broker.services.transactions import Told, Transactions
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.transaction_records import Fate, Half, immunity_ms
from contrail.broker.state.ways import Ways
from contrail.clock import Clock
from contrail.errors import MessageIllegal, RequestRejected, StoreError
from contrail.model.message import StoredMessage
from contrail.model.properties import CHECK_IMMUNITY_TIME_IN_SECONDS, PGROUP, REAL_TOPIC
from contrail.model.record import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from contrail.protocol.bodies.transactions import encode_transactions
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)

# More than the largest offset has.
_DIGITS_MAX = 20
PAGE_COUNT = 100
PAGE_COUNT_MAX = 1000
_FATES = {TRANSACTION_COMMIT: Fate.COMMITTED, TRANSACTION_ROLLBACK: Fate.ROLLED_BACK}
_FATE_NAMES = {"commit": Fate.COMMITTED, "rollback": Fate.ROLLED_BACK}


class TransactionHandlers:
    """Checks ends as RocketMQ does, and lets the first one decide."""

    def __init__(
        self,
        transactions: Transactions,
        operators: TransactionOperators,
        answers: Acknowledgements,
        settings: RuntimeSettings,
        clock: Clock,
        ways: Ways | None = None,
        records: FoundRecords | None = None,
    ) -> None:
        self._found = records or FoundRecords()
        self._ways = ways or Ways()
        self._transactions = transactions
        self._operators = operators
        self._answers = answers
        self._settings = settings
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self.handle_end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.handle_resume,
            RequestCode.LIST_TRANSACTIONS: self.handle_list,
            RequestCode.DECIDE_TRANSACTION: self.handle_decide,
        }

    # Producers.

    def handle_end(self, request: Request, peer: Peer) -> Answer:
        try:
            return self._end(request, peer)
        except RequestRejected as refusal:
            # Nobody reads the answer to a one-way request.
            _log.info("end of a transaction from %s refused: %s", peer.address, refusal.remark)
            raise

    def is_of_recent(self, end: Request) -> bool:
        """Whether the half message is kept in memory still, so that no queue is looked at."""
        place = end.fields.get("commitLogOffset", "")
        return place.isdecimal() and int(place[:_DIGITS_MAX]) in self._transactions.recent

    def _end(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        group = fields.text("producerGroup")
        queue_offset = fields.long("tranStateTableOffset")
        physical_offset = fields.long("commitLogOffset")
        fate = _fate(fields.integer("commitOrRollback"))
        fields.text("msgId")
        if fate is None:
            # The producer does not know the fate yet; RocketMQ does not answer that.
            return LATER
        if physical_offset in self._transactions.recent:
            self._ways.end_recent += 1
        else:
            self._ways.end_general += 1
        message, half = self._transactions.look_up(physical_offset)
        self._found.require_publishable(request, peer, message.properties.get(REAL_TOPIC, ""))
        if not fields.boolean("fromTransactionCheck"):
            self._require_in_time(message)
        _require_match(message, group, queue_offset)
        self._decide(message, half, fate, self._told(request, peer))
        return LATER

    def _decide(self, message: StoredMessage, half: Half | None, fate: Fate, told: Told) -> None:
        if half is None:
            self._operators.require_fate(message, fate)
            told(self._transactions.appended_end, None)
        else:
            self._transactions.decide(half, message, fate, told)

    def _require_in_time(self, message: StoredMessage) -> None:
        """A message that asked for a late first check is decided by that, not by a late end."""
        immune_ms = immunity_ms(message)
        if immune_ms is None:
            return
        immune_ms = max(immune_ms, self._settings.config.transaction_timeout_ms)
        if self._clock.now_ms() - message.born_timestamp_ms > immune_ms:
            raise RequestRejected(
                ResponseCode.ILLEGAL_OPERATION,
                f"the transaction is older than its {CHECK_IMMUNITY_TIME_IN_SECONDS}: "
                "wait for the check",
            )

    def _told(self, request: Request, peer: Peer) -> Told:
        """Answers once the decision is as safe as promised, or says why there is none."""

        def told(physical_end: int, error: StoreError | None) -> None:
            if error is not None:
                _log.warning("a transaction of %s is not decided: %s", peer.address, error)
                peer.reply(request, Response(_code_of(error), str(error)))
            elif not request.one_way:
                self._answers.when_safe(
                    peer,
                    physical_end,
                    lambda code: peer.reply(
                        request, Response(code, fields=doubt_fields(code) or None)
                    ),
                )

        return told

    # Operators.

    def handle_resume(self, request: Request, peer: Peer) -> Answer:
        physical_end = self._operators.resume(HeaderFields(request).text("msgId"))
        self._told(request, peer)(physical_end, None)
        return LATER

    def handle_list(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        first, count = fields.integer("offset", 0), fields.integer("limit", PAGE_COUNT)
        if first < 0 or not 1 <= count <= PAGE_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"offset={first} and limit={count}: ask for 1 to {PAGE_COUNT_MAX} from 0 on",
            )
        total = self._operators.open_count()
        body = encode_transactions(self._operators.page(first, count))
        return Response(fields={"total": str(total)}, body=body)

    def handle_decide(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        key, message_id = fields.text("transactionId", ""), fields.text("msgId", "")
        name = fields.text("fate")
        if name not in _FATE_NAMES or not (key or message_id):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"fate={name[:40]!r}: say commit or rollback, and transactionId or msgId",
            )
        told = self._told(request, peer)
        self._operators.decide(key, message_id, _FATE_NAMES[name], told)
        return LATER


def _fate(number: int) -> Fate | None:
    if number == TRANSACTION_NONE:
        return None
    if number not in _FATES:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"commitOrRollback={number}: it is 0 (unknown), 8 (commit) or 12 (rollback)",
        )
    return _FATES[number]


def _require_match(message: StoredMessage, group: str, queue_offset: int) -> None:
    if message.properties.get(PGROUP) != group:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"the half message is not of producer group {group!r}"
        )
    if message.queue_offset != queue_offset:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR,
            f"the half message is at offset {message.queue_offset} of its queue, not at "
            f"tranStateTableOffset={queue_offset}",
        )


def _code_of(error: StoreError) -> int:
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL
    return ResponseCode.SERVICE_NOT_AVAILABLE
