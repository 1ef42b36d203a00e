"""Calls of blocking clients to the background loop."""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from contrail.client.background import background_loop


def test_the_loops_thread_makes_the_coroutine_where_no_interrupt_comes() -> None:
    makers: list[threading.Thread] = []

    async def answer() -> int:
        return 7

    def work() -> Coroutine[Any, Any, int]:
        makers.append(threading.current_thread())
        return answer()

    assert background_loop().run(work) == 7
    assert makers != [threading.main_thread()] and len(makers) == 1


def test_arguments_reach_the_call_and_wrong_ones_are_told_to_the_caller() -> None:
    async def add(first: int, *, second: int) -> int:
        return first + second

    assert background_loop().run(add, 3, second=4) == 7
    with pytest.raises(TypeError, match="third"):
        background_loop().run(add, 3, third=4)  # type: ignore[call-arg]
    assert background_loop().run(add, 1, second=1) == 2


def test_a_call_that_makes_no_coroutine_is_told_to_the_caller() -> None:
    def refuse() -> Coroutine[Any, Any, int]:
        raise ValueError("no coroutine")

    with pytest.raises(ValueError, match="no coroutine"):
        background_loop().run(refuse)
