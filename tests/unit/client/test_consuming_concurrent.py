"""Messages in no order: how they are handed out, and how failures are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from contrail.client.consuming_concurrent import ConcurrentSupply
from contrail.errors import ConfigError
from tests.unit.client.consuming_setup import FakeReader, FakeSendBack, offsets


class Setup:
    def __init__(self, *, is_broadcasting: bool = False, local_retry_s: float = 0.0) -> None:
        self.send_back = FakeSendBack()
        self.call_count = 0
        self.reader = FakeReader()
        self.supply = ConcurrentSupply(
            self.send_back.real,
            is_broadcasting=is_broadcasting,
            call_one=self.call_one,
            local_retry_s=local_retry_s,
        )

    def call_one(self) -> None:
        self.call_count += 1

    def pull(self, count: int, reader: FakeReader | None = None) -> None:
        reader = reader or self.reader
        reader.supply = self.supply
        self.supply.submit(reader.real, reader.pull(count))


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_a_batch_is_of_one_queue() -> None:
    setup, other = Setup(), FakeReader(1)
    setup.pull(2)
    setup.pull(3, other)
    assert offsets(setup.supply.take(10)) == [0, 1]
    assert offsets(setup.supply.take(2)) == [0, 1]
    assert offsets(setup.supply.take(2)) == [2]
    assert setup.supply.take(2) == []


def test_success_settles_messages_that_the_handler_has_not_settled() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(3)
        batch = setup.supply.take(3)
        await batch[1].later(3)
        assert setup.supply.succeeded(batch)
        assert setup.reader.held == []
        assert setup.send_back.returned == [(1, 3)]

    run(main)


def test_a_failed_message_is_sent_back_and_settled() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(2)
        await setup.supply.failed(setup.supply.take(1))
        assert setup.send_back.returned == [(0, 0)]
        assert setup.reader.held == [1]

    run(main)


@pytest.mark.proves("client.consumers.failed-send-back")
def test_a_message_that_cannot_be_sent_back_is_handled_here_again_and_not_settled() -> None:
    async def main() -> None:
        setup = Setup()
        setup.send_back.is_refusing = True
        setup.pull(1)
        await setup.supply.failed(setup.supply.take(1))
        assert setup.supply.take(1) == []
        await asyncio.sleep(0.001)
        (again,) = setup.supply.take(1)
        assert (again.reconsume_times, again.is_settled, setup.reader.held) == (1, False, [0])
        setup.supply.succeeded([again])
        assert setup.reader.held == []

    run(main)


def test_a_send_back_that_is_cancelled_leaves_the_message_to_come_again() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        batch = setup.supply.take(1)

        async def forever(*_: object) -> bool:
            await asyncio.Event().wait()
            return True

        setup.send_back.give_back = forever  # type: ignore[method-assign]
        task = asyncio.create_task(setup.supply.failed(batch))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.001)
        assert offsets(setup.supply.take(1)) == [0]

    run(main)


def test_an_abandoned_message_comes_again_without_being_sent() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        setup.supply.abandoned(setup.supply.take(1))
        await asyncio.sleep(0.001)
        assert offsets(setup.supply.take(1)) == [0]
        assert setup.send_back.returned == []

    run(main)


def test_broadcast_messages_are_skipped_when_they_fail() -> None:
    async def main() -> None:
        setup = Setup(is_broadcasting=True)
        setup.pull(1)
        await setup.supply.failed(setup.supply.take(1))
        assert (setup.reader.held, setup.send_back.returned) == ([], [])

    run(main)


def test_the_first_decision_of_a_handler_counts() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        (message,) = setup.supply.take(1)
        await message.ack()
        await message.dead_letter()
        await message.later()
        assert setup.send_back.returned == []

    run(main)


def test_a_delay_that_does_not_exist_leaves_the_message_in_hand() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(1)
        (message,) = setup.supply.take(1)
        with pytest.raises(ConfigError):
            await message.later(-1.0)
        assert not message.is_settled

    run(main)


def test_a_dropped_queue_has_nothing_to_hand_out() -> None:
    setup, other = Setup(), FakeReader(1)
    setup.pull(2)
    setup.pull(1, other)
    setup.reader.process_queue.is_dropped = True
    setup.supply.dropped(setup.reader.real)
    assert [message.origin for message in setup.supply.take(9)] == [other]


def test_a_run_that_was_not_begun_is_first_in_line_again() -> None:
    setup = Setup()
    setup.pull(4)
    run_of_three = setup.supply.take_run(3)
    setup.supply.put_back(run_of_three[1:])
    assert offsets(setup.supply.take(9)) == [1, 2, 3]


def test_a_message_handled_for_too_long_is_sent_back() -> None:
    async def main() -> None:
        setup = Setup()
        setup.pull(3)
        batch = setup.supply.take(2)
        batch[0].started_ms, batch[1].started_ms = 1_000, 1_900
        await setup.supply.expire(setup.reader.real, 2_500, timeout_ms=1_000)
        assert (setup.send_back.returned, setup.reader.held) == ([(0, 3)], [1, 2])
        # The late end of the handler has no effect.
        setup.supply.succeeded(batch[:1])
        assert setup.reader.held == [1, 2]

    run(main)
