"""Messages in order: turns of queues, rests, and giving up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from contrail.client.consumed_message import Reader
from contrail.client.consumer_settings import RETRIES_WITHOUT_END
from contrail.client.consuming_orderly import OrderlySupply, Turn
from contrail.errors import MessageUnreadable
from tests.unit.client.consuming_setup import FakeReader, FakeSendBack, offsets


class Setup:
    def __init__(
        self,
        *,
        retries_max: int = 5,
        undecoded_retries_max: int = 5,
        rest_ms: int = 1,
        is_broadcasting: bool = False,
    ) -> None:
        self.send_back = FakeSendBack()
        self.reader = FakeReader()
        self.may_run = True
        # Whether the lock is valid now, and the broker's answer if it is not.
        self.is_ours = True
        self.is_proven = True
        self.supply = OrderlySupply(
            self.send_back.real,
            is_broadcasting=is_broadcasting,
            retries_max=retries_max,
            undecoded_retries_max=undecoded_retries_max,
            rest_ms=rest_ms,
            call_one=lambda: None,
            may_run=lambda reader: self.may_run,
            is_ours=lambda reader: self.is_ours,
            prove=self.prove,
        )

    async def prove(self, reader: Reader) -> bool:
        self.is_ours = self.is_proven
        return self.is_proven

    def pull(self, count: int, reader: FakeReader | None = None) -> None:
        reader = reader or self.reader
        reader.supply = self.supply
        self.supply.submit(reader.real, reader.pull(count))

    async def rested(self) -> None:
        while self.reader.turn is Turn.RESTING:
            await asyncio.sleep(0.001)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_a_queue_runs_once_at_a_time_and_goes_on_in_order() -> None:
    setup = Setup()
    setup.pull(3)
    first = setup.supply.take(2)
    setup.pull(1)
    assert setup.supply.take(1) == []
    setup.supply.succeeded(first)
    assert (offsets(first), offsets(setup.supply.take(9))) == ([0, 1], [2, 3])


def test_a_failed_message_is_first_again_after_a_rest_while_others_run() -> None:
    async def main() -> None:
        setup, other = Setup(), FakeReader(1)
        setup.pull(2)
        await setup.supply.failed(setup.supply.take(1))
        setup.pull(1, other)
        assert [message.origin for message in setup.supply.take(1)] == [other]
        await setup.rested()
        (again,) = setup.supply.take(1)
        assert (again.queue_offset, again.reconsume_times) == (0, 1)

    run(main)


def test_the_last_retry_sends_the_message_back_and_the_queue_goes_on() -> None:
    async def main() -> None:
        setup = Setup(retries_max=0)
        setup.pull(2)
        await setup.supply.failed(setup.supply.take(1))
        assert setup.send_back.returned == [(0, 0)]
        assert offsets(setup.supply.take(1)) == [1]

    run(main)


def test_a_message_that_cannot_be_sent_back_keeps_its_place_in_the_queue() -> None:
    async def main() -> None:
        setup = Setup(retries_max=0)
        setup.send_back.is_refusing = True
        setup.pull(1)
        await setup.supply.failed(setup.supply.take(1))
        await setup.rested()
        assert offsets(setup.supply.take(1)) == [0]

    run(main)


def test_later_keeps_one_message_of_a_batch_in_its_place() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(3)
        batch = setup.supply.take(3)
        await batch[1].later(0.001)
        assert not setup.supply.succeeded(batch)
        await setup.supply.failed(batch)
        await setup.rested()
        assert offsets(setup.supply.take(3)) == [1]

    run(main)


def test_the_first_decision_counts_in_order_too() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        (message,) = setup.supply.take(1)
        await message.later(0.001)
        await message.ack()
        await message.dead_letter()
        await message.later(3)
        assert message.suspend_ms == 1
        assert setup.reader.held == [0]
        assert setup.send_back.returned == []
        assert not setup.supply.succeeded([message])
        await setup.supply.failed([message])
        await setup.rested()
        assert offsets(setup.supply.take(1)) == [0]

    run(main)


def test_a_dead_letter_makes_room_for_the_next() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(2)
        (message,) = setup.supply.take(1)
        await message.dead_letter()
        assert setup.supply.succeeded([message])
        assert setup.send_back.returned == [(0, -1)]
        assert offsets(setup.supply.take(1)) == [1]

    run(main)


def test_without_its_lock_a_queue_rests_until_it_is_resumed() -> None:
    setup = Setup()
    setup.may_run = False
    setup.pull(1)
    assert setup.supply.take(1) == []
    setup.may_run = True
    assert setup.supply.take(1) == []
    setup.supply.resume(setup.reader.real)
    assert offsets(setup.supply.take(1)) == [0]


def test_a_dropped_queue_is_released_when_its_handler_has_ended() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(2)
        batch = setup.supply.take(1)
        setup.reader.process_queue.is_dropped = True
        setup.supply.dropped(setup.reader.real)
        leaving = asyncio.create_task(setup.supply.released(setup.reader.real))
        await asyncio.sleep(0)
        assert not leaving.done()
        setup.supply.succeeded(batch)
        await leaving
        assert setup.supply.take(1) == []
        # The handled message counts.
        assert setup.reader.held == [1]

    run(main)


def test_an_idle_queue_is_released_at_once() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        setup.reader.process_queue.is_dropped = True
        setup.supply.dropped(setup.reader.real)
        await setup.supply.released(setup.reader.real)

    run(main)


def test_an_abandoned_message_keeps_its_place() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(2)
        setup.supply.abandoned(setup.supply.take(1))
        await setup.rested()
        assert offsets(setup.supply.take(2)) == [0, 1]

    run(main)


# Messages that cannot be decoded.


def endless(**options: Any) -> Setup:
    """A supply that tries a handler again for ever; its first message cannot be decoded."""
    setup = Setup(retries_max=RETRIES_WITHOUT_END, undecoded_retries_max=2, **options)
    setup.pull(2)
    first = setup.reader.process_queue.lowest
    assert first is not None
    first.decode_error = MessageUnreadable("the body is not zlib")
    return setup


async def try_to_the_end(setup: Setup) -> int:
    """How often the first message is tried before another one comes."""
    tries = 0
    while offsets(batch := setup.supply.take(1)) == [0]:
        tries += 1
        assert tries < 10, "it is tried without end"
        await setup.supply.failed(batch)
        await setup.rested()
    assert offsets(batch) == [1]
    return tries


@pytest.mark.proves("client.undecodable.orderly")
def test_a_message_that_cannot_be_decoded_becomes_a_dead_letter_where_retries_have_no_end() -> None:
    async def main() -> None:
        setup = endless()
        assert await try_to_the_end(setup) == 3
        assert setup.send_back.returned == [(0, -1)]
        assert setup.reader.held == [1]

    run(main)


@pytest.mark.proves("client.undecodable.orderly")
def test_an_undecodable_message_keeps_its_place_until_a_broker_takes_it() -> None:
    async def main() -> None:
        setup = endless()
        setup.send_back.is_refusing = True
        for _ in range(6):
            await setup.supply.failed(setup.supply.take(1))
            await setup.rested()
        assert setup.reader.held == [0, 1]
        setup.send_back.is_refusing = False
        assert await try_to_the_end(setup) == 1
        assert setup.send_back.returned == [(0, -1)]

    run(main)


@pytest.mark.proves("client.undecodable.orderly")
def test_a_broadcasting_member_skips_an_undecodable_message_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        setup = endless(is_broadcasting=True)
        assert await try_to_the_end(setup) == 3
        assert setup.send_back.returned == []
        assert setup.reader.held == [1]

    run(main)
    (told,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "id-0" in told.getMessage()
    assert "the body is not zlib" in told.getMessage()


# Handlers that end after their queue's lock has run out.


def test_a_late_result_counts_if_no_other_member_had_the_queue() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(2)
        batch = setup.supply.take(1)
        setup.is_ours = False
        assert not setup.supply.succeeded(batch)
        assert setup.reader.held == [0, 1]
        await setup.supply.failed(batch)
        assert setup.reader.held == [1]
        assert offsets(setup.supply.take(1)) == [1]
        assert batch[0].reconsume_times == 0

    run(main)


@pytest.mark.proves("client.failover.lock-end")
def test_no_late_result_counts_if_another_member_may_have_the_queue() -> None:
    async def main() -> None:
        setup = Setup(retries_max=0)
        setup.pull(2)
        setup.is_proven = False
        batch = setup.supply.take(1)
        setup.is_ours = False
        assert not setup.supply.succeeded(batch)
        await setup.supply.failed(batch)
        assert (setup.reader.held, setup.reader.turn) == ([0, 1], Turn.IDLE)
        assert setup.supply.take(1) == []

    run(main)


def test_a_failure_after_the_lock_ran_out_is_ignored() -> None:
    async def main() -> None:
        setup = Setup(retries_max=0)
        setup.pull(1)
        setup.is_ours = setup.is_proven = False
        batch = setup.supply.take(1)
        await batch[0].dead_letter()
        await setup.supply.failed(batch)
        assert setup.send_back.returned == []
        assert setup.reader.held == [0]

    run(main)


def test_release_returns_after_a_handler_whose_result_does_not_count() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        setup.is_proven = False
        batch = setup.supply.take(1)
        setup.reader.process_queue.is_dropped = True
        setup.supply.dropped(setup.reader.real)
        waiting = asyncio.create_task(setup.supply.released(setup.reader.real))
        await asyncio.sleep(0)
        setup.is_ours = False
        assert not setup.supply.succeeded(batch)
        await setup.supply.failed(batch)
        await asyncio.wait_for(waiting, 5)

    run(main)
