"""Idempotent handlers over a SQLite file: work and marks after a kill, transactions, threads."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

import contrail
from contrail.client.consumed_message import ConsumeResult
from contrail.client.idempotent import idempotent
from contrail.client.idempotent_stores import SqliteStore, Standing
from contrail.client.message import Message
from contrail.client.producer import Producer
from contrail.clock import ManualClock
from contrail.errors import ClientError
from contrail.testing.cluster import LocalCluster
from tests.e2e.idempotent_child import EFFECT, received

RUN_TIMEOUT_S = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "handled.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE effects (message_id TEXT)")
    return file


def effects(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM effects").fetchone()
    return int(count)


@contextmanager
def started(path: Path, mode: str, pauses: str, *namesrv: str) -> Iterator[IO[str]]:
    """A child process that works; killed at the end. Yields its output."""
    command = [sys.executable, "-m", "tests.e2e.idempotent_child", str(path), mode, pauses]
    child = subprocess.Popen([*command, *namesrv], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        try:
            yield child.stdout
        finally:
            child.kill()
            assert child.wait(RUN_TIMEOUT_S) == -9


def killed_half_way(path: Path, mode: str, *namesrv: str) -> None:
    """Begin to handle the message in a child, and kill it when its work is half done."""
    with started(path, mode, "yes", *namesrv) as printed:
        assert printed.readline() == "half done\n"


def handled(path: Path, mode: str) -> bool:
    """Handle the message in a child; whether the handler ran."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.idempotent_child", str(path), mode, "no"],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout == "half done\n"


@pytest.mark.proves("client.consumers.idempotent")
@pytest.mark.parametrize("mode", ["transaction", "async transaction"])
def test_a_kill_in_mid_handling_leaves_neither_work_nor_mark_and_both_come_once(
    path: Path, mode: str
) -> None:
    killed_half_way(path, mode)
    assert effects(path) == 0
    assert handled(path, mode)
    assert not handled(path, mode)
    assert effects(path) == 1


def test_work_beside_the_store_is_done_again_after_a_kill(path: Path) -> None:
    killed_half_way(path, "run")
    assert effects(path) == 1
    assert handled(path, "run")
    assert not handled(path, "run")
    assert effects(path) == 2


def test_with_skip_a_message_that_a_kill_left_unfinished_is_skipped(path: Path) -> None:
    killed_half_way(path, "skip")
    assert not handled(path, "skip")
    assert effects(path) == 1


@pytest.mark.proves("client.consumers.idempotent")
def test_each_order_has_its_effect_once_though_sent_twice_and_its_consumer_killed(
    path: Path,
) -> None:
    async def send(namesrv: str) -> list[str]:
        async with Producer("shop", namesrv) as producer:
            messages = [
                Message("orders", b"x", properties={"order": str(n % 10)}) for n in range(20)
            ]
            return [(await producer.send(message)).message_id for message in messages]

    with LocalCluster() as cluster:
        sent = asyncio.run(send(cluster.namesrv))
        killed_half_way(path, "by order", cluster.namesrv)
        assert effects(path) == 0
        acknowledged: set[str] = set()
        with started(path, "by order", "no", cluster.namesrv) as printed:
            while not acknowledged.issuperset(sent):
                line = printed.readline()
                assert line, "the consumer ended"
                acknowledged.add(line.strip())
    assert effects(path) == 10


def test_marks_are_kept_by_scope_and_for_their_time(tmp_path: Path) -> None:
    clock = ManualClock()

    async def main() -> None:
        billing = SqliteStore(tmp_path / "a.db", scope="billing", ttl_ms=1000, clock=clock)
        mailing = SqliteStore(tmp_path / "a.db", scope="mailing", ttl_ms=1000, clock=clock)
        await billing.note("k", Standing.DONE)
        assert await billing.standing("k") is Standing.DONE
        assert await mailing.standing("k") is Standing.UNKNOWN
        await billing.note("k", Standing.BEGUN)
        assert await billing.standing("k") is Standing.BEGUN
        clock.advance(ms=1000)
        assert await billing.standing("k") is Standing.UNKNOWN
        # The first note of a store drops expired keys.
        again = SqliteStore(tmp_path / "a.db", scope="billing", ttl_ms=1000, clock=clock)
        await again.note("new", Standing.DONE)
        rows = sqlite_rows(tmp_path / "a.db", "SELECT key FROM contrail_handled")
        assert rows == [("new",)]
        await again.forget("new")
        assert await again.standing("new") is Standing.UNKNOWN
        for store in (billing, mailing, again):
            await store.aclose()

    asyncio.run(main())


def sqlite_rows(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_the_file_is_made_when_it_is_needed_and_every_commit_is_synced(tmp_path: Path) -> None:
    path = tmp_path / "later.db"

    async def main() -> None:
        store = SqliteStore(path)
        assert not path.exists()
        async with store.transaction("k") as transaction:
            assert await transaction.run(lambda _: threading.current_thread()) is not (
                threading.main_thread()
            )
        # 2 is FULL; it cannot be read inside a transaction that changes it.
        assert await store._on_thread(_pragma("synchronous")) == [(2,)]
        assert await store._on_thread(_pragma("journal_mode")) == [("wal",)]
        await store.aclose()
        with pytest.raises(ClientError, match=r"later\.db is closed"):
            await store.standing("k")

    asyncio.run(main())


def _pragma(name: str) -> Any:
    return lambda connection: connection.execute(f"PRAGMA {name}").fetchall()


@pytest.mark.parametrize("ends", ["raises", "asks for later", "is cancelled"])
def test_a_transaction_that_did_not_succeed_leaves_nothing(path: Path, ends: str) -> None:
    async def main() -> None:
        store = SqliteStore(path)
        entered = asyncio.Event()

        @idempotent(store=store, in_transaction=True)
        async def handle(message: Any, transaction: Any) -> ConsumeResult | None:
            await transaction.execute(EFFECT, (message.message_id,))
            entered.set()
            if ends == "raises":
                raise ValueError("no")
            if ends == "is cancelled":
                await asyncio.Event().wait()
            return ConsumeResult.LATER

        task = asyncio.create_task(handle(received("a")))
        if ends == "is cancelled":
            await entered.wait()
            task.cancel()
        (result,) = await asyncio.gather(*[task], return_exceptions=True)
        expected = {"raises": ValueError, "is cancelled": asyncio.CancelledError}
        assert isinstance(result, expected.get(ends, ConsumeResult))
        assert await store.standing("a") is Standing.UNKNOWN
        await store.aclose()

    asyncio.run(main())
    assert effects(path) == 0


def test_copies_in_two_stores_of_one_file_do_their_work_once_in_transactions(path: Path) -> None:
    async def main() -> None:
        stores = [SqliteStore(path) for _ in range(2)]
        handlers = []
        for store in stores:

            @idempotent(store=store, in_transaction=True)
            def handle(message: Any, connection: sqlite3.Connection) -> None:
                connection.execute(EFFECT, (message.message_id,))

            handlers.append(handle)
        messages = [received(f"m{number}") for number in range(20)]
        await asyncio.gather(
            *(asyncio.to_thread(handle, message) for handle in handlers for message in messages)
        )
        for store in stores:
            await store.aclose()

    asyncio.run(main())
    assert effects(path) == 20


def test_a_plain_handler_of_a_blocking_consumer_keeps_to_its_threads_and_its_messages(
    path: Path,
) -> None:
    threads: set[str] = set()
    answers: list[object] = []
    running = most = 0
    lock, all_done = threading.Lock(), threading.Event()

    def handle(message: contrail.ConsumedMessage) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threads.add(threading.current_thread().name)
        answers.append(message.ack())  # type: ignore[func-returns-value]
        with lock:
            running -= 1
            if len(answers) == 10:
                all_done.set()

    with LocalCluster() as cluster, SqliteStore(path) as store:
        consumer = contrail.PushConsumer(
            "plain", cluster.namesrv, consume_from_where="first", consume_thread_max=2
        )
        consumer.subscribe("orders")
        consumer.on_message(idempotent(key="order", store=store)(handle))
        with contrail.Producer("shop", cluster.namesrv) as producer:
            for number in range(20):
                order = {"order": str(number % 10)}
                producer.send(Message("orders", b"x", properties=order))
        with consumer:
            assert all_done.wait(RUN_TIMEOUT_S)
    assert answers == [None] * 10
    assert most <= 2
    assert all(name.startswith("contrail-handler") for name in threads)
    assert sqlite_rows(path, "SELECT count(*) FROM contrail_handled WHERE done") == [(10,)]


@pytest.mark.parametrize("ends", ["raises", "asks for later", "exits"])
def test_a_plain_transaction_that_did_not_succeed_leaves_nothing(path: Path, ends: str) -> None:
    with SqliteStore(path) as store:

        @idempotent(store=store, in_transaction=True)
        def handle(message: Any, connection: sqlite3.Connection) -> ConsumeResult | None:
            connection.execute(EFFECT, (message.message_id,))
            if ends == "asks for later":
                return ConsumeResult.LATER
            raise {"raises": ValueError, "exits": SystemExit}[ends]

        if ends == "asks for later":
            assert handle(received("a")) is ConsumeResult.LATER
        else:
            with pytest.raises((ValueError, SystemExit)):
                handle(received("a"))
        assert store.standing_now("a") is Standing.UNKNOWN
    assert effects(path) == 0


def test_a_store_is_used_by_threads_and_several_loops_at_once(path: Path) -> None:
    """Each transaction spans awaits, and no statement of another comes between."""
    with SqliteStore(path) as store:

        @idempotent(store=store, in_transaction=True)
        async def on_loop(message: Any, transaction: Any) -> None:
            await transaction.execute(EFFECT, (message.message_id,))
            await asyncio.sleep(0)
            await transaction.execute(EFFECT, (message.message_id,))

        @idempotent(store=store, in_transaction=True)
        def in_thread(message: Any, connection: sqlite3.Connection) -> None:
            connection.executemany(EFFECT, [(message.message_id,)] * 2)

        def loop(number: int) -> None:
            async def main() -> None:
                await asyncio.gather(*(on_loop(received(f"{number}-{n}")) for n in range(10)))

            asyncio.run(main())

        def thread(number: int) -> None:
            for n in range(10):
                in_thread(received(f"{number}-{n}"))

        with ThreadPoolExecutor(4) as pool:
            works = [pool.submit(loop, n) for n in range(2)]
            works += [pool.submit(thread, n) for n in range(1, 3)]
            for work in works:
                work.result(RUN_TIMEOUT_S)
    # The keys of one loop and one thread are the same.
    assert effects(path) == 2 * 30


def test_a_store_may_be_closed_twice_and_in_both_ways(path: Path) -> None:
    async def main() -> None:
        async with SqliteStore(path) as store:
            await store.note("k", Standing.DONE)
            store.close()
        await store.aclose()
        store.close()
        with pytest.raises(ClientError, match="is closed"):
            store.standing_now("k")

    asyncio.run(main())


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"not a database, but long enough to be read as one" * 50)

    async def main() -> None:
        store = SqliteStore(tmp_path / "notes.txt")
        with pytest.raises(ClientError, match=r"notes\.txt cannot be used"):
            await store.standing("k")
        await store.aclose()

    asyncio.run(main())
