"""Waiting in tests: the result once it is true, a named failure when it never is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from contrail.testing import eventually, eventually_async


def awaited(check: Callable[[], Any], what: Any = "it", **options: Any) -> Any:
    return asyncio.run(eventually_async(check, what, **options))


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


WAYS = pytest.mark.parametrize("wait", [eventually, awaited], ids=["blocking", "async"])


@pytest.mark.proves("house.tests.eventually")
@WAYS
def test_the_first_true_result_is_returned(wait: Any) -> None:
    results = iter([0, [], "", "here", "too late"])
    assert wait(lambda: next(results), pause_s=0) == "here"
    assert next(results) == "too late"


def test_a_coroutine_function_is_awaited() -> None:
    results = iter([None, 7])
    assert awaited(lambda: later(next(results)), pause_s=0) == 7


@pytest.mark.proves("house.tests.eventually")
@WAYS
def test_a_condition_that_does_not_come_is_named(wait: Any) -> None:
    with pytest.raises(AssertionError, match=r"^not within 0 s: the route$"):
        wait(lambda: False, "the route", timeout_s=0, pause_s=0)


@WAYS
def test_a_function_tells_how_things_stand_at_the_end(wait: Any) -> None:
    calls: list[int] = []
    with pytest.raises(AssertionError, match="after some calls"):
        wait(
            lambda: calls.append(1), lambda: f"after {'some' if calls else 'no'} calls", timeout_s=0
        )


@WAYS
def test_an_exception_of_the_check_ends_the_wait(wait: Any) -> None:
    def check() -> bool:
        raise LookupError("the broker is gone")

    with pytest.raises(LookupError, match="the broker is gone"):
        wait(check)


def test_no_module_hides_a_function_whichever_is_imported_first() -> None:
    script = (
        "from contrail.testing import eventually_async\n"
        "from contrail.testing import eventually\n"
        "assert callable(eventually_async) and callable(eventually)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
