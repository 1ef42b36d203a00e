"""A producer that sends too fast waits, in order, and not for ever."""

from __future__ import annotations

import asyncio

import pytest

from contrail.client.back_pressure import Slots
from contrail.errors import BackPressure

FAR_S = 60.0


@pytest.mark.proves("client.producer.back-pressure")
def test_there_is_room_until_the_count_is_reached() -> None:
    slots = Slots(count_max=2, bytes_max=100)
    assert slots.take(1)
    assert slots.take(1)
    assert not slots.take(1)
    slots.give_back(1)
    assert slots.take(1)


@pytest.mark.proves("client.producer.back-pressure")
def test_there_is_room_until_the_bytes_are_reached() -> None:
    slots = Slots(count_max=10, bytes_max=100)
    assert slots.take(60)
    assert not slots.take(41)
    assert slots.take(40)


def test_a_message_larger_than_the_whole_room_goes_alone() -> None:
    slots = Slots(count_max=10, bytes_max=100)
    assert slots.take(1_000)
    assert not slots.take(1)
    slots.give_back(1_000)
    assert slots.take(1)
    assert not slots.take(1_000)


def test_waiting_sends_are_served_in_order() -> None:
    served: list[int] = []

    async def wait(slots: Slots, number: int, size: int) -> None:
        await slots.wait(size, asyncio.get_running_loop().time() + FAR_S)
        served.append(number)

    async def run() -> None:
        slots = Slots(count_max=10, bytes_max=100)
        assert slots.take(100)
        # The second send would fit sooner, but it came later.
        tasks = [asyncio.create_task(wait(slots, 1, 80)), asyncio.create_task(wait(slots, 2, 20))]
        await asyncio.sleep(0)
        assert not slots.take(0)
        slots.give_back(100)
        await asyncio.gather(*tasks)
        assert (slots.count, slots.bytes) == (2, 100)

    asyncio.run(run())
    assert served == [1, 2]


def test_waiting_longer_than_allowed_is_refused_and_takes_no_slot() -> None:
    async def run() -> None:
        slots = Slots(count_max=1, bytes_max=100)
        assert slots.take(10)
        with pytest.raises(BackPressure, match=r"1 sends with 10 bytes.*in_flight_count_max"):
            await slots.wait(1, asyncio.get_running_loop().time())
        slots.give_back(10)
        assert (slots.count, slots.bytes) == (0, 0)
        assert slots.take(1)

    asyncio.run(run())


@pytest.mark.parametrize("is_granted", [False, True])
def test_a_cancelled_wait_leaves_the_room_to_others(is_granted: bool) -> None:
    async def run() -> None:
        slots = Slots(count_max=1, bytes_max=100)
        assert slots.take(1)
        task = asyncio.create_task(slots.wait(1, asyncio.get_running_loop().time() + FAR_S))
        await asyncio.sleep(0)
        if is_granted:
            slots.give_back(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if not is_granted:
            slots.give_back(1)
        assert (slots.count, slots.bytes) == (0, 0)
        assert slots.take(1)

    asyncio.run(run())


def test_until_idle_returns_when_the_last_send_ended() -> None:
    async def run() -> None:
        slots = Slots(count_max=2, bytes_max=100)
        await slots.until_idle()
        assert slots.take(1)
        waiting = asyncio.create_task(slots.until_idle())
        await asyncio.sleep(0)
        assert not waiting.done()
        slots.give_back(1)
        await waiting

    asyncio.run(run())
