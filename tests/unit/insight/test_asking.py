"""Questions asked at once: a bounded number, in order, and the first error ends the others."""

from __future__ import annotations

import asyncio

import pytest

from contrail.errors import ClientError
from contrail.insight.asking import AT_ONCE_MAX, gathered


def test_answers_stand_in_the_order_of_the_questions() -> None:
    running = highest = 0

    async def ask(number: int) -> int:
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        for _ in range(20 - number):
            await asyncio.sleep(0)
        running -= 1
        return number * 2

    assert asyncio.run(gathered(ask, range(20))) == [number * 2 for number in range(20)]
    assert highest == AT_ONCE_MAX


def test_the_first_error_is_raised_and_ends_the_others() -> None:
    ended: list[int] = []

    async def ask(number: int) -> None:
        if number == 1:
            raise ClientError("no")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    with pytest.raises(ClientError, match="no"):
        asyncio.run(gathered(ask, range(3)))
    assert ended == [0, 2]
