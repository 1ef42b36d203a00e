"""Request-reply: waiting requests, and the messages sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.client.inbound import Reply
from contrail.client.instance import ClientInstance
from contrail.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)
from contrail.client.outgoing import Outgoing
from contrail.client.request_reply import RequestReply
from contrail.errors import MessageInvalid, NoReply, RouteMissing, SendFailed
from contrail.protocol.codes import RequestCode

QUESTION = Message("questions", b"how much?")
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


class FakeRoute:
    def __init__(self, topic: str, broker_names: list[str]) -> None:
        self.write_queues = tuple(MessageQueue(topic, name, 0) for name in broker_names)


class FakeInstance:
    """Two brokers; counts heartbeats."""

    client_id = "127.0.0.1@1#1"

    def __init__(self) -> None:
        self.inbound = self
        self.routes = SimpleNamespace(routes={"questions": None})
        self.waiting_replies: dict[str, Callable[[Reply], None]] = {}
        self.beat_count = 0
        self.broker_names = ["broker-a", "broker-b"]

    async def route(self, topic: str, *, template: bool = False) -> FakeRoute:
        if not self.broker_names:
            raise RouteMissing("no route", topic=topic)
        return FakeRoute(topic, self.broker_names)

    async def beat(self) -> None:
        self.beat_count += 1


class FakeSender:
    """Keeps sent messages; ``on_send`` may answer, wait or fail."""

    def __init__(self) -> None:
        self.sent: list[tuple[Outgoing, dict[str, Any]]] = []
        self.on_send: Callable[[Outgoing, dict[str, Any]], Awaitable[None]] | None = None

    async def send(self, outgoing: Outgoing, **options: Any) -> SendReceipt:
        self.sent.append((outgoing, options))
        if self.on_send is not None:
            await self.on_send(outgoing, options)
        queue = options.get("queue") or MessageQueue(outgoing.topic, "broker-a", 0)
        return SendReceipt(SendStatus.SEND_OK, outgoing.unique_id, queue, 0)


class World:
    def __init__(self) -> None:
        self.instance = FakeInstance()
        self.sender = FakeSender()
        self.request_reply = RequestReply(
            cast(ClientInstance, self.instance), cast(Any, self.sender), _prepare
        )

    def push_reply(self, correlation_id: str, body: bytes) -> None:
        """Handle a pushed reply as the instance does."""
        wake = self.instance.waiting_replies.pop(correlation_id)
        wake(Reply(REPLY_TOPIC, body, {"CORRELATION_ID": correlation_id}))

    async def answer(self, outgoing: Outgoing, options: object = None) -> None:
        self.push_reply(outgoing.properties["CORRELATION_ID"], b"re: " + outgoing.body)


def _prepare(message: Message) -> Outgoing:
    return Outgoing(message.topic, message.body, dict(message.properties), unique_id="id-1")


def _asked(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="questions",
        body=b"how much?",
        queue=MessageQueue("questions", "broker-b", 1),
        queue_offset=0,
        message_id="id-9",
        offset_message_id="",
        properties=properties,
        reconsume_times=0,
        born_timestamp_ms=1,
        store_timestamp_ms=1,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(cast(Coroutine[Any, Any, None], scenario()))


def test_a_request_names_the_requesting_client_and_gets_its_reply() -> None:
    async def scenario() -> None:
        world = World()
        world.sender.on_send = world.answer
        reply = await world.request_reply.request(QUESTION, timeout_ms=60_000)
        assert reply.body == b"re: how much?"
        ((outgoing, options),) = world.sender.sent
        assert outgoing.properties["REPLY_TO_CLIENT"] == "127.0.0.1@1#1"
        assert outgoing.properties["TTL"] == "60000"
        assert options == {"queue": None, "timeout_ms": 60_000, "retry": "async"}
        assert world.instance.waiting_replies == {}

    run(scenario)


def test_brokers_get_a_heartbeat_before_the_first_request_and_for_new_topics() -> None:
    async def scenario() -> None:
        world = World()

        async def answer(outgoing: Outgoing, options: object) -> None:
            assert world.instance.beat_count > 0
            await world.answer(outgoing)

        world.sender.on_send = answer
        for _ in range(3):
            await world.request_reply.request(QUESTION)
        assert world.instance.beat_count == 1
        await world.request_reply.request(Message("unheard-of", b"?"))
        assert world.instance.beat_count == 2

    run(scenario)


def test_replies_find_their_requests_in_any_order() -> None:
    async def scenario() -> None:
        world = World()
        asking = [
            asyncio.create_task(world.request_reply.request(Message("questions", b"%d" % number)))
            for number in range(20)
        ]
        while len(world.sender.sent) < 20:
            await asyncio.sleep(0)
        for outgoing, _ in reversed(world.sender.sent):
            await world.answer(outgoing)
        replies = await asyncio.gather(*asking)
        assert [reply.body for reply in replies] == [b"re: %d" % number for number in range(20)]
        assert world.instance.waiting_replies == {}

    run(scenario)


def test_no_reply_names_the_topic_and_the_time() -> None:
    async def scenario() -> None:
        world = World()
        with pytest.raises(NoReply, match=r"'questions' within 10 ms: is a consumer"):
            await world.request_reply.request(QUESTION, timeout_ms=10)
        assert world.instance.waiting_replies == {}

    run(scenario)


def test_a_request_that_is_not_sent_in_time_raises_send_timed_out() -> None:
    async def scenario() -> None:
        world = World()

        async def hang(*_: object) -> None:
            await asyncio.Event().wait()

        world.sender.on_send = hang
        with pytest.raises(NoReply, match="the request itself was not sent in that time"):
            await world.request_reply.request(QUESTION, timeout_ms=10)

    run(scenario)


def test_a_request_that_cannot_be_sent_fails_at_once_unless_its_reply_is_there() -> None:
    async def scenario() -> None:
        world = World()
        is_answered = False

        async def fail(outgoing: Outgoing, options: object) -> None:
            if is_answered:
                await world.answer(outgoing)
            raise SendFailed("no broker", topic="questions")

        world.sender.on_send = fail
        with pytest.raises(SendFailed):
            await world.request_reply.request(QUESTION)
        assert world.instance.waiting_replies == {}
        is_answered = True
        assert (await world.request_reply.request(QUESTION)).body == b"re: how much?"

    run(scenario)


def test_a_cancelled_request_leaves_no_waiter() -> None:
    async def scenario() -> None:
        world = World()
        task = asyncio.create_task(world.request_reply.request(QUESTION))
        while not world.sender.sent:
            await asyncio.sleep(0)
        (wake,) = world.instance.waiting_replies.values()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert world.instance.waiting_replies == {}
        wake(Reply(REPLY_TOPIC, b"late", {}))

    run(scenario)


def test_a_queue_that_was_chosen_is_used() -> None:
    async def scenario() -> None:
        world = World()
        world.sender.on_send = world.answer
        queue = MessageQueue("questions", "broker-b", 3)

        async def choose() -> MessageQueue:
            return queue

        await world.request_reply.request(QUESTION, choose_queue=choose)
        assert world.sender.sent[0][1]["queue"] == queue

    run(scenario)


ASKED = {
    "CORRELATION_ID": "c-1",
    "REPLY_TO_CLIENT": "asker@1",
    "TTL": "3000",
    "CLUSTER": "DefaultCluster",
}


def test_a_reply_goes_to_the_broker_that_the_request_came_from() -> None:
    async def scenario() -> None:
        world = World()
        await world.request_reply.reply(_asked(**ASKED), b"forty-two", properties={"lang": "en"})
        ((outgoing, options),) = world.sender.sent
        assert (outgoing.topic, outgoing.body) == (REPLY_TOPIC, b"forty-two")
        assert outgoing.code == RequestCode.SEND_REPLY_MESSAGE_V2
        assert outgoing.properties == {
            "lang": "en",
            "MSG_TYPE": "reply",
            "CORRELATION_ID": "c-1",
            "REPLY_TO_CLIENT": "asker@1",
            "TTL": "3000",
        }
        assert options["queue"] == MessageQueue(REPLY_TOPIC, "broker-b", 0)

    run(scenario)


def test_a_reply_that_its_own_broker_refuses_is_sent_by_the_ordinary_rules() -> None:
    async def scenario() -> None:
        world = World()

        async def fail_there(outgoing: Outgoing, options: dict[str, Any]) -> None:
            if options.get("queue") is not None:
                raise SendFailed("broker-b is gone", topic=REPLY_TOPIC)

        world.sender.on_send = fail_there
        await world.request_reply.reply(_asked(**ASKED), b"x")
        assert [options.get("queue") is None for _, options in world.sender.sent] == [False, True]

    run(scenario)


@pytest.mark.parametrize("broker_names", [[], ["broker-a"]])
def test_a_reply_topic_without_that_broker_is_sent_to_as_any_other(broker_names: list[str]) -> None:
    async def scenario() -> None:
        world = World()
        world.instance.broker_names = broker_names
        await world.request_reply.reply(_asked(**ASKED), b"x")
        ((_, options),) = world.sender.sent
        assert options.get("queue") is None

    run(scenario)


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
def test_a_message_that_is_no_request_cannot_be_replied_to(missing: str) -> None:
    async def scenario() -> None:
        world = World()
        asked = {name: value for name, value in ASKED.items() if name != missing}
        with pytest.raises(MessageInvalid, match=f"id-9 of topic 'questions'.*{missing}"):
            await world.request_reply.reply(_asked(**asked), b"x")
        assert world.sender.sent == []

    run(scenario)
