"""Workers: how handlers are run, and how their results are taken."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from contrail.client.consumed_message import ConsumedMessage, ConsumeResult
from contrail.client.consuming import Bell, Handler, HandlerRun, Watch, Workers
from contrail.client.consuming_concurrent import ConcurrentSupply
from contrail.client.consuming_directly import consume_directly
from contrail.client.hooks import ConsumeHook, ConsumeOutcome
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError
from contrail.testing import eventually_async
from tests.unit.client.consuming_setup import FakeReader, FakeSendBack, made

PATIENCE_S = 60.0


class Setup:
    """Workers over a supply; made within a running loop."""

    def __init__(
        self,
        handler: Callable[..., Any],
        *,
        takes_list: bool = False,
        count_max: int = 4,
        hooks: Sequence[ConsumeHook] = (),
    ) -> None:
        self.reader = FakeReader()
        self.send_back = FakeSendBack()
        self.supply = ConcurrentSupply(
            self.send_back.real,
            is_broadcasting=False,
            call_one=lambda: self.workers.call_one(),
            local_retry_s=0.0,
        )
        self.handler = Handler(handler, takes_list=takes_list)
        self.workers = Workers(
            self.supply,
            Bell(),
            HandlerRun(self.handler, count_max),
            Watch("g", hooks, timeout_ms=60_000),
            group="g",
            count_max=count_max,
            batch_count_max=8,
        )

    def pull(self, count: int) -> None:
        self.supply.submit(self.reader.real, self.reader.pull(count))

    async def until(self, happened: Callable[[], Any]) -> None:
        await eventually_async(happened, pause_s=0.001)

    async def all_settled(self) -> None:
        await self.until(lambda: not self.reader.held)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_handlers_that_wait_run_side_by_side_up_to_the_bound() -> None:
    async def main() -> None:
        running = most = 0

        async def handler(message: ConsumedMessage) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

        setup = Setup(handler, count_max=3)
        setup.pull(20)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert most == 3

    run(main)


def test_quick_handlers_let_others_run_in_between() -> None:
    async def main() -> None:
        turns = 0

        async def handler(message: ConsumedMessage) -> None:
            pass

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        setup = Setup(handler)
        beside = asyncio.create_task(other())
        setup.pull(1_000)
        await setup.all_settled()
        beside.cancel()
        await setup.workers.stop(PATIENCE_S)
        assert turns > 5

    run(main)


@pytest.mark.parametrize("is_plain", [False, True])
def test_raising_asking_for_later_and_unknown_results_send_back(is_plain: bool) -> None:
    def judge(message: ConsumedMessage) -> object:
        if message.queue_offset == 0:
            raise ValueError("no")
        return [None, ConsumeResult.LATER, "what?", ConsumeResult.SUCCESS][message.queue_offset]

    async def judge_later(message: ConsumedMessage) -> object:
        return judge(message)

    async def main() -> None:
        setup = Setup(judge if is_plain else judge_later)
        setup.pull(4)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert sorted(setup.send_back.returned) == [(0, 0), (1, 0), (2, 0)]
        counts = setup.reader.figures.counts
        assert (counts.ok_count, counts.failed_count) == (1, 3)

    run(main)


def test_a_list_handler_gets_lists() -> None:
    async def main() -> None:
        sizes: list[int] = []

        async def handler(messages: list[ConsumedMessage]) -> None:
            sizes.append(len(messages))

        setup = Setup(handler, takes_list=True)
        setup.pull(20)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert sizes == [8, 8, 4]

    run(main)


def test_a_plain_function_that_returns_a_coroutine_is_waited_for() -> None:
    async def main() -> None:
        done: list[int] = []

        async def work(message: ConsumedMessage) -> None:
            done.append(message.queue_offset)

        setup = Setup(lambda message: work(message))
        setup.pull(3)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert sorted(done) == [0, 1, 2]

    run(main)


def test_a_stuck_thread_keeps_no_other_message_waiting() -> None:
    async def main() -> None:
        release, done = threading.Event(), []

        def handler(message: ConsumedMessage) -> None:
            if message.queue_offset == 500:
                release.wait(PATIENCE_S)
            done.append(message.queue_offset)

        setup = Setup(handler, count_max=2)
        setup.pull(2_000)
        # All but the stuck one, although it was handed out together with others.
        await setup.until(lambda: setup.reader.held == [500])
        assert len(done) == 1_999
        release.set()
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)

    run(main)


@pytest.mark.parametrize("takes_list", [False, True])
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_plain_handler_that_calls_exit_has_failed_and_is_logged_once(
    kind: type[BaseException], takes_list: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        def handler(given: object) -> None:
            raise kind(3)

        setup = Setup(handler, takes_list=takes_list)
        setup.pull(1)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert setup.send_back.returned == [(0, 0)]
        assert setup.reader.figures.counts.failed_count == 1

    run(main)
    assert [record.getMessage()[:21] for record in caplog.records] == ["the handler of group "]


def test_an_operators_message_survives_a_handler_that_calls_exit() -> None:
    async def main() -> None:
        run = HandlerRun(Handler(lambda message: sys.exit(3), takes_list=False), 1)
        told = await consume_directly(run, made(FakeReader(), 0), is_orderly=False)
        run.close()
        assert told["remark"] == "SystemExit: 3"

    run(main)


def test_the_threads_of_handlers_do_not_outlive_the_program_and_end_with_the_workers() -> None:
    async def main() -> None:
        threads: set[threading.Thread] = set()

        def handler(message: ConsumedMessage) -> None:
            threads.add(threading.current_thread())
            time.sleep(0.001)

        setup = Setup(handler, count_max=3)
        setup.pull(100)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert 1 <= len(threads) <= 3
        assert all(thread.daemon for thread in threads)
        await setup.until(lambda: not any(thread.is_alive() for thread in threads))

    run(main)


def test_threads_of_a_dropped_consumer_end() -> None:
    threads: list[threading.Thread] = []

    async def main() -> None:
        handler_run = HandlerRun(
            Handler(lambda _: threads.append(threading.current_thread()), takes_list=False), 1
        )
        await handler_run([made(FakeReader(), 0)])

    run(main)
    gc.collect()
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()


def test_a_thread_that_ends_after_its_loop_raises_nothing() -> None:
    began, release = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    async def main() -> None:
        def handler(message: ConsumedMessage) -> None:
            threads.append(threading.current_thread())
            began.set()
            release.wait(PATIENCE_S)

        setup = Setup(handler)
        setup.pull(1)
        await asyncio.to_thread(began.wait, PATIENCE_S)
        await setup.workers.stop(0.0)

    # An exception in a thread fails the test that runs at that time: this one.
    run(main)
    release.set()
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_handler_is_recognised_where_it_calls_from_and_only_while_it_runs(is_plain: bool) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers: list[bool] = []
        inherited: list[asyncio.Task[None]] = []
        over = asyncio.Event()

        async def ask() -> None:
            answers.append(handler.is_caller)

        async def ask_later() -> None:
            await over.wait()
            await ask()

        async def start_one() -> None:
            inherited.append(asyncio.create_task(ask_later()))

        def plain(message: ConsumedMessage) -> None:
            asyncio.run_coroutine_threadsafe(ask(), loop).result(PATIENCE_S)
            asyncio.run_coroutine_threadsafe(start_one(), loop).result(PATIENCE_S)

        async def waiting(message: ConsumedMessage) -> None:
            await ask()
            await start_one()

        setup = Setup(plain if is_plain else waiting)
        handler = setup.handler
        setup.pull(1)
        await setup.all_settled()
        over.set()
        await asyncio.gather(*inherited)
        await ask()
        await setup.workers.stop(PATIENCE_S)
        assert answers == [True, False, False]

    run(main)


def test_cancelling_a_handlers_task_has_its_message_retried() -> None:
    async def main() -> None:
        attempts = 0

        async def handler(message: ConsumedMessage) -> None:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

        setup = Setup(handler)
        setup.pull(1)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert (attempts, setup.send_back.returned) == (2, [])

    run(main)


def test_a_handler_that_meets_a_cancelled_future_has_failed() -> None:
    async def main() -> None:
        async def handler(message: ConsumedMessage) -> None:
            raise asyncio.CancelledError

        setup = Setup(handler)
        setup.pull(1)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert setup.send_back.returned == [(0, 0)]

    run(main)


def test_stopping_waits_for_handlers_and_cancels_those_that_are_late() -> None:
    async def main() -> None:
        ends: list[str] = []

        async def handler(message: ConsumedMessage) -> None:
            try:
                await asyncio.sleep(0.01 if message.queue_offset == 0 else 1_000)
                ends.append("finished")
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        setup = Setup(handler, count_max=2)
        setup.pull(3)
        await asyncio.sleep(0.001)
        await setup.workers.stop(0.2)
        assert ends == ["finished", "cancelled"]
        # Neither the late message nor the one that was not begun is settled.
        assert setup.reader.held == [1, 2]

    run(main)


def test_hooks_see_each_handling_and_how_it_ended() -> None:
    async def main() -> None:
        seen: list[tuple[object, ConsumeOutcome, type[BaseException] | None]] = []

        class Hook:
            def before_consume(self, group: str, messages: Sequence[ReceivedMessage]) -> object:
                return (group, messages[0].queue_offset)

            def after_consume(
                self,
                token: object,
                outcome: ConsumeOutcome,
                cost_ms: int,
                error: BaseException | None = None,
            ) -> None:
                seen.append((token, outcome, type(error) if error else None))

        async def handler(message: ConsumedMessage) -> ConsumeResult | None:
            if message.queue_offset == 1:
                raise ValueError
            return ConsumeResult.LATER if message.queue_offset == 2 else None

        setup = Setup(handler, count_max=1, hooks=[Hook()])
        setup.pull(3)
        await setup.all_settled()
        await setup.workers.stop(PATIENCE_S)
        assert seen == [
            (("g", 0), ConsumeOutcome.SUCCESS, None),
            (("g", 1), ConsumeOutcome.EXCEPTION, ValueError),
            (("g", 2), ConsumeOutcome.FAILED, None),
        ]

    run(main)


def test_a_handler_must_be_callable() -> None:
    with pytest.raises(ClientError, match="callable"):
        Handler("no", takes_list=False)  # type: ignore[arg-type]


def test_an_object_with_an_async_call_is_no_plain_function() -> None:
    class Object:
        async def __call__(self, message: object) -> None: ...

    assert Handler(Object(), takes_list=False).is_async
    assert not Handler(print, takes_list=False).is_async


def test_an_operators_message_reaches_the_handler_and_the_result_is_returned() -> None:
    async def main() -> None:
        async def handler(message: ConsumedMessage) -> ConsumeResult | None:
            await message.ack()
            if message.queue_offset == 1:
                raise ValueError("broken")
            return ConsumeResult.LATER if message.queue_offset == 2 else None

        run = HandlerRun(Handler(handler, takes_list=False), 1)
        told = [
            await consume_directly(run, made(FakeReader(), number), is_orderly=False)
            for number in range(3)
        ]
        assert [one["consumeResult"] for one in told] == [
            "CR_SUCCESS",
            "CR_THROW_EXCEPTION",
            "CR_LATER",
        ]
        assert told[1]["remark"] == "ValueError: broken"
        nobody = await consume_directly(None, made(FakeReader(), 0), is_orderly=True)
        assert "no handler" in str(nobody["remark"])

    run(main)
