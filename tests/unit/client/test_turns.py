"""Turns: threads and the tasks of several loops, one at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from contrail.client.turns import Turns
from contrail.errors import ClientError

ROUNDS = 50


def test_threads_and_tasks_of_two_loops_are_never_inside_together() -> None:
    turns = Turns("it")
    inside = total = most = 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)

    def leave() -> None:
        nonlocal inside, total
        inside -= 1
        total += 1
        turns.give()

    async def task() -> None:
        for _ in range(ROUNDS):
            await turns.take()
            enter()
            await asyncio.sleep(0)
            leave()

    async def tasks() -> None:
        await asyncio.gather(task(), task())

    def plain() -> None:
        for _ in range(ROUNDS):
            turns.take_now()
            enter()
            leave()

    threads = [threading.Thread(target=lambda: asyncio.run(tasks())) for _ in range(2)]
    threads += [threading.Thread(target=plain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, total) == (1, 6 * ROUNDS)


@pytest.mark.parametrize("is_given", [False, True])
def test_a_cancelled_wait_takes_no_turn(is_given: bool) -> None:
    async def main() -> None:
        turns = Turns("it")
        await turns.take()
        waiting = asyncio.create_task(turns.take())
        await asyncio.sleep(0)
        if is_given:
            turns.give()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not is_given:
            turns.give()
        await asyncio.wait_for(turns.take(), 60)

    asyncio.run(main())


def test_a_loop_is_not_blocked_by_the_plain_form() -> None:
    async def main() -> None:
        turns = Turns("the store x")
        turns.take_now()
        with pytest.raises(ClientError, match="the store x is in use"):
            turns.take_now()
        turns.give()
        turns.take_now()

    asyncio.run(main())
