"""Replies: pushed to their requesters, kept, and answered with the outcome of the push."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

import pytest

from contrail.broker.handlers import replies
from contrail.broker.handlers.replies import ReplyHandlers
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.services.unique_ids import UniqueIds
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.placement import TimerRules
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.recall_seal import KEY_BYTES, RecallKey, RecallSeal
from contrail.broker.state.stats import BrokerStats
from contrail.errors import CallFailed, DiskFull, RequestRejected
from contrail.model.message import MessageDraft
from contrail.model.properties import decode_properties, encode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, Response
from contrail.protocol.sends import LETTERS
from contrail.store.services.append import AppendedRun
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer, received
from tests.unit.broker.client_setup import Setup, request

STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
PLACE = {"msgId": "7F00000100002A9F0000000000002328", "queueId": "0", "queueOffset": "4"}
PROPERTIES = {
    "MSG_TYPE": "reply",
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker@1",
    "TTL": "3000",
    "UNIQ_KEY": "K1",
}


class _Log:
    def __init__(self) -> None:
        self.appended: list[MessageDraft] = []
        self.refusal: Exception | None = None

    def append(self, drafts: list[MessageDraft]) -> AppendedRun:
        if self.refusal is not None:
            raise self.refusal
        self.appended += drafts
        return AppendedRun([4], [9000], 5, 9100)


class _SilentPeer(FakePeer):
    """Never answers a call."""

    async def call(
        self, code: int, fields: Mapping[str, str], body: bytes = b"", *, timeout_ms: int
    ) -> ReceivedResponse:
        await asyncio.Event().wait()
        raise AssertionError


class _Broker(Setup):
    def __init__(self, *, waits: bool = False, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.log = _Log()
        self.stats = BrokerStats("c", started_ms=0)
        self.acknowledgements = Acknowledgements(self.clock, waits=waits, disk_timeout_ms=5000)
        deliveries = Deliveries(self.log, self.stats, on_appended=lambda: None)  # type: ignore[arg-type]
        admission = SendAdmission(
            self.settings,
            self.topics,
            self.groups,
            QueueLocks(),
            UniqueIds(b"\x7f\x00\x00\x01", self.clock),
            self.clock,
            level_max=18,
            timers=TimerRules(),
            seal=RecallSeal(RecallKey(b"k" * KEY_BYTES, 0), secrets.token_bytes),
        )
        self.handlers = ReplyHandlers(
            settings=self.settings,
            admission=admission,
            producers=self.producers,
            deliveries=deliveries,
            answers=self.acknowledgements,
            clock=self.clock,
            address="127.0.0.1:10911",
            store_host=STORE_HOST,
        )

    def connect(self, client_id: str = "asker@1", peer: FakePeer | None = None) -> FakePeer:
        peer = peer or FakePeer("10.0.0.9:4000")
        self.producers.register("askers", ClientChannel(peer, client_id, "JAVA", 479, 0))
        return peer

    def answer(self, reply: Request, *, before: Callable[[], None] = lambda: None) -> Response:
        """The final answer to the responder; ``before`` runs while the answer waits."""

        async def ask() -> Response:
            responder = FakePeer("10.0.0.5:6000")
            answer = self.handlers.table()[reply.code](reply, responder)
            if isinstance(answer, Response):
                return answer
            assert answer is LATER
            while self.handlers._pushes:
                await asyncio.sleep(0)
            before()
            await self.handlers.close()
            ((replied, response),) = responder.replies
            assert replied is reply
            return response

        return asyncio.run(ask())

    def kept(self) -> MessageDraft:
        (draft,) = self.log.appended
        return draft


def _reply(
    properties: Mapping[str, str] = PROPERTIES,
    *,
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2,
    body: bytes = b"the reply",
    **changes: object,
) -> Request:
    fields = {
        "producerGroup": "answerers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 0,
        "sysFlag": 0,
        "bornTimestamp": 17,
        "flag": 5,
        "properties": encode_properties(properties).decode(),
        "reconsumeTimes": 0,
        **changes,
    }
    if code == RequestCode.SEND_REPLY_MESSAGE_V2:
        letters = {name: letter for letter, name in LETTERS.items()}
        fields = {letters[name]: value for name, value in fields.items()}
    return request(code, fields, body)


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]
)
def test_a_reply_is_pushed_to_its_requester_and_kept(code: int) -> None:
    broker = _Broker()
    asker = broker.connect()
    asker.answers = [received(0)]
    assert broker.answer(_reply(code=code)) == Response(0, None, REGION | PLACE)
    ((pushed_code, fields, body),) = asker.called
    assert (pushed_code, body, asker.timeouts_ms) == (326, b"the reply", [10_000])
    properties = decode_properties(fields.pop("properties").encode())
    assert properties == {**PROPERTIES, **REGION, "PUSH_REPLY_TIME": "1000000"}
    assert fields == {
        "producerGroup": "answerers",
        "topic": REPLY_TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "17",
        "flag": "5",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "10.0.0.5:6000",
        "storeHost": "127.0.0.1:10911",
        "storeTimestamp": "1000000",
    }
    kept = broker.kept()
    assert (kept.topic, kept.body, kept.flag) == (REPLY_TOPIC.encode(), b"the reply", 5)
    # The time of the push is for the requester only.
    assert decode_properties(kept.properties) == {**PROPERTIES, **REGION}


def test_replies_that_are_not_kept_are_answered_with_a_place_that_means_nothing() -> None:
    broker = _Broker(replies_stored=False)
    broker.connect().answers = [received(0)]
    place = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
    assert broker.answer(_reply()) == Response(0, None, REGION | place)
    assert not broker.log.appended


def test_a_reply_to_nobody_is_kept_but_fails() -> None:
    broker = _Broker()
    anonymous = {name: value for name, value in PROPERTIES.items() if name != "REPLY_TO_CLIENT"}
    response = broker.answer(_reply(anonymous))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "REPLY_TO_CLIENT" in (response.remark or "")
    assert response.fields == REGION | PLACE
    assert broker.kept().body == b"the reply"


@pytest.mark.proves("broker.edges.unknown-clients")
def test_replies_to_unknown_clients_are_told_in_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = _Broker()
    for number in range(100):
        response = broker.answer(_reply({"REPLY_TO_CLIENT": f"nobody@{number}"}))
        assert f"nobody@{number}" in (response.remark or "")
    assert caplog.text.count("is not connected") == 1
    broker.clock.advance(ms=60_000)
    broker.answer(_reply({"REPLY_TO_CLIENT": "nobody@again"}))
    assert "and 99 like it" in caplog.text


def test_a_requester_that_has_gone_is_named() -> None:
    broker = _Broker()
    peer = broker.connect()
    broker.producers.close(peer)
    response = broker.answer(_reply())
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "'asker@1' is not connected" in (response.remark or "")
    assert not peer.called


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (CallFailed("10.0.0.9:4000 did not answer request 326 within 10000 ms"), "10000 ms"),
        (received(1, remark="no such request"), "no such request"),
    ],
)
def test_a_push_that_fails_is_told(answer: ReceivedResponse | Exception, said: str) -> None:
    broker = _Broker()
    broker.connect().answers = [answer]
    response = broker.answer(_reply())
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert said in (response.remark or "")
    assert broker.kept().body == b"the reply"


def test_a_reply_that_cannot_be_kept_has_still_arrived() -> None:
    broker = _Broker()
    broker.log.refusal = DiskFull("the disk is full")
    broker.connect().answers = [received(0)]
    response = broker.answer(_reply())
    assert (response.code, (response.fields or {})["msgId"]) == (ResponseCode.SUCCESS, "0")


def test_under_sync_flush_the_responder_waits_for_the_disk() -> None:
    broker = _Broker(waits=True)
    broker.connect().answers = [received(0)]

    def flush() -> None:
        assert len(broker.acknowledgements) == 1
        broker.acknowledgements.reached(9100)

    assert broker.answer(_reply(), before=flush) == Response(0, None, REGION | PLACE)


def test_a_kept_reply_is_a_normal_message_with_any_fields() -> None:
    broker = _Broker()
    asker = broker.connect()
    asker.answers = [received(0)]
    extra = {"DELAY": "3", "TIMER_DELAY_MS": "5", "TRAN_MSG": "true", "INNER_NUM": "2"}
    assert broker.answer(_reply({**PROPERTIES, **extra}, sysFlag=0x305)).code == 0
    kept = broker.kept()
    assert (kept.topic, kept.sys_flag) == (REPLY_TOPIC.encode(), 0x301)
    assert not extra.keys() & decode_properties(kept.properties).keys()
    # The requester gets it as it was sent.
    assert asker.called[0].fields["sysFlag"] == str(0x305)
    assert "DELAY\x013" in asker.called[0].fields["properties"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "bad name"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"topic": "unknown", "defaultTopic": "none"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 1}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_reply_passes_the_checks_of_a_send(changes: dict[str, object], code: int) -> None:
    broker = _Broker()
    asker = broker.connect()
    response = broker.answer(_reply(**changes))  # type: ignore[arg-type]
    assert (response.code, response.fields) == (code, REGION)
    assert not asker.called and not broker.log.appended


@pytest.mark.parametrize("changes", [{"queueId": "x"}, {"body": b""}])
def test_a_reply_that_cannot_be_read_is_refused_without_fields(changes: dict[str, object]) -> None:
    broker = _Broker()
    asker = broker.connect()
    with pytest.raises(RequestRejected) as refusal:
        broker.answer(_reply(**changes))  # type: ignore[arg-type]
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
    assert not asker.called and not broker.log.appended


def test_a_requester_that_answers_nothing_uses_up_only_its_own_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replies, "PUSHES_PER_REQUESTER_MAX", 1)
    monkeypatch.setattr(replies, "PUSHES_MAX", 2)
    broker = _Broker()
    for client in ("a", "b", "c"):
        broker.connect(client, _SilentPeer())

    async def ask() -> list[int]:
        codes: list[int] = []
        for client in ("a", "a", "b", "c"):
            responder = FakePeer()
            reply = _reply({**PROPERTIES, "REPLY_TO_CLIENT": client})
            answer = broker.handlers.handle_reply(reply, responder)
            if isinstance(answer, Response):
                codes.append(answer.code)
            else:
                codes += [response.code for _, response in responder.replies] or [-1]
        await broker.handlers.close()
        await asyncio.sleep(0)
        assert not broker.handlers._pushes and not broker.handlers._pushes_to
        return codes

    waiting, failed, busy = -1, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY
    assert asyncio.run(ask()) == [waiting, failed, waiting, busy]


class _ChokedPeer(_SilentPeer):
    is_choked = True


def _codes_while_waiting(broker: _Broker, clients: str) -> list[int]:
    """The codes of replies of 1000 bytes, one to each; -1: it waits for its client."""

    async def ask() -> list[int]:
        codes: list[int] = []
        for client in clients:
            responder = FakePeer()
            reply = _reply({**PROPERTIES, "REPLY_TO_CLIENT": client}, body=bytes(1000))
            answer = broker.handlers.handle_reply(reply, responder)
            if isinstance(answer, Response):
                codes.append(answer.code)
            else:
                codes += [response.code for _, response in responder.replies] or [-1]
        await broker.handlers.close()
        await asyncio.sleep(0)
        return codes

    return asyncio.run(ask())


def test_replies_that_wait_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "PUSH_BYTES_PER_REQUESTER_MAX", 2_500)
    monkeypatch.setattr(replies, "PUSH_BYTES_MAX", 4_800)
    broker = _Broker()
    for client in "abc":
        broker.connect(client, _SilentPeer())
    failed, busy = ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY
    assert _codes_while_waiting(broker, "aaabbc") == [-1, -1, failed, -1, -1, busy]
    # Replies that ended count no more.
    assert _codes_while_waiting(broker, "aabb") == [-1, -1, -1, -1]
    assert not broker.handlers._push_bytes and not broker.handlers._push_bytes_to


def test_nothing_is_pushed_to_a_client_that_does_not_read() -> None:
    broker = _Broker()
    broker.connect("a", _ChokedPeer())
    assert _codes_while_waiting(broker, "a") == [ResponseCode.SYSTEM_ERROR]
    assert not broker.handlers._pushes
