"""Requests that read old messages: broken off, brought in, carried out once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrail.broker.services import far_reads
from contrail.broker.services.far_reads import FarReads
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.files import FilePart
from contrail.store.services.residency import AbsentParts, DiskWaits, NotInMemory
from contrail.wire.peer import LATER, Answer, Peer
from tests.fakes.peers import FakePeer

PATIENCE_S = 30.0
VIEW, END = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.END_TRANSACTION


class Loop:
    """Runs what threads report when it is told to."""

    def __init__(self) -> None:
        self._reported: queue.Queue[Callable[[], None]] = queue.Queue()

    def call_soon_threadsafe(self, callback: Callable[..., None], *given: object) -> None:
        self._reported.put(lambda: callback(*given))

    def take_report(self) -> None:
        self._reported.get(timeout=PATIENCE_S)()


class Store:
    """Pages by number; a read of one that is not there waits, or says so."""

    def __init__(self) -> None:
        self.disk_waits = DiskWaits()
        self.pages: set[int] = set()
        self.tells = True
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: Exception | None = None
        self.readers: list[str] = []
        self.waited: list[int] = []

    def read(self, page: int) -> None:
        if page in self.pages:
            return
        if self.disk_waits.are_forbidden:
            raise NotInMemory([part_of(page)])
        self.waited.append(page)

    def bring_in(self, part: FilePart) -> None:
        self.readers.append(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        if self.tells:
            self.pages.add(part.position)


def part_of(page: int) -> FilePart:
    return FilePart(Path("/store/commitlog/00000000000000000000"), page, 1)


class Setting:
    """Handlers that read the pages a request names, then say that they were carried out."""

    def __init__(self) -> None:
        self.loop, self.store = Loop(), Store()
        self.carried_out: list[int] = []
        self.after_count = 0
        self.reads = FarReads(self.store, after=self._after)
        self.reads.begin(self._answer, self.loop)
        self.handlers = self.reads.guarded(dict.fromkeys((VIEW, END), self._handle))

    def _after(self) -> None:
        self.after_count += 1

    def _handle(self, request: Request, peer: Peer) -> Response:
        for page in request.fields.get("pages", "").split():
            self.store.read(int(page))
        self.carried_out.append(request.opaque)
        return Response(remark="done")

    def _answer(self, request: Request, peer: Peer) -> None:
        peer.reply(request, self._handle(request, peer))

    def ask(
        self, opaque: int, pages: str, *, peer: FakePeer, code: int = VIEW, place: str = "0"
    ) -> Answer:
        fields = {"pages": pages, "commitLogOffset": place}
        return self.handlers[code](Request(code, opaque, fields), peer)


@pytest.fixture
def setting() -> Setting:
    return Setting()


@pytest.fixture
def peer() -> FakePeer:
    return FakePeer()


def test_a_request_whose_records_are_in_memory_is_answered_now(
    setting: Setting, peer: FakePeer
) -> None:
    setting.store.pages = {1, 2}
    answer = setting.ask(7, "1 2", peer=peer)
    assert isinstance(answer, Response) and answer.remark == "done"
    assert setting.store.readers == [] and len(setting.reads) == 0
    assert not setting.store.disk_waits.are_forbidden


def test_missing_parts_are_brought_in_one_by_one_and_the_request_carried_out_once(
    setting: Setting, peer: FakePeer
) -> None:
    assert setting.ask(7, "1 2 3", peer=peer) is LATER
    assert len(setting.reads) == 1
    for _ in range(3):
        assert setting.carried_out == []
        setting.loop.take_report()
    assert setting.carried_out == [7]
    assert [response.remark for _, response in peer.replies] == ["done"]
    assert setting.store.waited == [] and len(setting.reads) == 0
    assert {name.rpartition("_")[0] for name in setting.store.readers} == {"far-reads"}
    assert setting.after_count > 0
    setting.reads.close()


def test_a_request_that_waits_for_the_disk_holds_up_no_other(
    setting: Setting, peer: FakePeer
) -> None:
    setting.store.gate.clear()
    setting.ask(1, "1", peer=peer)
    setting.store.pages.add(2)
    assert setting.ask(2, "2", peer=peer) is not LATER
    setting.store.gate.set()
    setting.loop.take_report()
    assert setting.carried_out == [2, 1]
    setting.reads.close()


def test_ends_of_one_transaction_keep_their_order(setting: Setting, peer: FakePeer) -> None:
    setting.store.gate.clear()
    setting.ask(1, "1", peer=peer, code=END, place="100")
    # The second finds everything in memory, and must not overtake the first.
    assert setting.ask(2, "", peer=peer, code=END, place="100") is LATER
    assert setting.ask(3, "", peer=peer, code=END, place="200") is not LATER
    setting.store.gate.set()
    setting.loop.take_report()
    assert setting.carried_out == [3, 1, 2]
    assert len(setting.reads) == 0
    setting.reads.close()


def test_a_second_end_that_lacks_more_waits_for_it(setting: Setting, peer: FakePeer) -> None:
    setting.ask(1, "1", peer=peer, code=END, place="100")
    setting.ask(2, "1 2", peer=peer, code=END, place="100")
    setting.loop.take_report()
    assert setting.carried_out == [1]
    setting.loop.take_report()
    assert setting.carried_out == [1, 2]
    setting.reads.close()


def test_a_question_of_a_closed_connection_is_dropped_and_an_end_counts(
    setting: Setting, peer: FakePeer
) -> None:
    setting.ask(1, "1", peer=peer)
    setting.ask(2, "2", peer=peer, code=END)
    peer.is_closed = True
    setting.loop.take_report()
    setting.loop.take_report()
    assert setting.carried_out == [2]
    assert len(setting.reads) == 0
    setting.reads.close()


def test_more_than_may_wait_are_refused(
    setting: Setting, peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_reads, "WAITING_PER_PEER_MAX", 2)
    monkeypatch.setattr(far_reads, "WAITING_MAX", 3)
    setting.store.gate.clear()
    for opaque in (1, 2):
        setting.ask(opaque, str(opaque), peer=peer)
    other = FakePeer("127.0.0.1:50002")
    with pytest.raises(RequestRejected) as refusal:
        setting.ask(3, "3", peer=peer)
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    setting.ask(4, "4", peer=other)
    with pytest.raises(RequestRejected) as refusal:
        setting.ask(5, "5", peer=other)
    assert refusal.value.code == ResponseCode.SYSTEM_BUSY
    setting.store.gate.set()
    for _ in range(3):
        setting.loop.take_report()
    assert sorted(setting.carried_out) == [1, 2, 4]
    setting.reads.close()


def test_the_error_of_a_failing_disk_is_the_answer(setting: Setting, peer: FakePeer) -> None:
    setting.store.error = OSError(5, "input/output error")
    setting.ask(1, "1", peer=peer)
    setting.loop.take_report()
    ((_, response),) = peer.replies
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "input/output error" in (response.remark or "")
    assert setting.carried_out == [] and len(setting.reads) == 0
    setting.reads.close()


def test_a_file_that_retention_took_is_no_failure(setting: Setting, peer: FakePeer) -> None:
    setting.store.error = FileNotFoundError(2, "gone")
    setting.ask(1, "1", peer=peer)
    setting.store.pages.add(1)
    setting.loop.take_report()
    assert setting.carried_out == [1]
    setting.reads.close()


def test_where_nobody_tells_what_is_in_memory_the_request_is_answered_all_the_same(
    setting: Setting, peer: FakePeer
) -> None:
    setting.store.tells = False
    setting.ask(1, "1", peer=peer)
    for _ in range(far_reads.FUTILE_TRIES_MAX):
        assert setting.carried_out == []
        setting.loop.take_report()
    assert setting.carried_out == [1] and setting.store.waited == [1]
    setting.reads.close()


def test_a_request_that_never_ends_is_refused(
    setting: Setting, peer: FakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(far_reads, "TRIES_MAX", 3)
    setting.ask(1, "1 2 3 4 5", peer=peer)
    for _ in range(3):
        setting.loop.take_report()
    ((_, response),) = peer.replies
    assert response.code == ResponseCode.SYSTEM_BUSY
    assert setting.carried_out == [] and len(setting.reads) == 0
    setting.reads.close()


def test_those_that_wait_at_the_end_are_refused(setting: Setting, peer: FakePeer) -> None:
    setting.store.gate.clear()
    setting.ask(1, "1", peer=peer)
    # Reads that no thread has begun by then would only be dropped.
    assert setting.store.entered.wait(PATIENCE_S)
    setting.reads.close()
    assert [response.code for _, response in peer.replies] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    setting.store.gate.set()
    setting.loop.take_report()
    assert setting.carried_out == []
    with pytest.raises(RequestRejected) as refusal:
        setting.ask(2, "2", peer=peer)
    assert refusal.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_service_is_told_to_come_again_and_nothing_is_read_twice_at_a_time(
    setting: Setting,
) -> None:
    setting.store.gate.clear()
    for _ in range(5):
        with pytest.raises(NotInMemory):
            setting.reads.attempt(lambda: setting.store.read(1))
    setting.store.gate.set()
    setting.loop.take_report()
    setting.reads.attempt(lambda: setting.store.read(1))
    assert len(setting.store.readers) == 1
    assert not setting.store.disk_waits.are_forbidden
    setting.reads.close()


def test_the_missing_parts_of_several_reads_are_named_together() -> None:
    store, absent = Store(), AbsentParts()
    with store.disk_waits:
        for page in (1, 2, 1):
            with absent:
                store.read(page)
    with pytest.raises(NotInMemory) as found:
        absent.require_none()
    assert found.value.parts == [part_of(1), part_of(2)]


def test_other_errors_pass_through_those_that_gather() -> None:
    absent = AbsentParts()
    with pytest.raises(RequestRejected), absent:
        raise RequestRejected(1, "no")
    absent.require_none()
