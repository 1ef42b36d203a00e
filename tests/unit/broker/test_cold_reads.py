"""Pulls of old messages: which of them wait for the disk, and the order of their answers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.broker.services.cold_reads import ColdReads, FarAnswer, FarPull, FastPull
from contrail.broker.state.pull_plan import PullPlan
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request
from contrail.runtime.files import FilePart
from contrail.store.services.residency import OnDisk
from tests.fakes.peers import FakePeer

PATIENCE_S = 30.0
PART = FilePart(Path("/store/commitlog/00000000000000000000"), 0, 4096)


class Reader(FakePeer):
    is_choked = False


class Loop:
    """An event loop that is turned by hand; threads may report to it."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []
        self._reported: queue.Queue[Callable[[], None]] = queue.Queue()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.later.append((delay, callback))

    def call_soon_threadsafe(self, callback: Callable[..., None], *given: object) -> None:
        self._reported.put(lambda: callback(*given))

    def turn(self) -> int:
        """Run what is due now, not what that leads to."""
        due, self.soon = self.soon, []
        for callback in due:
            callback()
        return len(due)

    def settle(self) -> None:
        while self.turn():
            pass

    def take_report(self) -> None:
        """Wait for a thread, and run what it asks for."""
        self._reported.get(timeout=PATIENCE_S)()


class Store:
    """Knows by queue what is missing; bringing it in works once the gate is open."""

    def __init__(self) -> None:
        self.missing: dict[int, list[FilePart]] = {}
        self.asked: list[int] = []
        self.announced: list[FilePart] = []
        self.readers: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: Exception | None = None
        self.physical_end = 0

    def on_disk(self, topic: bytes, queue_id: int, queue_offset: int, **_: object) -> OnDisk:
        self.asked.append(queue_id)
        return OnDisk(self.missing.get(queue_id, []), self.physical_end)

    def bring_in(self, part: FilePart) -> None:
        self.readers.append(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.missing = {at: parts for at, parts in self.missing.items() if parts != [part]}

    def announce(self, part: FilePart) -> None:
        self.announced.append(part)

    def record_parts(self, physical_offset: int, byte_count: int) -> list[FilePart]:
        return [FilePart(PART.path, physical_offset, byte_count)]

    def row_parts(
        self, topic: bytes, queue_id: int, queue_offset: int, count: int
    ) -> list[FilePart]:
        return []


class Setting:
    def __init__(self) -> None:
        self.loop, self.store = Loop(), Store()
        self.now_s = 0.0
        self.answered: list[int] = []
        self.reads = ColdReads(self.store, self._answer, time_s=lambda: self.now_s)
        self.reads.begin(self.loop)

    def _answer(self, pull: FarPull) -> None:
        self.answered.append(pull.plan.queue_id)

    def take(self, queue_id: int, peer: Reader, **bounds: int) -> bool:
        request = Request(RequestCode.PULL_MESSAGE, queue_id, {}, b"")
        plan = PullPlan("g", "orders", b"orders", queue_id, 0, 32, 4, None, None, 0, 0)
        pull = FarPull(request, peer, plan, 32, 1 << 18)
        bounds = {"count_max": 100, "count_per_peer_max": 100, **bounds}
        return self.reads.take(pull, **bounds)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_pull_whose_bytes_are_in_memory_is_answered_without_a_thread(setting: Setting) -> None:
    setting.take(1, Reader())
    assert not setting.answered, "its turn comes after what arrived with it"
    setting.loop.settle()
    assert setting.answered == [1]
    assert setting.store.readers == []
    assert len(setting.reads) == 0


def test_missing_bytes_are_brought_in_by_another_thread(setting: Setting) -> None:
    setting.store.missing = {1: [PART]}
    setting.take(1, Reader())
    setting.loop.settle()
    assert setting.answered == []
    setting.loop.take_report()
    setting.loop.settle()
    assert setting.answered == [1]
    assert [name.startswith("cold-reads") for name in setting.store.readers] == [True]
    setting.reads.close()


def test_a_connection_that_waits_for_the_disk_holds_up_its_own_pulls_only(setting: Setting) -> None:
    slow, brisk = Reader(), Reader()
    setting.store.missing = {1: [PART]}
    setting.store.gate.clear()
    for queue_id in (1, 2):
        setting.take(queue_id, slow)
    setting.take(3, brisk)
    setting.loop.settle()
    assert setting.answered == [3]
    setting.store.gate.set()
    setting.loop.take_report()
    setting.loop.settle()
    assert setting.answered == [3, 1, 2]
    setting.reads.close()


def test_connections_take_turns(setting: Setting) -> None:
    many, few = Reader(), Reader()
    for queue_id in (1, 2, 3):
        setting.take(queue_id, many)
    setting.take(10, few)
    setting.loop.settle()
    assert setting.answered == [1, 10, 2, 3]


def test_a_round_ends_when_its_time_is_over(setting: Setting) -> None:
    peer = Reader()
    answer = setting.reads._answer

    def slowly(pull: FarPull) -> None:
        setting.now_s += 1.0
        answer(pull)

    setting.reads._answer = slowly
    for queue_id in (1, 2, 3):
        setting.take(queue_id, peer)
    for done in (1, 2, 3):
        assert setting.loop.turn() == 1
        assert len(setting.answered) == done


def test_pulls_of_a_closed_connection_are_dropped(setting: Setting) -> None:
    gone, here = Reader(), Reader()
    setting.take(1, gone)
    setting.take(2, here)
    gone.is_closed = True
    setting.loop.settle()
    assert setting.answered == [2]
    assert len(setting.reads) == 0


def test_a_connection_that_closes_while_the_disk_works_is_forgotten(setting: Setting) -> None:
    peer = Reader()
    setting.store.missing = {1: [PART]}
    setting.take(1, peer)
    setting.loop.settle()
    peer.is_closed = True
    setting.loop.take_report()
    setting.loop.settle()
    assert setting.answered == []
    assert len(setting.reads) == 0
    setting.reads.close()


def test_a_reader_that_is_full_gets_its_answer_later(setting: Setting) -> None:
    peer = Reader()
    peer.is_choked = True
    setting.take(1, peer)
    setting.loop.settle()
    assert setting.answered == []
    peer.is_choked = False
    [(delay, again)] = setting.loop.later
    assert delay > 0
    again()
    setting.loop.settle()
    assert setting.answered == [1]


def test_too_many_waiting_pulls_are_refused(setting: Setting) -> None:
    first, second = Reader(), Reader()
    assert setting.take(1, first, count_per_peer_max=1)
    assert not setting.take(2, first, count_per_peer_max=1)
    assert setting.take(3, second, count_per_peer_max=1)
    assert not setting.take(4, Reader(), count_max=2)


def test_bytes_that_never_stay_in_memory_do_not_keep_a_pull_for_ever(setting: Setting) -> None:
    setting.store.missing = {1: [PART, PART]}
    setting.take(1, Reader())
    setting.loop.settle()
    for _ in range(8):
        assert setting.answered == []
        setting.loop.take_report()
        setting.loop.settle()
    assert setting.answered == [1]
    setting.reads.close()


@pytest.mark.parametrize("error", [FileNotFoundError("retention"), OSError(5, "broken disk")])
def test_records_that_cannot_be_brought_in_are_left_to_the_answer(
    setting: Setting, error: OSError
) -> None:
    setting.store.missing = {1: [PART]}
    setting.store.error = error
    setting.take(1, Reader())
    setting.loop.settle()
    for _ in range(8):
        setting.loop.take_report()
        setting.loop.settle()
    assert setting.answered == [1]
    setting.reads.close()


def test_a_pull_that_cannot_be_answered_does_not_stop_the_others(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    peer = Reader()
    answer = setting.reads._answer

    def failing(pull: FarPull) -> None:
        if pull.plan.queue_id == 1:
            raise ValueError("planted")
        answer(pull)

    setting.reads._answer = failing
    for queue_id in (1, 2):
        setting.take(queue_id, peer)
    setting.loop.settle()
    assert setting.answered == [2]
    assert "was not answered" in caplog.text


def test_a_store_that_cannot_say_what_is_missing_is_read_all_the_same(setting: Setting) -> None:
    def failing(*_: object, **__: object) -> OnDisk:
        raise FileNotFoundError("retention took the rows")

    setting.store.on_disk = failing  # type: ignore[method-assign]
    setting.take(1, Reader())
    setting.loop.settle()
    assert setting.answered == [1]


def test_a_read_ahead_hint_is_given_once_for_all_pulls_there(setting: Setting) -> None:
    setting.store.physical_end = 5 << 20
    setting.take(1, Reader())
    setting.take(2, Reader())
    setting.loop.settle()
    setting.loop.take_report()
    mib = 1 << 20
    assert [(part.position, part.byte_count) for part in setting.store.announced] == [
        (5 * mib, 3 * mib),
        (8 * mib, 4 * mib),
    ]
    setting.reads.close()


def test_closing_returns_what_was_not_answered_and_takes_no_more(setting: Setting) -> None:
    setting.store.missing = {1: [PART]}
    setting.store.gate.clear()
    peer = Reader()
    for queue_id in (1, 2):
        setting.take(queue_id, peer)
    setting.loop.settle()
    # Reads that no thread has begun by then would only be dropped.
    assert setting.store.entered.wait(PATIENCE_S)
    left = setting.reads.close()
    assert [pull.plan.queue_id for pull in left] == [1, 2]
    setting.store.gate.set()
    setting.loop.take_report()
    setting.loop.settle()
    assert setting.answered == []
    assert not setting.take(3, peer)


def fast_pull(peer: Reader, told: list[str], name: str, *, in_memory: bool) -> FastPull:
    def answer() -> FarAnswer | None:
        told.append(f"{name} tried")
        return FarAnswer(b"t", 0, 0, 0) if in_memory else None

    return FastPull(peer, answer, lambda: told.append(f"{name} general"))


def test_a_fast_pull_is_answered_in_its_turn_or_goes_the_general_way() -> None:
    told: list[str] = []
    loop, peer = Loop(), Reader()
    reads = ColdReads(Store(), lambda pull: None, time_s=lambda: 0.0)
    reads.begin(loop)
    for name, in_memory in (("first", True), ("second", False), ("third", True)):
        pull = fast_pull(peer, told, name, in_memory=in_memory)
        assert reads.take(pull, count_max=10, count_per_peer_max=10)
    loop.turn()
    assert told == ["first tried", "second tried", "second general", "third tried"]
    assert len(reads) == 0


def test_fast_pulls_in_line_go_the_general_way_when_the_broker_stops() -> None:
    told: list[str] = []
    loop, peer = Loop(), Reader()
    reads = ColdReads(Store(), lambda pull: None)
    reads.begin(loop)
    assert reads.take(
        fast_pull(peer, told, "held", in_memory=True), count_max=1, count_per_peer_max=1
    )
    assert reads.close() == []
    assert told == ["held general"]
    loop.turn()
    assert told == ["held general"]


@pytest.mark.parametrize(("byte_count", "direct_count"), [(1, 8), (300_000, 1)])
def test_a_few_pulls_skip_the_line_while_no_pull_waits(
    setting: Setting, byte_count: int, direct_count: int
) -> None:
    reads, answered = setting.reads, 0
    while reads.may_skip_line:
        reads.note_direct(byte_count)
        answered += 1
    assert answered == direct_count
    # Before the loop looks for something new.
    assert setting.loop.turn() == 1
    assert reads.may_skip_line
    setting.take(0, Reader())
    assert not reads.may_skip_line, "another pull is in line before it"
    setting.loop.turn()
    assert reads.may_skip_line
