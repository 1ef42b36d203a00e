"""The event loop: uvloop if it is installed, else the standard loop with a note."""

from __future__ import annotations

import asyncio
import sys

import pytest

from contrail.runtime.event_loop import choose_event_loop, run


async def loop_module() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_without_uvloop_the_standard_loop_runs_and_a_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    choice = choose_event_loop()
    assert choice.name == "asyncio"
    assert choice.note is not None and "uvloop" in choice.note
    assert run(loop_module(), choice).startswith("asyncio")


def test_uvloop_runs_where_it_is_installed() -> None:
    pytest.importorskip("uvloop", reason="uvloop is not installed")
    choice = choose_event_loop()
    assert choice.name.startswith("uvloop ")
    assert choice.note is None
    assert run(loop_module(), choice).startswith("uvloop")
