"""Transactions: committed messages are seen, others are not, and brokers ask about open ones."""

from __future__ import annotations

import pytest

from contrail.aio import Message, Producer, ReceivedMessage, TransactionState
from contrail.client.transactions import HalfMessage
from contrail.errors import MessageInvalid
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Inbox, Scene, scenario

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)


class Ledger:
    """Ends local transactions by its script, and answers each later check once."""

    def __init__(self) -> None:
        self.executed: list[str] = []
        self.checked: list[str] = []

    async def execute(self, message: HalfMessage, arg: object) -> TransactionState:
        self.executed.append(message.keys[0])
        assert isinstance(arg, TransactionState)
        return arg

    def check(self, message: ReceivedMessage) -> TransactionState:
        """A plain function: it runs on a thread and may block."""
        self.checked.append(message.keys[0])
        return ROLLBACK if "dropped" in message.keys[0] else COMMIT


@pytest.mark.proves("client.producer.transactions")
@scenario
async def test_a_listener_decides_and_is_checked_for_transactions_left_open(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    ledger, inbox = Ledger(), Inbox()
    async with scene.consuming(inbox.take):
        fates = {"open-dropped": UNKNOWN, "open": UNKNOWN, "dropped": ROLLBACK, "kept": COMMIT}
        ids = {}
        async with scene.producer(transaction_listener=ledger) as producer:
            for key, fate in fates.items():
                sent = await producer.send_in_transaction(scene.message(key), fate)
                assert sent.state is fate
                ids[key] = sent.receipt.message_id
            with pytest.raises(MessageInvalid, match="delayed and part of a transaction"):
                await producer.send_in_transaction(scene.message("both", delay_level=1), COMMIT)
            await inbox.until_has(["kept", "open"])
            await eventually_async(
                lambda: {"open", "open-dropped"} <= set(ledger.checked), "both questions"
            )
            # A dropped message would have come before this one.
            await producer.send_in_transaction(scene.message("last"), COMMIT)
            await inbox.until_has(["last"])
    assert ledger.executed == [*fates, "last"]
    assert set(ledger.checked) == {"open", "open-dropped"}
    assert sorted(inbox.keys) == ["kept", "last", "open"]
    for one in inbox.messages:
        assert one.body == f"body of {one.keys[0]}".encode()
        if one.keys[0] in ids:
            assert one.message_id == ids[one.keys[0]]


@pytest.mark.proves("client.producer.transactions")
@scenario
async def test_leaving_the_block_commits_and_an_exception_rolls_back(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    asked: list[str] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.message_id)
        return COMMIT

    async with scene.producer() as producer:
        async with producer.transaction(scene.message("kept")) as kept:
            pass
        await fail(producer, scene.message("dropped"))
        async with producer.transaction(scene.message("left-open"), check=check) as left:
            left.unknown()
        async with producer.transaction(scene.message("told")) as told:
            told.rollback()
        found = await scene.stored(2)
        async with producer.transaction(scene.message("last")):
            pass
        found = await scene.stored(3)
    assert [one.body for one in found] == [b"body of kept", b"body of left-open", b"body of last"]
    assert [one.message_id for one in found[:2]] == [kept.transaction_id, left.transaction_id]
    assert set(asked) == {left.transaction_id}
    assert told.state is ROLLBACK


async def fail(producer: Producer, message: Message) -> None:
    with pytest.raises(RuntimeError, match="local"):
        async with producer.transaction(message):
            raise RuntimeError("the local transaction failed")
