"""Loops over messages: retries and acknowledgements when a loop, task or thread ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from contrail.client import message_stream
from contrail.client.consuming import Bell, Watch
from contrail.client.consuming_concurrent import ConcurrentSupply
from contrail.client.message_stream import MessageStreams
from contrail.clock import monotonic_ms
from contrail.testing import eventually_async
from tests.unit.client.consuming_setup import FakeReader, FakeSendBack


class Setup:
    """Streams over a supply; made within a running loop."""

    def __init__(self, count: int = 3) -> None:
        self.reader = FakeReader()
        self.send_back = FakeSendBack()
        self.is_over = False
        bell = Bell()
        supply = self.reader.supply = ConcurrentSupply(
            self.send_back.real, is_broadcasting=False, call_one=bell.ring_all
        )
        self.streams = MessageStreams(
            supply, bell, Watch("g", (), timeout_ms=1_000), lambda: self.is_over, self._spawn
        )
        supply.submit(self.reader.real, self.reader.pull(count))

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def __aiter__(self) -> message_stream.MessageStream:
        return self.streams.begin(asyncio.current_task())

    @property
    def returned(self) -> list[int]:
        return [queue_offset for queue_offset, _ in self.send_back.returned]

    async def until(self, happened: Callable[[], Any]) -> None:
        await eventually_async(happened, pause_s=0.001)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_asking_for_the_next_message_acknowledges() -> None:
    async def main() -> None:
        setup = Setup()
        stream = aiter(setup)
        await anext(stream)
        await anext(stream)
        assert (setup.reader.held, setup.returned) == ([1, 2], [])

    run(main)


def test_a_new_loop_sends_back_the_message_of_the_last_one() -> None:
    async def main() -> None:
        setup = Setup()
        with suppress(ZeroDivisionError):
            async for _ in setup:
                raise ZeroDivisionError
        async for message in setup:
            assert message.queue_offset == 1
            break
        assert setup.returned == [0]
        # The same with a loop object that is kept.
        stream = aiter(setup)
        async for message in stream:
            assert message.queue_offset == 2
            break
        assert setup.returned == [0, 1]

    run(main)


def test_a_message_acknowledged_before_the_loop_was_left_is_done() -> None:
    async def main() -> None:
        setup = Setup()
        async for message in setup:
            await message.ack()
            break
        await anext(aiter(setup))
        assert (setup.reader.held, setup.returned) == ([1, 2], [])

    run(main)


def test_leaving_the_block_acknowledges_unless_another_loop_was_begun() -> None:
    async def main() -> None:
        me = asyncio.current_task()
        setup = Setup()
        await anext(aiter(setup))
        await setup.streams.finish(me, None)
        assert (setup.reader.held, setup.returned) == ([1, 2], [])
        await anext(aiter(setup))
        aiter(setup)
        await setup.streams.finish(me, None)
        assert setup.returned == [1]

    run(main)


async def _cancelled() -> None:
    raise asyncio.CancelledError


async def _failing() -> None:
    raise ZeroDivisionError


async def _returning() -> None:
    return None


@pytest.mark.parametrize("end", [_cancelled, _failing, _returning])
def test_the_end_of_a_task_sends_back_its_message_in_hand(
    end: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        setup = Setup()

        async def read() -> None:
            async for _ in setup:
                await end()
                break

        await asyncio.gather(asyncio.create_task(read()), return_exceptions=True)
        await setup.until(lambda: setup.returned == [0])
        await setup.until(lambda: setup.reader.held == [1, 2])

    run(main)


def test_a_task_that_only_asked_for_a_message_does_not_own_it() -> None:
    async def main() -> None:
        setup = Setup()
        stream = aiter(setup)
        await asyncio.create_task(_next(stream))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert setup.returned == []
        await asyncio.create_task(_next(stream))
        assert (setup.reader.held, setup.returned) == ([1, 2], [])

    run(main)


async def _next(stream: message_stream.MessageStream) -> None:
    await anext(stream)


def test_a_task_that_was_handed_a_loop_sends_back_when_it_fails() -> None:
    async def main() -> None:
        setup = Setup()
        stream = aiter(setup)

        async def read() -> None:
            async for _ in stream:
                raise ZeroDivisionError

        await asyncio.gather(asyncio.create_task(read()), return_exceptions=True)
        await setup.until(lambda: setup.returned == [0])

    run(main)


def test_a_thread_that_ends_gives_back_and_one_that_works_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(message_stream, "_LOOK_AFTER_THREADS_S", 0.001)

    async def main() -> None:
        setup, may_end = Setup(), threading.Event()
        me, other = threading.current_thread(), threading.Thread(target=may_end.wait)
        other.start()
        stream = setup.streams.begin(other)
        await asyncio.create_task(_next(stream))
        assert stream.is_in_other_hands(me)
        assert not stream.is_in_other_hands(other)
        # The exit of the interpreter.
        assert not stream.is_in_other_hands(asyncio.current_task())
        await setup.streams.wait(me, monotonic_ms() + 20)
        assert (setup.reader.held, setup.returned) == ([0, 1, 2], [])
        may_end.set()
        await setup.until(lambda: setup.returned == [0])
        await setup.streams.wait(me, monotonic_ms() + 60_000)
        setup.streams.stop()

    run(main)


def test_after_closing_the_end_of_a_task_has_no_effect() -> None:
    async def main() -> None:
        setup = Setup()

        async def read() -> None:
            async for _ in setup:
                setup.is_over = True
                break

        await asyncio.create_task(read())
        await setup.streams.wait(None, monotonic_ms() + 60_000)
        assert (setup.reader.held, setup.returned) == ([0, 1, 2], [])

    run(main)
