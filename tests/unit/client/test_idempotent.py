"""Idempotent handlers with a store in memory; tests of the SQLite store are under tests/e2e."""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextlib import suppress
from typing import Any

import pytest

from contrail.client.consumed_message import ConsumeResult
from contrail.client.idempotent import idempotent
from contrail.client.idempotent_stores import MemoryStore, Standing
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.clock import ManualClock
from contrail.errors import ClientError, ConfigError


def message(message_id: str = "id-1", **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"",
        queue=MessageQueue("orders", "broker-a", 0),
        queue_offset=0,
        message_id=message_id,
        offset_message_id="",
        properties=properties,
        reconsume_times=0,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def test_a_message_that_was_handled_is_not_handled_again() -> None:
    handled: list[str] = []

    @idempotent()
    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    async def main() -> None:
        for message_id in ("a", "b", "a"):
            await handle(message(message_id))

    asyncio.run(main())
    assert handled == ["a", "b"]


def test_a_plain_handler_stays_plain_runs_where_it_is_called_and_once() -> None:
    threads: list[threading.Thread] = []

    @idempotent()
    def handle(message: ReceivedMessage) -> None:
        threads.append(threading.current_thread())

    assert not inspect.iscoroutinefunction(handle)
    handle(message())
    handle(message())
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize("when_unfinished", ["run", "skip"])
@pytest.mark.parametrize("fails", [ValueError, SystemExit, ConsumeResult.LATER])
def test_a_plain_handler_that_did_not_succeed_runs_again(when_unfinished: Any, fails: Any) -> None:
    count = 0

    @idempotent(when_unfinished=when_unfinished)
    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        nonlocal count
        count += 1
        if count > 1:
            return None
        if isinstance(fails, ConsumeResult):
            return fails
        raise fails

    if isinstance(fails, ConsumeResult):
        assert handle(message()) is fails
    else:
        with pytest.raises(fails):
            handle(message())
    handle(message())
    handle(message())
    assert count == 2


def test_copies_in_threads_wait_for_the_first() -> None:
    began: list[int] = []
    gate, entered = threading.Event(), threading.Event()

    @idempotent()
    def handle(message: ReceivedMessage) -> None:
        began.append(1)
        entered.set()
        assert gate.wait(60)
        if len(began) == 1:
            raise ValueError("the first fails")

    def copy() -> None:
        with suppress(ValueError):
            handle(message())

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert entered.wait(60)
    assert len(began) == 1
    gate.set()
    for thread in threads:
        thread.join(60)
    # The second handler did the work that the first had not done, and the others found it done.
    assert len(began) == 2


def test_a_plain_handler_that_returns_a_coroutine_is_refused_and_not_marked() -> None:
    async def work() -> None: ...

    store = MemoryStore()
    handle = idempotent(store=store)(lambda message: work())
    with pytest.raises(ClientError, match="async def"):
        handle(message())
    assert store.standing_now("id-1") is Standing.UNKNOWN


def test_a_store_of_the_other_kind_is_refused_with_the_fix() -> None:
    class AsyncOnly:
        async def standing(self, key: str) -> Standing:
            return Standing.UNKNOWN

        async def note(self, key: str, standing: Standing) -> None: ...
        async def forget(self, key: str) -> None: ...

    class PlainOnly:
        def standing_now(self, key: str) -> Standing:
            return Standing.UNKNOWN

        def note_now(self, key: str, standing: Standing) -> None: ...
        def forget_now(self, key: str) -> None: ...

    async def handle(message: ReceivedMessage) -> None: ...

    with pytest.raises(ConfigError, match="standing_now"):
        idempotent(store=AsyncOnly())(print)
    with pytest.raises(ConfigError, match="async methods"):
        idempotent(store=PlainOnly())(handle)
    assert inspect.iscoroutinefunction(idempotent(store=AsyncOnly())(handle))


def test_the_key_is_a_property_or_a_function_of_the_message() -> None:
    handled: list[str] = []

    @idempotent(key="order")
    async def by_property(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    @idempotent(key=lambda message: message.properties["order"][:1])
    async def by_function(message: ReceivedMessage) -> None:
        handled.append(message.message_id)

    async def main() -> None:
        await by_property(message("1", order="x"))
        await by_property(message("2", order="x"))
        # Without the property the id tells messages apart.
        await by_property(message("3"))
        await by_property(message("4"))
        await by_function(message("5", order="x1"))
        await by_function(message("6", order="x2"))

    asyncio.run(main())
    assert handled == ["1", "3", "4", "5"]


@pytest.mark.parametrize("when_unfinished", ["run", "skip"])
@pytest.mark.parametrize("fails", ["raises", "asks for later"])
def test_a_handler_that_did_not_succeed_runs_again(when_unfinished: Any, fails: str) -> None:
    count = 0

    @idempotent(when_unfinished=when_unfinished)
    async def handle(message: ReceivedMessage) -> ConsumeResult | None:
        nonlocal count
        count += 1
        if count > 1:
            return None
        if fails == "raises":
            raise ValueError("not yet")
        return ConsumeResult.LATER

    async def main() -> None:
        if fails == "raises":
            with pytest.raises(ValueError, match="not yet"):
                await handle(message())
        else:
            assert await handle(message()) is ConsumeResult.LATER
        await handle(message())
        await handle(message())

    asyncio.run(main())
    assert count == 2


@pytest.mark.parametrize(("when_unfinished", "expected_count"), [("run", 1), ("skip", 0)])
def test_a_handler_that_began_and_never_ended_runs_or_is_skipped_as_chosen(
    when_unfinished: Any, expected_count: int
) -> None:
    store, handled = MemoryStore(), []

    @idempotent(store=store, when_unfinished=when_unfinished)
    async def handle(message: ReceivedMessage) -> None:
        handled.append(message)

    async def main() -> None:
        await store.note("id-1", Standing.BEGUN)
        await handle(message())

    asyncio.run(main())
    assert len(handled) == expected_count


def test_copies_at_the_same_time_wait_for_the_first() -> None:
    began: list[int] = []

    async def main() -> None:
        gate = asyncio.Event()

        @idempotent()
        async def handle(message: ReceivedMessage) -> None:
            began.append(1)
            await gate.wait()
            if len(began) == 1:
                raise ValueError("the first fails")

        tasks = [asyncio.create_task(handle(message())) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        assert len(began) == 1
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [ValueError, type(None), type(None)]

    asyncio.run(main())
    # The second handler did the work that the first had not done, and the third found it done.
    assert len(began) == 2


def test_a_memory_store_forgets_old_keys_and_the_oldest_of_too_many() -> None:
    clock = ManualClock(1_000)
    store = MemoryStore(limit=2, ttl_ms=100, clock=clock)

    async def main() -> None:
        for key in ("a", "b", "c"):
            await store.note(key, Standing.DONE)
        assert [await store.standing(key) for key in "abc"] == [
            Standing.UNKNOWN,
            Standing.DONE,
            Standing.DONE,
        ]
        clock.advance(ms=100)
        assert await store.standing("c") is Standing.UNKNOWN
        assert len(store) == 0

    asyncio.run(main())


def test_a_list_of_messages_is_refused_with_the_fix() -> None:
    @idempotent()
    async def handle(messages: list[ReceivedMessage]) -> None: ...

    with pytest.raises(ConfigError, match="on_message, not on_messages"):
        asyncio.run(handle([message()]))


def test_a_transaction_needs_a_store_with_transactions() -> None:
    with pytest.raises(ConfigError, match="SqliteStore"):
        idempotent(store=MemoryStore(), in_transaction=True)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'run' or 'skip'"):
        idempotent(when_unfinished="never")  # type: ignore[arg-type]
