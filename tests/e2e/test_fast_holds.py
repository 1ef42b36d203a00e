"""Held pulls of a consumer at the end of its queue; known ones are held without being decoded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from contrail.broker.fast import pull_templates
from contrail.broker.fast.pulls import FastPulls
from contrail.broker.services import deriving
from contrail.broker.services.deriving import Deriving
from contrail.broker.state.parked_pulls import DEADLINE_GRAIN_MS
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster, eventually
from contrail.wire.turns import Turns
from tests.e2e.asking import Asker
from tests.e2e.raw_client import PATIENCE_S, RawClient, pull_fields, send_fields
from tests.e2e.ways import FAST_ONLY

TOPIC = "tail"
GROUP = "readers"
SENT = send_fields(TOPIC)


class Reader:
    """A consumer that has read on to the end of its queue, as often as it takes to be known."""

    def __init__(self, asker: Asker, client: RawClient) -> None:
        self.asker = asker
        self.client = client
        self.opaque = 0
        for queue_offset in (0, 1, 0, 1):
            self.pull(queue_offset)
            assert self.answer().code == ResponseCode.SUCCESS

    @property
    def app(self) -> Any:
        assert self.asker.broker.app is not None
        return self.asker.broker.app

    def pull(self, queue_offset: int, **changes: str) -> None:
        self.opaque += 1
        fields = pull_fields(TOPIC, queue_offset, consumerGroup=GROUP, **changes)
        self.client.send(encode_request(Request(RequestCode.PULL_MESSAGE, self.opaque, fields)))

    def hold(self, queue_offset: int, **changes: str) -> None:
        held = self.app.pulls.held.parked
        count = len(held)
        self.pull(queue_offset, **changes)
        eventually(lambda: len(held) > count, "the pull is held")

    def answer(self) -> ReceivedResponse:
        answer: ReceivedResponse = self.client.next_frame()
        assert answer.opaque == self.opaque
        return answer


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def reader(request: pytest.FixtureRequest, fast_path: str) -> Iterator[Reader]:
    properties = {"contrailFastPath": fast_path, "flushDiskType": request.param}
    with LocalCluster(properties=properties) as running:
        asker = Asker(running)
        asker.make_topic(TOPIC, read=1, write=1)
        for body in (b"0", b"1"):
            asker.stored(TOPIC, body)
        with RawClient(asker.broker.port) as client:
            yield Reader(asker, client)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates rest after a long tick, which a busy machine gives them."""
    monkeypatch.setattr(pull_templates, "_SHORT_TICK_S", 1e9)


@pytest.fixture
def held_fast(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each pull that found nothing: whether it was held the fast way."""
    taken: list[bool] = []
    hold = FastPulls.hold

    def watched(handler: FastPulls, item: Any, peer: Any, form: Any) -> bool:
        taken.append(hold(handler, item, peer, form))
        return taken[-1]

    monkeypatch.setattr(FastPulls, "hold", watched)
    return taken


@pytest.fixture
def decoded(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Held pulls that were answered the general way."""
    taken: list[int] = []
    finish = reader.app.pulls.held._final_answer

    def watched(pull: Any) -> Any:
        taken.append(pull.request.opaque)
        return finish(pull)

    monkeypatch.setattr(reader.app.pulls.held, "_final_answer", watched)
    return taken


def bodies(answer: ReceivedResponse) -> list[bytes]:
    return [record.body for record in split_record_run(answer.body)]


@pytest.mark.proves("broker.fast.end-end-tests")
def test_a_tail_is_followed_without_decoding(
    reader: Reader, fast_path: str, held_fast: list[bool], decoded: list[int]
) -> None:
    for number in range(2, 6):
        reader.hold(number)
        reader.asker.stored(TOPIC, b"%d" % number)
        answer = reader.answer()
        assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"%d" % number])
        assert answer.fields["nextBeginOffset"] == str(number + 1)
    if fast_path == "on":
        assert held_fast == [True] * 4
        assert decoded == []
    app = reader.app
    app.stats.sample(10**15)
    # Four pulls of the fixture found two, one, two and one.
    assert app.stats.item("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}").value == 6 + 4


@FAST_ONLY
def test_both_ways_give_the_same_answer(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for is_fast in (True, False):
        if not is_fast:
            monkeypatch.setattr(FastPulls, "hold", lambda *given: False)
        number = 2 + len(found)
        reader.hold(number)
        reader.asker.stored(TOPIC, b"same")
        found.append(reader.answer())
    fast, general = found
    assert (fast.code, fast.remark, bodies(fast)) == (general.code, general.remark, bodies(general))
    ends = ("nextBeginOffset", "maxOffset")
    assert {name: int(fast.fields[name]) + 1 for name in ends} == {
        name: int(general.fields[name]) for name in ends
    }
    assert {**fast.fields, **dict.fromkeys(ends, "")} == {
        **general.fields,
        **dict.fromkeys(ends, ""),
    }


def test_the_offset_it_carries_is_committed_once(
    reader: Reader, fast_path: str, held_fast: list[bool]
) -> None:
    """A commit of the group while the pull is held stands."""
    offsets = reader.app.tables.consumer_offsets
    for number in (2, 3):
        reader.hold(number, sysFlag="7", commitOffset=str(number))
        assert offsets.query(GROUP, TOPIC, 0) == number
        offsets.commit(GROUP, TOPIC, 0, 100)
        reader.asker.stored(TOPIC, b"x")
        assert reader.answer().code == ResponseCode.SUCCESS
        assert offsets.query(GROUP, TOPIC, 0) == 100
    # The first one with a commit is not known yet.
    assert held_fast == ([False, True] if fast_path == "on" else [])


def test_one_that_is_overdue_is_told_that_there_is_nothing(
    reader: Reader, fast_path: str, held_fast: list[bool], decoded: list[int]
) -> None:
    reader.hold(2)
    app = reader.app
    [pull] = list(app.pulls.held.parked)

    async def expire() -> None:
        app.pulls.held.expire(pull.deadline_ms + DEADLINE_GRAIN_MS)

    reader.asker.run(expire())
    answer = reader.answer()
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "2")
    assert held_fast == ([True] if fast_path == "on" else [])
    assert decoded == [reader.opaque]


def test_each_pull_is_held_for_its_own_time(reader: Reader) -> None:
    """Also those that differ from an earlier pull of their group in this time alone."""
    app = reader.app
    for hold_ms in (30_000, 20_000, 30_000, 20_000, 40_000):
        began_ms = app.pulls.held._clock.elapsed_ms()
        reader.hold(2, suspendTimeoutMillis=str(hold_ms))
    deadlines = sorted(pull.deadline_ms - began_ms for pull in app.pulls.held.parked)
    assert [round(deadline / 10_000) for deadline in deadlines] == [2, 2, 3, 3, 4]
    with RawClient(reader.asker.broker.port) as stranger:
        fields = pull_fields(TOPIC, 2, consumerGroup=GROUP, suspendTimeoutMillis="0")
        stranger.send(encode_request(Request(RequestCode.PULL_MESSAGE, 1, fields)))
        assert stranger.next_frame().code == ResponseCode.PULL_NOT_FOUND
    reader.hold(2, suspendTimeoutMillis="30000")


@pytest.mark.proves("apache.peers.held-pulls")
def test_several_of_one_read_are_answered_or_held(
    reader: Reader, fast_path: str, held_fast: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    give_run = FastPulls._give_run

    def watched(pulls: FastPulls, peer: Any, frames: Any, at: int) -> Any:
        runs.append(at)
        return give_run(pulls, peer, frames, at)

    monkeypatch.setattr(FastPulls, "_give_run", watched)
    # On a busy machine the turn's time may be over before the first of them is answered.
    monkeypatch.setattr(Turns, "is_over", False)
    asked, together = {}, b""
    for queue_offset in (0, 2, 1, 2):
        reader.opaque += 1
        fields = pull_fields(TOPIC, queue_offset, consumerGroup=GROUP)
        asked[reader.opaque] = queue_offset
        together += encode_request(Request(RequestCode.PULL_MESSAGE, reader.opaque, fields))
    reader.client.send(together)
    eventually(lambda: len(reader.app.pulls.held.parked) == 2, "two of them are held")
    found = [reader.client.next_frame() for _ in range(2)]
    reader.asker.stored(TOPIC, b"2")
    found += [reader.client.next_frame() for _ in range(2)]
    assert [(asked[answer.opaque], bodies(answer)) for answer in found] == [
        (0, [b"0", b"1"]),
        (1, [b"1"]),
        (2, [b"2"]),
        (2, [b"2"]),
    ]
    assert held_fast == ([True, True] if fast_path == "on" else [])
    assert runs == []


@pytest.fixture
def hurried(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether queues were behind, for each time that somebody was said to wait for them.

    Messages stored while no pull waits are derived much later. Periodic jobs, which derive too,
    rest.
    """
    monkeypatch.setattr(reader.app, "run_due", lambda now_ms: None)
    monkeypatch.setattr(deriving, "_LATER_S", 600)
    told: list[bool] = []
    hurry = Deriving.hurry

    def watched(late: Deriving) -> None:
        told.append(late.is_behind)
        hurry(late)

    monkeypatch.setattr(Deriving, "hurry", watched)
    return told


@pytest.mark.proves("apache.peers.held-pulls")
def test_a_message_stored_before_any_pull_waited_wakes_the_next_one(
    reader: Reader,
    fast_path: str,
    held_fast: list[bool],
    hurried: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As when it was done too often already.
    monkeypatch.setattr(deriving, "_BURST_S", -1e9)
    with RawClient(reader.asker.broker.port) as producer:
        producer.call(RequestCode.SEND_MESSAGE_V2, SENT, b"2")
        reader.pull(2)
        assert bodies(reader.answer()) == [b"2"]
    if fast_path == "on":
        assert held_fast == [True]
        assert hurried[:1] == [True]


@pytest.mark.proves("apache.peers.held-pulls")
def test_a_message_that_is_written_but_not_durable_wakes_a_pull_that_came_meanwhile(
    reader: Reader, fast_path: str, hurried: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    sync = FileSystem.fdatasync

    def held_sync(files: FileSystem, fd: int) -> None:
        assert may_sync.wait(PATIENCE_S)
        sync(files, fd)

    store = reader.app.store
    with RawClient(reader.asker.broker.port) as producer:
        for _ in range(3):
            # Sends like these are rows then, and their queues are checked for held pulls.
            producer.call(RequestCode.SEND_MESSAGE_V2, SENT, b"2")
        reader.pull(4)
        assert bodies(reader.answer()) == [b"2"]
        eventually(lambda: store.underived_bytes == 0, "all of it is derived")
        hurried.clear()
        monkeypatch.setattr(FileSystem, "fdatasync", held_sync)
        written = store.physical_end
        producer.send(encode_request(Request(RequestCode.SEND_MESSAGE_V2, 9, SENT, b"5")))
        eventually(lambda: store.physical_end > written, "the message is written")
        is_hidden = store.visible_end == written
        if is_hidden:
            # The general way does not check for held pulls: it takes every message as awaited.
            assert store.is_awaited == (fast_path == "off")
            reader.hold(5)
        else:
            # Under asynchronous flush it is seen as soon as it is written.
            reader.pull(5)
        may_sync.set()
        assert bodies(reader.answer()) == [b"5"]
        assert producer.answer_to(9).code == ResponseCode.SUCCESS
    assert not is_hidden or hurried[:1] == [True]


def test_one_whose_topic_is_deleted_is_told_so(
    reader: Reader, fast_path: str, held_fast: list[bool], decoded: list[int]
) -> None:
    reader.hold(2)
    reader.asker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert reader.answer().code == ResponseCode.TOPIC_NOT_EXIST
    assert held_fast == ([True] if fast_path == "on" else [])
    assert decoded == [reader.opaque]


def test_beyond_the_end_and_before_it_nothing_is_held(
    reader: Reader, fast_path: str, held_fast: list[bool]
) -> None:
    reader.pull(3)
    assert reader.answer().code == ResponseCode.PULL_OFFSET_MOVED
    assert not any(held_fast)
    assert held_fast or fast_path == "off"


@FAST_ONLY
def test_a_failure_on_the_short_way_is_answered_on_the_long_one(
    reader: Reader, held_fast: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("broken for the test")

    reader.hold(2)
    monkeypatch.setattr(reader.app.fast.pulls, "_give_late", broken)
    reader.asker.stored(TOPIC, b"2")
    assert bodies(reader.answer()) == [b"2"]
    assert not reader.client.has_news()
    assert held_fast == [True]
