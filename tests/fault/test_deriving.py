"""Queues that are derived a moment after the append: never later than a read needs them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contrail.broker.services import deriving
from contrail.broker.services.deriving import Deriving
from contrail.errors import RecordDamaged
from contrail.store.log import MessageStore
from tests.fault.store_setup import draft, numbers_of, small_config

WAIT_S = 10
LARGE = {"segment_bytes": 1 << 20}


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test's coroutine to its end."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


class Scene:
    """A new store, its ``Deriving`` on the running loop, and no waiting pulls."""

    def __init__(self, root: Path) -> None:
        self.store = MessageStore.open(small_config(root, **LARGE))
        self.waited_for: dict[tuple[bytes, int], object] = {}
        self.broken_count = 0
        loop = asyncio.get_running_loop()
        # The time stands still unless a test moves it.
        self.now_s = 1000.0
        self.deriving = Deriving(
            self.store, self.waited_for, loop, on_broken=self._broke, now_s=lambda: self.now_s
        )

    def _broke(self) -> None:
        self.broken_count += 1

    def store_one(self, number: int, body_bytes: int = 100) -> None:
        """One message, and the end of the tick that brought it."""
        self.store.append_one(draft(number, body_bytes=body_bytes))
        self.deriving.after_tick()


async def until_derived(scene: Scene) -> None:
    """Timers are the loop's own, and run by the real clock."""
    async with asyncio.timeout(WAIT_S):
        while scene.deriving.is_behind:
            await asyncio.sleep(0.001)


@on_a_loop
async def test_messages_of_several_ticks_are_derived_together_and_soon(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        for number in range(3):
            scene.store_one(number)
        assert scene.deriving.is_behind
        assert numbers_of(scene.store) == []
        await until_derived(scene)
        assert numbers_of(scene.store) == [0, 1, 2]


@on_a_loop
async def test_a_read_sees_every_stored_message(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.store_one(0)
        scene.deriving.catch_up()
        assert numbers_of(scene.store) == [0]
        assert not scene.deriving.is_behind


@on_a_loop
async def test_while_a_pull_waits_messages_are_derived_without_delay(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.waited_for[b"another", 3] = object()
        scene.store_one(0)
        assert numbers_of(scene.store) == [0]


@pytest.mark.proves("apache.peers.held-pulls")
@on_a_loop
async def test_fast_messages_for_a_waiting_pull_are_derived_together_and_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deriving, "_LATER_S", 10 * WAIT_S)
    scene = Scene(tmp_path)
    with scene.store:
        scene.waited_for[b"another", 3] = object()
        seen = []
        for number in range(8):
            scene.store_one(number)
            seen.append(len(numbers_of(scene.store)))
        # A burst of a few messages is derived one by one.
        assert seen[:4] == [1, 2, 3, 4]
        assert seen[5:] == [seen[4]] * 3
        # A millisecond later the next message is in time.
        scene.now_s += 0.0011
        scene.store_one(8)
        assert numbers_of(scene.store) == list(range(9))
        scene.store_one(9)
        assert scene.deriving.is_behind
        # No further message comes: a timer derives the last one.
        await until_derived(scene)
        assert numbers_of(scene.store) == list(range(10))


@on_a_loop
async def test_no_waiting_pull_waits_long_however_often_queues_were_derived(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        for number in range(200):
            scene.store_one(number)
            # As a read does.
            scene.deriving.catch_up()
        scene.waited_for[b"another", 3] = object()
        scene.now_s += 0.0011
        scene.store_one(200)
        assert not scene.deriving.is_behind


@on_a_loop
async def test_a_pull_that_begins_to_wait_shortens_the_delay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deriving, "_LATER_S", 10 * WAIT_S)
    monkeypatch.setattr(deriving, "_BURST_S", -1e9)
    scene = Scene(tmp_path)
    with scene.store:
        scene.store_one(0)
        scene.deriving.hurry()
        assert scene.deriving.is_behind
        await until_derived(scene)


@on_a_loop
async def test_a_pull_that_begins_to_wait_counts_for_records_not_derived_yet(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        # As if the message had gone to a queue where no pull waits.
        scene.store.append_one(draft(0))
        scene.store._dispatcher.unawaited_end = scene.store.physical_end
        assert not scene.store.is_awaited
        scene.store.somebody_waits()
        assert scene.store.is_awaited


@on_a_loop
async def test_after_its_close_the_store_derives_the_rest(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.waited_for[b"another", 3] = object()
        scene.store.append_one(draft(0))
        scene.deriving.close()
        scene.deriving.after_tick()
        scene.deriving.hurry()
        scene.deriving.catch_up()
        assert numbers_of(scene.store) == []
    with MessageStore.open(small_config(tmp_path, **LARGE)) as store:
        assert numbers_of(store) == [0]


@on_a_loop
async def test_many_underived_bytes_are_derived_without_delay(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.store_one(0)
        for number in range(1, 5):
            scene.store_one(number, body_bytes=300 << 10)
        assert not scene.deriving.is_behind
        assert scene.store.queue_offset_max(b"orders", 0) == 5


@on_a_loop
async def test_closing_the_store_derives_messages_that_were_delayed(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.store_one(0)
    # The timer's call, if it comes after the close.
    scene.deriving.catch_up()
    assert scene.broken_count == 0
    with MessageStore.open(small_config(tmp_path, **LARGE)) as store:
        assert numbers_of(store) == [0]


@on_a_loop
async def test_a_log_that_cannot_be_read_on_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    scene.store_one(0)
    log_file = next((tmp_path / "commitlog").iterdir())
    with log_file.open("r+b") as damaged:
        damaged.write(b"\x7f")
    scene.deriving.catch_up()
    assert scene.broken_count == 1
    assert "cannot be read on" in caplog.text
    with pytest.raises(RecordDamaged):
        scene.store.close()


@on_a_loop
async def test_bytes_that_became_readable_without_a_tick_count_as_underived(tmp_path: Path) -> None:
    # As when a buffer of the transient pool is committed by the thread that flushes.
    scene = Scene(tmp_path)
    with scene.store:
        scene.store.append_one(draft(0))
        assert scene.deriving.is_behind
        scene.deriving.catch_up()
        assert not scene.deriving.is_behind


@on_a_loop
async def test_an_unexpected_failure_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    with scene.store:
        scene.store.append_one(draft(0))

        def fail() -> int:
            raise MemoryError("no room for rows")

        with monkeypatch.context() as failing:
            failing.setattr(scene.store, "dispatch", fail)
            scene.deriving.catch_up()
        assert "no room for rows" in caplog.text
        assert scene.deriving.is_behind
        scene.deriving.catch_up()
        assert numbers_of(scene.store) == [0]
