"""The client's transactions against a running broker, whose clock the test moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator

import pytest

from contrail.client.message import Message, ReceivedMessage
from contrail.client.producer import Producer
from contrail.client.transactions import HalfMessage, TransactionState
from contrail.clock import ManualClock
from contrail.errors import ConfigError, MessageInvalid
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages, route

TOPIC, GROUP = "orders", "payers"
UNKNOWN, COMMIT, ROLLBACK = (
    TransactionState.UNKNOWN,
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
)
PATIENCE_S = 60.0


class Ledger:
    """A listener whose local transactions end as the body of the message says."""

    def __init__(self, checked: TransactionState = COMMIT) -> None:
        self.executed: list[tuple[str, object]] = []
        self.checked: list[str] = []
        self._answer = checked

    def execute(self, message: HalfMessage, arg: object) -> TransactionState:
        self.executed.append((message.transaction_id, arg))
        return TransactionState[message.body.decode()]

    async def check(self, message: ReceivedMessage) -> TransactionState:
        assert (message.topic, message.properties["PGROUP"]) == (TOPIC, GROUP)
        self.checked.append(message.message_id)
        return self._answer


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        Asker(running).make_topic(TOPIC, read=1, write=1)
        eventually(lambda: route(running, TOPIC) is not None, "the topic's route")
        yield running


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    """The one cluster; transactions that an earlier test left open are ended first."""
    asker = Asker(shared)
    for one in _listed(asker):
        fields = {"transactionId": str(one["transactionId"]), "fate": "rollback"}
        asker.done(RequestCode.DECIDE_TRANSACTION, fields)
    return shared


def _listed(asker: Asker) -> list[dict[str, object]]:
    answer = asker.done(RequestCode.LIST_TRANSACTIONS, {"limit": "1000"})
    found: list[dict[str, object]] = json.loads(answer.body)
    return found


class Reader:
    """The messages that consumers get from now on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._asker = Asker(cluster)
        self._start = len(self._asker.bodies(TOPIC))

    def bodies(self) -> list[bytes]:
        return self._asker.bodies(TOPIC)[self._start :]

    def last_properties(self) -> dict[str, str]:
        place = self._start + len(self.bodies()) - 1
        return messages(self._asker.pull(TOPIC, place))[0].properties

    def open_ids(self) -> list[object]:
        return [one["transactionId"] for one in _listed(self._asker)]

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait beside the loop, with a deadline."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await asyncio.to_thread(is_so):
                    await asyncio.sleep(0.005)
        except TimeoutError:
            pytest.fail(f"waited in vain: {what}")

    async def until_ended(self, transaction_id: str) -> None:
        await self.until(lambda: transaction_id not in self.open_ids(), "the end is stored")


def _producer(cluster: LocalCluster, **options: object) -> Producer:
    return Producer(GROUP, cluster.namesrv, **options)  # type: ignore[arg-type]


async def _move_until(
    cluster: LocalCluster, reader: Reader, is_so: Callable[[], bool], what: str
) -> None:
    """Move the broker's clock on until a condition holds."""

    def moved() -> bool:
        cluster.advance(ms=1_000)
        return is_so()

    await reader.until(moved, what)


@pytest.mark.parametrize("state", [COMMIT, ROLLBACK])
def test_only_committed_messages_of_the_listener_are_delivered(
    cluster: LocalCluster, state: TransactionState
) -> None:
    async def scenario() -> None:
        reader, ledger = Reader(cluster), Ledger()
        async with _producer(cluster, transaction_listener=ledger) as producer:
            message = Message(TOPIC, state.name.encode(), tags="t", keys=["k"])
            found = await producer.send_in_transaction(message, "an argument")
            assert found.state is state
            transaction_id = found.receipt.message_id
            assert found.receipt.transaction_id == transaction_id
            assert ledger.executed == [(transaction_id, "an argument")]
            await reader.until_ended(transaction_id)
        assert reader.bodies() == ([b"COMMIT"] if state is COMMIT else [])
        if state is COMMIT:
            properties = reader.last_properties()
            assert (properties["TAGS"], properties["KEYS"]) == ("t", "k")
            assert properties["UNIQ_KEY"] == transaction_id
        assert ledger.checked == []

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [COMMIT, ROLLBACK])
def test_an_unknown_transaction_is_decided_by_the_check(
    cluster: LocalCluster, answer: TransactionState
) -> None:
    async def scenario() -> None:
        reader, ledger = Reader(cluster), Ledger(checked=answer)
        async with _producer(cluster, transaction_listener=ledger) as producer:
            found = await producer.send_in_transaction(Message(TOPIC, b"UNKNOWN"))
            transaction_id = found.receipt.message_id
            assert reader.open_ids() == [transaction_id]
            await _move_until(cluster, reader, lambda: not reader.open_ids(), "the answer")
        assert set(ledger.checked) == {transaction_id}
        assert reader.bodies() == ([b"UNKNOWN"] if answer is COMMIT else [])

    asyncio.run(scenario())


def test_the_body_of_a_transaction_decides(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        reader = Reader(cluster)
        async with _producer(cluster) as producer:
            async with producer.transaction(Message(TOPIC, b"kept")) as kept:
                assert reader.open_ids() == [kept.transaction_id]
                assert reader.bodies() == []
            await reader.until_ended(kept.transaction_id)
            with pytest.raises(ZeroDivisionError):
                async with producer.transaction(Message(TOPIC, b"raised")):
                    _ = 1 / 0
            async with producer.transaction(Message(TOPIC, b"dropped")) as dropped:
                dropped.rollback()
            await reader.until(lambda: not reader.open_ids(), "both are rolled back")
        assert reader.bodies() == [b"kept"]

    asyncio.run(scenario())


def test_a_check_during_the_body_waits_and_one_after_it_calls_the_function(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        reader = Reader(cluster)
        asked: list[str] = []

        def check(message: ReceivedMessage) -> TransactionState:
            asked.append(message.message_id)
            return COMMIT

        def check_count() -> object:
            (one,) = _listed(Asker(cluster))
            return one["checks"]

        async with _producer(cluster) as producer:
            async with producer.transaction(Message(TOPIC, b"slow"), check=check) as tx:
                await _move_until(cluster, reader, lambda: check_count() == 1, "a question")
                tx.unknown()
            assert asked == []
            assert reader.open_ids() == [tx.transaction_id]
            await _move_until(cluster, reader, lambda: not reader.open_ids(), "the answer")
        assert set(asked) == {tx.transaction_id}
        assert reader.bodies() == [b"slow"]

    asyncio.run(scenario())


def test_a_later_process_answers_for_one_that_died(cluster: LocalCluster) -> None:
    reader, ledger = Reader(cluster), Ledger(checked=COMMIT)

    async def first_life() -> None:
        left = Message(TOPIC, b"left")
        async with _producer(cluster) as producer, producer.transaction(left) as tx:
            tx.unknown()

    async def second_life() -> None:
        async with _producer(cluster, transaction_checker=ledger.check) as producer:
            await producer.publish_queues(TOPIC)
            await _move_until(cluster, reader, lambda: not reader.open_ids(), "the answer")

    asyncio.run(first_life())
    asyncio.run(second_life())
    assert reader.bodies() == [b"left"]


def test_a_lost_commit_is_answered_when_the_broker_checks(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        reader = Reader(cluster)
        async with _producer(cluster) as producer:
            await producer.send(Message(TOPIC, b"first"))
            async with producer.transaction(Message(TOPIC, b"committed")) as tx:
                # The connection breaks just before the end; the route is gone with it.
                instance = producer._opened().instance
                address = instance.master_of(tx.receipt.queue.broker_name)
                route = instance.routes.routes[TOPIC]
                del instance.routes.routes[TOPIC]
                instance.routes.drop_unused_brokers()
            assert reader.open_ids() == [tx.transaction_id]
            instance.routes.put(route)
            assert instance.master_of(tx.receipt.queue.broker_name) == address
            await _move_until(cluster, reader, lambda: not reader.open_ids(), "the answer")
        assert reader.bodies() == [b"first", b"committed"]

    asyncio.run(scenario())


@pytest.mark.proves("client.producer.transactions")
def test_invalid_transactions_are_refused_before_a_message_is_sent(
    cluster: LocalCluster,
) -> None:
    async def scenario() -> None:
        reader = Reader(cluster)
        async with _producer(cluster) as producer:
            with pytest.raises(ConfigError, match="transaction_listener"):
                await producer.send_in_transaction(Message(TOPIC, b"x"))
            for delayed in (Message(TOPIC, b"x", delay_level=1), Message(TOPIC, b"x", delay=5)):
                with pytest.raises(MessageInvalid, match="both delayed and part"):
                    producer.transaction(delayed)
        assert reader.open_ids() == []

    asyncio.run(scenario())


def test_large_and_immune_messages_come_through(cluster: LocalCluster) -> None:
    async def scenario() -> None:
        reader, ledger = Reader(cluster), Ledger()
        body = b"0123456789" * 10_000
        properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600", "地区": "上海"}
        async with _producer(cluster, transaction_listener=ledger) as producer:
            async with producer.transaction(Message(TOPIC, body, properties=properties)) as tx:
                pass
            await reader.until_ended(tx.transaction_id)
        assert reader.last_properties().items() >= properties.items()
        # The raw record is still compressed.
        assert len(reader.bodies()[-1]) < len(body) / 10

    asyncio.run(scenario())
