"""Questions passed on to clients, and queue locks over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from contrail.broker.handlers import relays
from contrail.broker.handlers.locks import LockHandlers
from contrail.broker.handlers.relays import RelayHandlers
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.queue_locks import QueueLocks
from contrail.errors import CallFailed, RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.message_id import encode_offset_message_id
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.bodies.locks import LockRequest, decode_locked_queues, encode_lock_request
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import MessageQueue
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer, received
from tests.unit.broker.client_setup import Setup, request

RECORD_ID = encode_offset_message_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", 4096)


class _Broker(Setup):
    def __init__(self) -> None:
        super().__init__()
        self.handlers = RelayHandlers(
            consumers=self.consumers,
            groups=self.group_table,
            topics=self.topic_table,
            store=self.store,
            settings=self.settings,
        )

    def connect(self, client_id: str, *, version: int = 479) -> FakePeer:
        peer = FakePeer()
        channel = ClientChannel(peer, client_id, "JAVA", version, 0)
        self.consumers.register(ConsumerData("g"), channel)
        return peer

    def answer(self, wanted: Request) -> Response:
        """The reply to a parked request, once its client has answered."""

        async def ask() -> Response:
            admin = FakePeer()
            assert self.handlers.table()[wanted.code](wanted, admin) is LATER
            while not admin.replies:
                await asyncio.sleep(0)
            await self.handlers.close()
            ((replied, response),) = admin.replies
            assert replied is wanted
            return response

        return asyncio.run(ask())

    def refusal(self, wanted: Request) -> str:
        return _refusal(
            ResponseCode.SYSTEM_ERROR,
            lambda: self.handlers.table()[wanted.code](wanted, FakePeer()),
        )


def _refusal(code: int, call: Callable[[], object]) -> str:
    with pytest.raises(RequestRejected) as caught:
        call()
    assert caught.value.code == code
    return caught.value.remark


def _timeout() -> CallFailed:
    failure = CallFailed("no answer within 10000 ms")
    failure.__cause__ = TimeoutError()
    return failure


RUNNING_INFO = request(
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    {"consumerGroup": "g", "clientId": "c1", "jstackEnable": True},
)
CONSUME = request(
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    {"consumerGroup": "g", "clientId": "c1", "msgId": RECORD_ID, "topic": "orders"},
)
STATUS = request(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "g"}
)


def test_running_info_is_asked_of_the_client_and_its_answer_passed_on() -> None:
    broker = _Broker()
    client = broker.connect("c1")
    client.answers = [received(0, body=b"{info}", fields={"x": "y"})]
    assert broker.answer(RUNNING_INFO) == Response(0, None, {"x": "y"}, b"{info}")
    assert client.called == [(307, RUNNING_INFO.fields, b"")]
    assert client.timeouts_ms == [10_000]


def test_a_clients_own_error_is_passed_on() -> None:
    broker = _Broker()
    broker.connect("c1").answers = [received(1, remark="group unknown")]
    assert broker.answer(RUNNING_INFO) == Response(1, "group unknown")


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (_timeout(), ResponseCode.CONSUME_MSG_TIMEOUT),
        (CallFailed("the connection broke"), ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_client_that_does_not_answer_is_reported(failure: CallFailed, code: int) -> None:
    broker = _Broker()
    broker.connect("c1").answers = [failure]
    response = broker.answer(RUNNING_INFO)
    assert response.code == code
    assert response.remark is not None
    assert "c1 did not answer" in response.remark


def test_an_offline_or_old_client_is_not_asked() -> None:
    broker = _Broker()
    assert "offline" in broker.refusal(RUNNING_INFO)
    client = broker.connect("c1", version=61)
    assert "too old" in broker.refusal(RUNNING_INFO)
    assert client.called == []


def test_consuming_directly_sends_the_record_and_the_brokers_fields() -> None:
    broker = _Broker()
    broker.store.records[4096] = b"record"
    broker.topic_table.put(TopicConfig("orders", sys_flag=3), 1)
    broker.group_table.put(SubscriptionGroupConfig("g", sys_flag=2), 1)
    client = broker.connect("c1")
    client.answers = [received(0, body=b"{result}")]
    assert broker.answer(CONSUME).body == b"{result}"
    (sent,) = client.called
    assert (sent.code, sent.body) == (309, b"record")
    assert sent.fields == CONSUME.fields | {
        "brokerName": "broker-a",
        "topicSysFlag": "3",
        "groupSysFlag": "2",
    }


@pytest.mark.parametrize("message_id", ["", "no id", RECORD_ID])
def test_consuming_directly_needs_a_stored_message(message_id: str) -> None:
    broker = _Broker()
    broker.connect("c1")
    wanted = CONSUME._replace(fields=CONSUME.fields | {"msgId": message_id})
    assert f"no message {message_id!r} is stored here" in broker.refusal(wanted)


def test_a_groups_status_is_collected_from_its_clients() -> None:
    broker = _Broker()
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
    good, silent, broken, failing = (broker.connect(name) for name in ("c1", "c2", "c3", "c4"))
    good.answers = [received(0, body=b'{"messageQueueTable":{' + queue + b":7}}")]
    silent.answers = [_timeout()]
    broken.answers = [received(0, body=b"no json")]
    failing.answers = [received(1)]
    assert broker.answer(STATUS).body == (
        b'{"consumerTable":{"c1":{' + queue + b':7}},"messageQueueTable":{}}'
    )
    assert good.called == [(221, {"topic": "orders", "group": "g"}, b"")]


def test_one_client_may_be_asked_for_its_status_alone() -> None:
    broker = _Broker()
    first, second = broker.connect("c1"), broker.connect("c2")
    second.answers = [received(0, body=b'{"messageQueueTable":{}}')]
    wanted = STATUS._replace(fields=STATUS.fields | {"clientAddr": "c2"})
    assert broker.answer(wanted).body == b'{"consumerTable":{"c2":{}},"messageQueueTable":{}}'
    assert first.called == []


def test_a_status_needs_clients_that_are_new_enough() -> None:
    broker = _Broker()
    assert "no consumer of group 'g'" in broker.refusal(STATUS)
    broker.connect("c1", version=27)
    assert "too old" in broker.refusal(STATUS)


def test_waiting_relays_are_ended_at_the_stop() -> None:
    broker = _Broker()
    client = broker.connect("c1")

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    client.call = never  # type: ignore[assignment,method-assign]

    async def ask_and_stop() -> list[tuple[Request, Response]]:
        admin = FakePeer()
        assert broker.handlers.handle_running_info(RUNNING_INFO, admin) is LATER
        await asyncio.sleep(0)
        await broker.handlers.close()
        return admin.replies

    assert asyncio.run(ask_and_stop()) == []


def test_a_bounded_number_of_questions_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "RELAYS_MAX", 0)
    broker = _Broker()
    client = broker.connect("c1")
    remark = _refusal(
        ResponseCode.SYSTEM_BUSY,
        lambda: broker.handlers.handle_running_info(RUNNING_INFO, FakePeer()),
    )
    assert "ask later" in remark
    assert client.called == []


def test_an_unforeseen_failure_is_still_answered(caplog: pytest.LogCaptureFixture) -> None:
    broker = _Broker()
    broker.connect("c1").answers = [RuntimeError("surprise")]
    response = broker.answer(RUNNING_INFO)
    assert (response.code, response.remark) == (1, "the broker failed: surprise")
    assert "surprise" in caplog.text


@pytest.mark.proves("broker.clients.queue-locks")
def test_queues_are_locked_and_unlocked_over_the_wire() -> None:
    setup = Setup()
    setup.group_table.put(SubscriptionGroupConfig("g"), 1)
    handlers = LockHandlers(
        locks=QueueLocks(),
        groups=setup.group_table,
        topics=setup.topic_table,
        broker_name="broker-a",
        clock=setup.clock,
        names=setup.topics.names,
    )
    queue = MessageQueue("orders", "broker-a", 0)

    def ask(code: int, client_id: str) -> Response:
        body = encode_lock_request(LockRequest("g", client_id, (queue,)))
        response = handlers.table()[code](request(code, {}, body), FakePeer())
        assert isinstance(response, Response)
        return response

    def locked(client_id: str) -> tuple[MessageQueue, ...]:
        body = ask(RequestCode.LOCK_BATCH_MQ, client_id).body
        assert isinstance(body, bytes)
        return tuple(decode_locked_queues(body))

    assert locked("c1") == (queue,)
    assert locked("c2") == ()
    assert ask(RequestCode.UNLOCK_BATCH_MQ, "c2") == Response()
    assert locked("c2") == ()
    ask(RequestCode.UNLOCK_BATCH_MQ, "c1")
    assert locked("c2") == (queue,)
    setup.clock.advance(ms=60_001)
    assert locked("c1") == (queue,)
