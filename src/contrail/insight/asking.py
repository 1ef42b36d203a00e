"""Several questions to a cluster at once, a bounded number of them under way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")

AT_ONCE_MAX = 8


async def gathered(ask: Callable[[T], Awaitable[S]], given: Iterable[T]) -> list[S]:
    """The answers in the order of the questions; the first error ends the others."""
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def one_of(question: T) -> S:
        async with room:
            return await ask(question)

    asked = [asyncio.create_task(one_of(question)) for question in given]
    try:
        return list(await asyncio.gather(*asked))
    finally:
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
