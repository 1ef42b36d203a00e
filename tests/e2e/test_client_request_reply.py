"""The client's request-reply through running brokers: one client asks, another one answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from contrail.client.decoding import received_messages
from contrail.client.message import Message, ReceivedMessage
from contrail.client.producer import Producer
from contrail.errors import MessageInvalid, NoReply, SendFailed
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, route
from tests.e2e.raw_client import pull_fields

TIMEOUT_MS = 60_000
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        for number in range(2):
            Asker(running, number).make_topic("questions", read=1, write=1)
        eventually(lambda: _broker_count(running) == 2, "the topic's route")
        yield running


def _broker_count(cluster: LocalCluster) -> int:
    found = route(cluster, "questions")
    return len(found.queues) if found is not None else 0


class Answerer:
    """Consumes questions from every broker, and answers them with a client of its own."""

    def __init__(self, cluster: LocalCluster, topic: str = "questions") -> None:
        self._topic = topic
        self._brokers = [(Asker(cluster, number), number) for number in range(2)]
        self._producer = Producer("answerers", cluster.namesrv, instance_name="answerer")
        self._places = {asker.broker.name: self._end(asker) for asker, _ in self._brokers}

    def _end(self, asker: Asker) -> int:
        fields = {"topic": self._topic, "queueId": "0"}
        return int(asker.done(RequestCode.GET_MAX_OFFSET, fields).fields["offset"])

    def questions(self) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for asker, _ in self._brokers:
            name = asker.broker.name
            fields = pull_fields(self._topic, self._places[name], sysFlag="4", queueId="0")
            answer = asker.ask(RequestCode.PULL_MESSAGE, fields)
            new = list(received_messages(answer.body, name))
            self._places[name] += len(new)
            found += new
        return found

    async def answer_forever(self) -> None:
        while True:
            for question in await asyncio.to_thread(self.questions):
                await self._producer.reply(question, b"re: " + question.body)
            await asyncio.sleep(0.005)

    async def reply(self, question: ReceivedMessage, body: bytes) -> None:
        await self._producer.reply(question, body)

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Answerer]:
        async with self._producer:
            yield self

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        async with self.started():
            task = asyncio.create_task(self.answer_forever())
            yield
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def test_a_question_is_answered(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with Producer("askers", cluster.namesrv) as producer, Answerer(cluster).answering():
            reply = await producer.request(Message("questions", b"one?"), timeout_ms=TIMEOUT_MS)
            assert reply.properties["REPLY_TO_CLIENT"] == producer.client_id
        assert reply.body == b"re: one?"
        assert reply.topic == REPLY_TOPIC
        assert reply.properties["MSG_TYPE"] == "reply"

    asyncio.run(scenario())


@pytest.mark.proves("client.producer.request-reply")
def test_many_questions_at_once_get_each_their_own_answer(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with Producer("askers", cluster.namesrv) as producer, Answerer(cluster).answering():
            asking = (
                producer.request(Message("questions", b"%d?" % number), timeout_ms=TIMEOUT_MS)
                for number in range(50)
            )
            replies = await asyncio.gather(*asking)
        assert [reply.body for reply in replies] == [b"re: %d?" % number for number in range(50)]

    asyncio.run(scenario())


def test_a_large_reply_is_compressed_on_the_way_and_whole_on_arrival(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        body = b"0123456789" * 10_000
        async with Producer("askers", cluster.namesrv) as producer, Answerer(cluster).answering():
            reply = await producer.request(Message("questions", body), timeout_ms=TIMEOUT_MS)
        assert reply.body == b"re: " + body

    asyncio.run(scenario())


def test_a_chosen_queue_gets_the_question(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with Producer("askers", cluster.namesrv) as producer, Answerer(cluster).answering():
            for queue in await producer.publish_queues("questions"):
                message = Message("questions", queue.broker_name.encode())
                reply = await producer.request(message, queue=queue, timeout_ms=TIMEOUT_MS)
                assert reply.body == b"re: " + queue.broker_name.encode()

    asyncio.run(scenario())


def test_a_request_without_a_replying_consumer_raises_no_reply(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        async with Producer("askers", cluster.namesrv) as producer:
            with pytest.raises(NoReply, match="'questions' within 3000 ms"):
                await producer.request(Message("questions", b"anybody?"), timeout_ms=3_000)

    asyncio.run(scenario())


def test_a_late_reply_is_dropped_and_one_to_a_client_that_left_fails(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        answerer = Answerer(cluster)
        async with answerer.started():
            async with Producer("askers", cluster.namesrv) as producer:
                with pytest.raises(NoReply):
                    await producer.request(Message("questions", b"quick?"), timeout_ms=3_000)
                (question,) = answerer.questions()
                await answerer.reply(question, b"too late")
            with pytest.raises(SendFailed, match=r"DefaultCluster_REPLY_TOPIC"):
                await answerer.reply(question, b"much too late")

    asyncio.run(scenario())


def test_an_ordinary_message_cannot_be_replied_to(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        answerer = Answerer(cluster)
        async with Producer("askers", cluster.namesrv) as producer:
            await producer.send(Message("questions", b"no question"))
            (message,) = answerer.questions()
            with pytest.raises(MessageInvalid, match="is no request"):
                await producer.reply(message, b"what?")

    asyncio.run(scenario())
