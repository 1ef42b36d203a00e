"""Transactions: messages sent, the order of calls, and answers to checks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendReceipt,
    SendStatus,
)
from contrail.client.outgoing import Outgoing
from contrail.client.sides import TransactionCheck
from contrail.client.state.local_transactions import LocalTransactions
from contrail.client.state.routes import RouteTable
from contrail.client.transactions import (
    Checker,
    HalfMessage,
    TransactionListener,
    Transactions,
    TransactionState,
)
from contrail.errors import (
    BrokerUnknown,
    ClientClosed,
    ClientError,
    ConfigError,
    MessageInvalid,
    SendFailed,
)
from contrail.model.host import pack_host
from contrail.model.message_id import encode_offset_message_id
from contrail.protocol.bodies.trace import TracedState
from contrail.protocol.codes import RequestCode

UNKNOWN, COMMIT, ROLLBACK = (
    TransactionState.UNKNOWN,
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
)
MESSAGE = Message("orders", b"pay", keys=["o-1"])
MASTER = "127.0.0.1:10911"
QUEUE = MessageQueue("orders", "broker-a", 2)
OFFSET_MESSAGE_ID = encode_offset_message_id(pack_host("127.0.0.1", 10911), 4096)


class FakeInstance:
    """Keeps the requests that would go to brokers."""

    def __init__(self) -> None:
        self.caller = self
        self.told: list[tuple[str, dict[str, str]]] = []
        self.beat_count = 0
        self.is_open = True
        self.tasks: list[asyncio.Task[None]] = []
        self.master: str | None = MASTER
        self.routes = RouteTable()
        self.asked: list[tuple[str, str, dict[str, str]]] = []

    async def ask_master(
        self, broker_name: str, topic: str, code: int, fields: dict[str, str], **_: object
    ) -> None:
        assert code == RequestCode.END_TRANSACTION
        self.asked.append((broker_name, topic, fields))

    async def notify(self, address: str, code: int, fields: dict[str, str]) -> None:
        assert code == RequestCode.END_TRANSACTION
        self.told.append((address, fields))

    def beat_soon(self) -> None:
        self.beat_count += 1

    def require_open(self) -> None:
        if not self.is_open:
            raise ClientClosed("closed")

    def master_of(self, broker_name: str) -> str:
        if self.master is None:
            raise BrokerUnknown(f"no master of {broker_name}")
        return self.master

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    @property
    def fates(self) -> list[tuple[int, str]]:
        return [
            (int(fields["commitOrRollback"]), fields["fromTransactionCheck"])
            for _, fields in self.told
        ]


class FakeSender:
    """Stores every message, or answers by its script."""

    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.queues: list[object] = []
        self.status = SendStatus.SEND_OK
        self.error: BaseException | None = None

    async def send(self, outgoing: Outgoing, **options: object) -> SendReceipt:
        self.sent.append(outgoing)
        self.queues.append(options["queue"])
        if self.error is not None:
            raise self.error
        return SendReceipt(
            self.status, outgoing.unique_id, QUEUE, 7, OFFSET_MESSAGE_ID, outgoing.unique_id
        )


class Listener:
    """Ends every transaction alike, and answers checks with the same."""

    def __init__(self, executed: object = COMMIT, checked: object = COMMIT) -> None:
        self._executed = executed
        self._checked = checked
        self.calls: list[tuple[object, ...]] = []

    def execute(self, message: HalfMessage, arg: object) -> Any:
        self.calls.append(("execute", message.transaction_id, arg, threading.current_thread()))
        return _given(self._executed)

    def check(self, message: ReceivedMessage) -> Any:
        self.calls.append(("check", message.message_id, threading.current_thread()))
        return _given(self._checked)


class AsyncListener(Listener):
    async def execute(self, message: HalfMessage, arg: object) -> Any:
        return super().execute(message, arg)

    async def check(self, message: ReceivedMessage) -> Any:
        return super().check(message)


def _given(value: object) -> object:
    if isinstance(value, Exception):
        raise value
    return value


def _prepare(message: Message) -> Outgoing:
    properties = {"KEYS": " ".join(message.keys), "UNIQ_KEY": "id-1", **message.properties}
    if message.delay_level:
        properties["DELAY"] = str(message.delay_level)
    return Outgoing(message.topic, message.body, properties, unique_id="id-1")


async def _by_sharding_key(message: Message) -> MessageQueue | None:
    return QUEUE if message.sharding_key else None


class World:
    """Transactions over fakes."""

    def __init__(self, listener: object = None, checker: Checker | None = None) -> None:
        self.instance = FakeInstance()
        self.traced: list[tuple[object, ...]] = []
        self.sender = FakeSender()
        self.transactions = Transactions(
            cast(ClientInstance, self.instance),
            cast(Any, self.sender),
            "payers",
            _prepare,
            choose_queue=_by_sharding_key,
            listener=cast("TransactionListener | None", listener),
            checker=checker,
            trace=cast(Any, self),
        )

    def ended_transaction(self, topic: str, properties: dict[str, str], **told: object) -> None:
        """In place of a trace."""
        self.traced.append((topic, properties["UNIQ_KEY"], told["state"], told["from_check"]))

    async def asked(self, unique_id: str = "id-1") -> None:
        """A broker checks; returns once the answer is sent."""
        self.transactions.check(_check(unique_id))
        await asyncio.gather(*self.instance.tasks)


def _check(unique_id: str) -> TransactionCheck:
    message = ReceivedMessage(
        topic="orders",
        body=b"pay",
        queue=QUEUE,
        queue_offset=9,
        message_id=unique_id,
        offset_message_id=OFFSET_MESSAGE_ID,
        properties={"UNIQ_KEY": unique_id},
        reconsume_times=0,
        born_timestamp_ms=1,
        store_timestamp_ms=1,
        flag=0,
        sys_flag=0,
        physical_offset=8192,
    )
    return TransactionCheck(message, "127.0.0.1:20911", unique_id, 9, 8192)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(cast(Coroutine[Any, Any, None], scenario()))


@pytest.mark.parametrize("kind", [Listener, AsyncListener])
@pytest.mark.parametrize("state", [COMMIT, ROLLBACK, UNKNOWN])
def test_the_listeners_decision_is_sent_to_the_broker(
    kind: type[Listener], state: TransactionState
) -> None:
    async def scenario() -> None:
        listener = kind(executed=state)
        world = World(listener)
        found = await world.transactions.send_in_transaction(MESSAGE, "arg")
        assert (found.state, found.receipt.message_id) == (state, "id-1")
        assert listener.calls[0][:3] == ("execute", "id-1", "arg")
        (half,) = world.sender.sent
        assert half.sys_flag == 0x4
        assert (half.properties["TRAN_MSG"], half.properties["PGROUP"]) == ("true", "payers")
        assert world.instance.told == [
            (
                MASTER,
                {
                    "topic": "orders",
                    "producerGroup": "payers",
                    "tranStateTableOffset": "7",
                    "commitLogOffset": "4096",
                    "commitOrRollback": str(int(state)),
                    "fromTransactionCheck": "false",
                    "msgId": "id-1",
                    "transactionId": "id-1",
                    "bname": "broker-a",
                },
            )
        ]

    run(scenario)


def test_plain_listeners_do_not_run_on_the_loop_and_async_ones_do() -> None:
    async def scenario() -> None:
        here = threading.current_thread()
        for kind in (Listener, AsyncListener):
            listener = kind(executed=UNKNOWN)
            world = World(listener)
            await world.transactions.send_in_transaction(MESSAGE)
            await world.asked()
            assert [call[-1] is here for call in listener.calls] == [kind is AsyncListener] * 2

    run(scenario)


@pytest.mark.parametrize("executed", [None, RuntimeError("no disk"), "COMMIT"])
def test_a_listener_that_fails_or_returns_none_leaves_it_to_the_check(executed: object) -> None:
    async def scenario() -> None:
        world = World(Listener(executed=executed, checked=ROLLBACK))
        found = await world.transactions.send_in_transaction(MESSAGE)
        assert found.state is UNKNOWN
        await world.asked()
        assert world.instance.fates == [(UNKNOWN, "false"), (ROLLBACK, "true")]
        assert world.traced == [
            ("orders", "id-1", TracedState.UNKNOWN, False),
            ("orders", "id-1", TracedState.ROLLBACK, True),
        ]

    run(scenario)


@pytest.mark.parametrize("status", [one for one in SendStatus if one is not SendStatus.SEND_OK])
def test_a_half_message_that_is_not_safe_is_rolled_back_and_no_listener_runs(
    status: SendStatus,
) -> None:
    async def scenario() -> None:
        listener = Listener()
        world = World(listener)
        world.sender.status = status
        found = await world.transactions.send_in_transaction(MESSAGE)
        assert (found.state, found.receipt.status) == (ROLLBACK, status)
        with pytest.raises(SendFailed, match=f"'orders'.*'broker-a'.*{status.name}"):
            async with world.transactions.transaction(MESSAGE):
                pytest.fail("the body must not run")
        assert listener.calls == []
        assert world.instance.fates == [(ROLLBACK, "false")] * 2

    run(scenario)


def test_a_failed_half_message_runs_no_listener_and_its_check_rolls_back() -> None:
    async def scenario() -> None:
        listener = Listener(checked=COMMIT)
        world = World(listener)
        world.sender.error = SendFailed("timeout", topic="orders")
        with pytest.raises(SendFailed):
            await world.transactions.send_in_transaction(MESSAGE)
        assert world.instance.told == []
        await world.asked()
        assert world.instance.fates == [(ROLLBACK, "true")]
        assert listener.calls == []

    run(scenario)


def test_without_a_listener_send_in_transaction_is_refused() -> None:
    async def scenario() -> None:
        world = World()
        with pytest.raises(ConfigError, match="'payers' has no transaction_listener"):
            await world.transactions.send_in_transaction(MESSAGE)
        assert world.sender.sent == []

    run(scenario)


def test_a_delayed_message_cannot_be_part_of_a_transaction() -> None:
    async def scenario() -> None:
        world = World(Listener())
        delayed = Message("orders", b"later", delay_level=3)
        with pytest.raises(MessageInvalid, match="both delayed and part of a transaction"):
            await world.transactions.send_in_transaction(delayed)
        with pytest.raises(MessageInvalid, match="'orders'"):
            world.transactions.transaction(delayed)
        immune = Message("orders", b"x", properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
        await world.transactions.send_in_transaction(immune)
        (half,) = world.sender.sent
        assert half.properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"

    run(scenario)


def test_a_broker_that_missed_the_end_checks_and_gets_the_same_decision() -> None:
    async def scenario() -> None:
        listener = Listener(executed=COMMIT, checked=ROLLBACK)
        world = World(listener)
        world.instance.master = None
        found = await world.transactions.send_in_transaction(MESSAGE)
        assert (found.state, world.instance.told) == (COMMIT, [])
        await world.asked()
        assert world.instance.fates == [(COMMIT, "true")]
        assert [call[0] for call in listener.calls] == ["execute"]

    run(scenario)


def test_a_check_is_answered_to_its_broker_with_the_offsets_it_named() -> None:
    async def scenario() -> None:
        world = World(Listener(checked=COMMIT))
        await world.asked("of-another-process")
        ((address, fields),) = world.instance.told
        assert address == "127.0.0.1:20911"
        assert fields["tranStateTableOffset"] == "9"
        assert fields["commitLogOffset"] == "8192"
        assert fields["msgId"] == fields["transactionId"] == "of-another-process"
        assert (fields["fromTransactionCheck"], fields["commitOrRollback"]) == ("true", "8")

    run(scenario)


def test_a_check_that_fails_answers_unknown(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World(Listener(checked=OSError("no database")))
        await world.asked("other")
        assert world.instance.fates == [(UNKNOWN, "true")]

    run(scenario)
    assert "the check of transaction other failed" in caplog.text


def test_a_check_without_a_listener_gives_no_answer_and_a_hint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        world = World()
        await world.asked("other")
        assert world.instance.told == []

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert "transaction_listener or a transaction_checker" in caplog.text


def test_leaving_the_body_commits() -> None:
    async def scenario() -> None:
        world = World()
        async with world.transactions.transaction(MESSAGE) as tx:
            assert (tx.transaction_id, tx.receipt.queue_offset, tx.state) == ("id-1", 7, None)
            assert world.instance.told == []
        assert tx.state is COMMIT
        assert world.instance.fates == [(COMMIT, "false")]

    run(scenario)


@pytest.mark.proves("replication.failover.client")
def test_the_end_is_answered_where_the_master_may_change_unless_it_is_unknown() -> None:
    async def scenario() -> None:
        world = World()
        world.instance.routes.replicated.add(QUEUE.broker_name)
        async with world.transactions.transaction(MESSAGE):
            pass
        ((name, topic, fields),) = world.instance.asked
        assert (name, topic) == (QUEUE.broker_name, MESSAGE.topic)
        assert (int(fields["commitOrRollback"]), world.instance.told) == (COMMIT, [])
        async with world.transactions.transaction(MESSAGE) as tx:
            tx.unknown()
        # Brokers do not answer it.
        assert len(world.instance.told) == len(world.instance.asked) == 1

    run(scenario)


def test_raising_in_the_body_rolls_back_and_goes_on() -> None:
    async def scenario() -> None:
        world = World()
        with pytest.raises(KeyError, match="stock"):
            async with world.transactions.transaction(MESSAGE):
                raise KeyError("stock")
        assert world.instance.fates == [(ROLLBACK, "false")]

    run(scenario)


def test_an_explicit_decision_counts_however_the_body_is_left() -> None:
    world = World()

    async def decide_and_raise(word: str) -> None:
        async with world.transactions.transaction(MESSAGE) as tx:
            getattr(tx, word)()
            raise KeyError

    async def scenario() -> None:
        for word, state in (("commit", COMMIT), ("rollback", ROLLBACK), ("unknown", UNKNOWN)):
            async with world.transactions.transaction(MESSAGE) as tx:
                getattr(tx, word)()
            with pytest.raises(KeyError):
                await decide_and_raise(word)
            assert world.instance.fates == [(state, "false")] * 2
            world.instance.told.clear()

    run(scenario)


@pytest.mark.parametrize("has_check", [True, False])
def test_a_cancelled_body_is_left_to_the_check_if_there_is_one(has_check: bool) -> None:
    async def scenario() -> None:
        world = World(checker=Listener(checked=COMMIT).check if has_check else None)
        begun = asyncio.Event()

        async def work() -> None:
            async with world.transactions.transaction(MESSAGE):
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.asked()
        if has_check:
            assert world.instance.fates == [(UNKNOWN, "false"), (COMMIT, "true")]
        else:
            assert world.instance.fates == [(ROLLBACK, "false"), (ROLLBACK, "true")]

    run(scenario)


@pytest.mark.parametrize("executed", [COMMIT, OSError("no database")])
def test_a_cancelled_send_waits_for_a_plain_listener_and_leaves_it_to_the_check(
    executed: object,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    class SlowListener(Listener):
        def execute(self, message: HalfMessage, arg: object) -> Any:
            begun.set()
            assert may_end.wait(60)
            return super().execute(message, arg)

    async def scenario() -> None:
        world = World(SlowListener(executed=executed, checked=COMMIT))
        task = asyncio.create_task(world.transactions.send_in_transaction(MESSAGE))
        await asyncio.to_thread(begun.wait, 60)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await world.asked()
        assert world.instance.fates == [(UNKNOWN, "true")]
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.asked()
        assert world.instance.fates[1:] == [(COMMIT, "true")]

    run(scenario)


def test_a_cancelled_send_stops_an_async_listener() -> None:
    class SlowListener(AsyncListener):
        async def execute(self, message: HalfMessage, arg: object) -> Any:
            await super().execute(message, arg)
            await asyncio.Event().wait()

    async def scenario() -> None:
        listener = SlowListener(checked=ROLLBACK)
        world = World(listener)
        task = asyncio.create_task(world.transactions.send_in_transaction(MESSAGE))
        while not listener.calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.asked()
        assert world.instance.fates == [(ROLLBACK, "true")]

    run(scenario)


def test_a_check_while_the_body_runs_is_answered_unknown() -> None:
    async def scenario() -> None:
        world = World(Listener(checked=ROLLBACK))
        async with world.transactions.transaction(MESSAGE):
            await world.asked()
        assert world.instance.fates == [(UNKNOWN, "true"), (COMMIT, "false")]

    run(scenario)


def test_a_transactions_own_check_is_called_before_the_producers() -> None:
    async def scenario() -> None:
        world = World(checker=Listener(checked=ROLLBACK).check)
        own = AsyncListener(checked=COMMIT)
        async with world.transactions.transaction(MESSAGE, check=own.check) as tx:
            tx.unknown()
        await world.asked()
        await world.asked("another")
        assert world.instance.fates[1:] == [(COMMIT, "true"), (ROLLBACK, "true")]
        # A checked result is remembered.
        await world.asked()
        assert len(own.calls) == 1

    run(scenario)


def test_a_message_with_a_sharding_key_goes_to_its_queue() -> None:
    async def scenario() -> None:
        world = World(Listener())
        ordered = Message("orders", b"x", sharding_key="user-1")
        await world.transactions.send_in_transaction(ordered)
        async with world.transactions.transaction(ordered):
            pass
        await world.transactions.send_in_transaction(MESSAGE)
        assert world.sender.queues == [QUEUE, QUEUE, None]

    run(scenario)


def test_brokers_get_a_heartbeat_of_the_group_with_its_first_half_message() -> None:
    async def scenario() -> None:
        world = World(Listener())
        assert world.instance.beat_count == 0
        for _ in range(3):
            await world.transactions.send_in_transaction(MESSAGE)
        assert world.instance.beat_count == 1

    run(scenario)


def test_a_client_that_closes_during_a_transaction_leaves_it_to_the_check() -> None:
    async def scenario() -> None:
        world = World()
        async with world.transactions.transaction(MESSAGE):
            world.instance.is_open = False
        assert world.instance.told == []

    run(scenario)


def test_a_transaction_is_begun_once() -> None:
    async def scenario() -> None:
        world = World()
        tx = world.transactions.transaction(MESSAGE)
        with pytest.raises(ClientError, match="on entering"):
            _ = tx.receipt
        async with tx:
            pass
        with pytest.raises(ClientError, match="begun before"):
            async with tx:
                pytest.fail("the body must not run")
        assert world.instance.fates == [(COMMIT, "false")]

    run(scenario)


def test_only_the_latest_ends_are_remembered() -> None:
    local: LocalTransactions[str] = LocalTransactions(remembered_count_max=2)
    for number in range(3):
        local.begin(f"ended-{number}")
        local.end(f"ended-{number}", COMMIT)
        local.end(f"open-{number}", UNKNOWN, f"check-{number}")
    assert [local.standing(f"ended-{number}") for number in range(3)] == [None, COMMIT, COMMIT]
    assert [local.check_of(f"open-{number}") for number in range(3)] == [
        None,
        "check-1",
        "check-2",
    ]
    local.end("open-2", ROLLBACK)
    assert (local.check_of("open-2"), local.standing("open-2")) == (None, ROLLBACK)
