"""Transactions under kills: a producer that ends some, forgets some, and answers checks."""

from __future__ import annotations

import json
from functools import partial

from contrail.model.message_id import decode_offset_message_id
from contrail.model.properties import PGROUP, TRAN_MSG, TRANSACTION_CHECK_TIMES, UNIQ_KEY
from contrail.model.record import decode_record
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request
from tests.history.campaign import Campaign
from tests.history.consumers import AUDITORS, READERS, Consumers
from tests.history.events import Checked, Decision, EndInvoked, Kind, StillOpen
from tests.history.rules_delivery import EXHAUSTED_TOPIC
from tests.history.topics import make_topics

TOPICS = {"paid": 2}
ALL_TOPICS = {**TOPICS, EXHAUSTED_TOPIC: 1}
GROUP = "payers"
_NUMBERS = {Decision.COMMIT: "8", Decision.ROLLBACK: "12", Decision.UNKNOWN: "0"}
# Few, so that many half messages run out of checks.
CHECK_COUNT_MAX = 4
_CHECK_INTERVAL_MS = 30_000
_ROUNDS_MAX = 60
_PAGE_COUNT = 1000
_JUMPS_MS = (1_000, 7_000, 31_000, 61_000, -2_000, -40_000)


class TransactionWorkload:
    """A producer with a plan for each of its half messages, made at the first check."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._random = campaign.random
        self._consumers = Consumers(campaign)
        # The decision for each half message; those never decided stay open.
        self._plans: dict[str, Decision] = {}
        campaign.handle_request = self._take_request
        campaign.after_start = self._introduce

    def run(self, kill_count: int) -> None:
        campaign = self._campaign
        self._introduce()
        make_topics(campaign, TOPICS)
        while campaign.kill_count < kill_count:
            self.send_burst(self._random.randint(1, 30))
            if self._random.random() < 0.5:
                campaign.client.read_for(self._random.uniform(0, 0.05))
            campaign.jump_clock(_JUMPS_MS)
            self._introduce()
            if self._random.random() < 0.3:
                self._consumers.read(READERS, TOPICS)
            campaign.kill_while_busy()
            campaign.jump_clock(_JUMPS_MS, likelihood=0.3)
            campaign.restart()
        self._finish()

    def _introduce(self) -> None:
        producers = [{"groupName": GROUP}]
        body = json.dumps({"clientID": "payer@1", "producerDataSet": producers}).encode()
        answer = self._campaign.client.call(RequestCode.HEART_BEAT, {}, body)
        assert answer is not None and answer.code == ResponseCode.SUCCESS, answer

    # Sending and ending.

    def send_burst(self, count: int) -> None:
        """Half messages, most of which are ended when their acknowledgement comes."""
        for _ in range(count):
            self._send_half()

    def _send_half(self) -> None:
        key = self._campaign.next_key()
        self._plans[key] = self._random.choice(
            (Decision.COMMIT, Decision.COMMIT, Decision.ROLLBACK, Decision.UNKNOWN)
        )
        self._campaign.send(
            Kind.TRANSACTION,
            "paid",
            self._random.randrange(2),
            key=key,
            properties={TRAN_MSG: "true", PGROUP: GROUP},
            then=partial(self._sent, key),
            a=GROUP,
            f="4",
            g=str(self._campaign.clock.now_ms()),
        )

    def _sent(self, key: str, answer: ReceivedResponse) -> None:
        """End most of them at once; the end of some is lost on its way."""
        plan = self._plans[key]
        if plan is Decision.UNKNOWN or self._random.random() < 0.3:
            return
        place = decode_offset_message_id(answer.fields["msgId"]).physical_offset
        self._end(key, plan, answer.fields["queueOffset"], str(place), from_check=False)

    def _end(
        self, key: str, decision: Decision, queue_offset: str, place: str, *, from_check: bool
    ) -> None:
        campaign = self._campaign
        event = EndInvoked(campaign.clock.now_ms(), campaign.next_op(), key, decision)
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": place,
            "commitOrRollback": _NUMBERS[decision],
            "fromTransactionCheck": "true" if from_check else "false",
            "msgId": key,
            "transactionId": key,
        }
        if decision is Decision.UNKNOWN or self._random.random() < 0.4:
            # One-way, as producers do: there is no answer.
            campaign.events.append(event)
            campaign.client.notify(RequestCode.END_TRANSACTION, fields)
        else:
            campaign.invoke(event, RequestCode.END_TRANSACTION, fields)

    # Checks.

    def _take_request(self, request: Request) -> None:
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        message = decode_record(request.body)
        key = message.properties[UNIQ_KEY]
        times = int(message.properties[TRANSACTION_CHECK_TIMES])
        self._campaign.events.append(Checked(self._campaign.clock.now_ms(), key, times))
        plan = self._plans.get(key, Decision.UNKNOWN)
        # Sometimes a producer does not answer, or does not know yet.
        if self._random.random() < 0.3 and times < CHECK_COUNT_MAX:
            return
        queue_offset = request.fields["tranStateTableOffset"]
        place = request.fields["commitLogOffset"]
        self._end(key, plan, queue_offset, place, from_check=True)

    # The end.

    def _finish(self) -> None:
        """Have half messages checked until all decided ones are ended, then list the open ones."""
        for _ in range(_ROUNDS_MAX):
            self._let_it_check()
            self._consumers.read(READERS, ALL_TOPICS)
            if not self._undecided():
                break
        now_ms = self._campaign.clock.now_ms()
        self._campaign.events += [StillOpen(now_ms, key) for key in self._listed()]
        # Decisions stay.
        self._let_it_check()
        self._consumers.drain(ALL_TOPICS, READERS, AUDITORS)

    def _let_it_check(self) -> None:
        campaign = self._campaign
        campaign.settle()
        campaign.advance(ms=_CHECK_INTERVAL_MS + 1_000)
        # A producer without a heartbeat for two minutes is forgotten.
        self._introduce()
        campaign.client.read_for(0.3)
        campaign.settle()

    def _undecided(self) -> bool:
        """Whether a half message that this producer decided is open, or not yet delivered."""
        decided = {key for key, plan in self._plans.items() if plan is not Decision.UNKNOWN}
        return bool(decided & self._listed()) or any(
            self._plans[key] is Decision.COMMIT and not self._has_seen(key)
            for key in self._campaign.acknowledged
        )

    def _has_seen(self, key: str) -> bool:
        return any(self._consumers.has_seen(READERS, topic, key) for topic in ALL_TOPICS)

    def _listed(self) -> set[str]:
        """The half messages that the broker lists as open."""
        found: set[str] = set()
        first, total = 0, 1
        while first < total:
            fields = {"offset": str(first), "limit": str(_PAGE_COUNT)}
            answer = self._campaign.client.call(RequestCode.LIST_TRANSACTIONS, fields)
            assert answer is not None and answer.code == ResponseCode.SUCCESS, answer
            total = int(answer.fields["total"])
            found |= {one["transactionId"] for one in json.loads(answer.body)}
            first += _PAGE_COUNT
        return found
