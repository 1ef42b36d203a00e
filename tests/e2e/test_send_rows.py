"""Many sends in one write, which go into the log as rows of numbers, and what stops them."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest

from contrail.broker.fast.sends import FastSends
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse
from contrail.store.log import MessageStore
from contrail.testing import LocalCluster, eventually
from contrail.wire.server import Arrived
from tests.e2e.asking import Asker, held_pull
from tests.e2e.raw_client import RawClient, send_fields
from tests.e2e.ways import FAST_ONLY

TOPIC = "rows"


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def broker(request: pytest.FixtureRequest, fast_path: str) -> Iterator[Asker]:
    """Segments so small that a run goes over their ends."""
    properties = {
        "contrailFastPath": fast_path,
        "flushDiskType": request.param,
        "mappedFileSizeCommitLog": "65536",
    }
    with LocalCluster(properties=properties) as running:
        asker = Asker(running)
        asker.make_topic(TOPIC, read=2, write=2)
        # The first messages of a topic and a queue take the general way.
        for queue_id in ("0", "1"):
            asker.done(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, e=queue_id), b"first")
        yield asker


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sends each append of rows stored."""
    counts: list[int] = []
    append = MessageStore.append_chunks

    def counted(store: MessageStore, chunks: list[tuple]) -> object:  # type: ignore[type-arg]
        appended = append(store, chunks)
        counts.append(0 if appended is None else sum(chunk[1] for chunk in chunks))
        return appended

    monkeypatch.setattr(MessageStore, "append_chunks", counted)
    return counts


def frame(opaque: int, body: bytes, *, flag: int = 0, **changes: str) -> bytes:
    """A send as a Java client writes it."""
    fields = send_fields(TOPIC, i=f"UNIQ_KEY\x01AC{opaque:04}\x02WAIT\x01true\x02", **changes)
    header = {"code": 310, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque}
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


def answers(client: RawClient, count: int) -> list[ReceivedResponse]:
    return [client.next_frame() for _ in range(count)]


@contextmanager
def held(broker: Asker) -> Iterator[None]:
    """The broker reads everything that arrives meanwhile in one tick."""
    release = threading.Event()

    async def wait() -> None:
        assert release.wait(60)

    holding = threading.Thread(target=broker.run, args=(wait(),))
    holding.start()
    try:
        yield
    finally:
        release.set()
        holding.join()


def in_one_tick(broker: Asker, frames: list[bytes]) -> list[ReceivedResponse]:
    """The answers to single sends, each of a connection of its own."""
    with ExitStack() as opened:
        clients = [opened.enter_context(RawClient(broker.broker.port)) for _ in frames]
        # An answered connection has been accepted by the broker.
        for number, client in enumerate(clients):
            client.send(frame(number, b"known", e="1"))
            answers(client, 1)
        with held(broker):
            for client, sent in zip(clients, frames, strict=True):
                client.send(sent)
        return [client.next_frame() for client in clients]


def test_single_sends_of_many_connections_go_into_the_log_together(
    broker: Asker, fast_path: str, taken: list[int]
) -> None:
    bodies = [b"%03d" % number for number in range(16)]
    found = in_one_tick(broker, [frame(n + 100, body) for n, body in enumerate(bodies)])
    assert [answer.opaque for answer in found] == list(range(100, 116))
    assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    assert [answer.fields["transactionId"] for answer in found] == [
        f"AC{number:04}" for number in range(100, 116)
    ]
    offsets = [int(answer.fields["queueOffset"]) for answer in found]
    assert sorted(offsets) == list(range(1, 17))
    stored = broker.bodies(TOPIC)
    assert [stored[offset] for offset in offsets] == bodies
    assert fast_path == "off" or max(taken) > 1, "each of them went its own way"


def test_one_odd_single_send_does_not_harm_the_others(broker: Asker) -> None:
    """Queue 7 does not exist; a message without a unique key gets one."""
    frames = [frame(n, b"%d" % n) for n in range(12)]
    frames[5] = frame(5, b"odd", e="7")
    assert [answer.code == ResponseCode.SUCCESS for answer in in_one_tick(broker, frames)] == [
        number != 5 for number in range(12)
    ]
    frames[5] = frame(5, b"5").replace(b"UNIQ_KEY", b"uniq_key")
    assert {answer.code for answer in in_one_tick(broker, frames)} == {ResponseCode.SUCCESS}
    kept = [b"%d" % number for number in range(12) if number != 5]
    assert sorted(broker.bodies(TOPIC)) == sorted([b"first", *kept, *kept, b"5"])


@pytest.mark.proves("broker.fast.end-end-tests", "apache.peers.fused-runs")
def test_sends_of_one_write_are_stored_in_order_and_answered(
    broker: Asker, fast_path: str, taken: list[int]
) -> None:
    bodies = [b"%03d" % number for number in range(64)]
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(frame(number, body) for number, body in enumerate(bodies)))
        found = answers(client, 64)
    assert [answer.opaque for answer in found] == list(range(64))
    assert {answer.code for answer in found} == {ResponseCode.SUCCESS}
    assert [answer.fields["queueOffset"] for answer in found] == [str(n) for n in range(1, 65)]
    assert found[7].fields["transactionId"] == "AC0007"
    assert broker.bodies(TOPIC) == [b"first", *bodies]
    assert sum(taken) > 0 or fast_path == "off", "none of them went as a row"


def test_a_topic_that_is_made_again_starts_over(
    broker: Asker, fast_path: str, taken: list[int]
) -> None:
    """The places of its queues must not be used any more."""
    bodies = [b"%03d" % number for number in range(16)]
    run = b"".join(frame(number, body) for number, body in enumerate(bodies))
    with RawClient(broker.broker.port) as client:
        for _ in range(2):
            client.send(run)
            answers(client, 16)
            taken.clear()
            broker.done(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
            broker.make_topic(TOPIC, read=2, write=2)
            broker.done(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, e="0"), b"anew")
            client.send(run)
            offsets = [answer.fields["queueOffset"] for answer in answers(client, 16)]
            assert offsets == [str(number) for number in range(1, 17)]
            assert broker.bodies(TOPIC) == [b"anew", *bodies]
            assert sum(taken) > 0 or fast_path == "off", "none of them went as a row"


def test_a_run_goes_over_the_ends_of_segments(broker: Asker) -> None:
    bodies = [b"%03d" % number * 300 for number in range(300)]
    with RawClient(broker.broker.port) as client:
        for first in range(0, 300, 30):
            run = range(first, first + 30)
            client.send(b"".join(frame(number, bodies[number]) for number in run))
            assert {answer.code for answer in answers(client, 30)} == {ResponseCode.SUCCESS}
    assert broker.bodies(TOPIC) == [b"first", *bodies]


def test_nobody_waits_for_a_one_way_send(broker: Asker) -> None:
    flags = [FLAG_ONE_WAY if number % 2 else 0 for number in range(8)]
    with RawClient(broker.broker.port) as client:
        run = enumerate(flags)
        client.send(b"".join(frame(number, b"%d" % number, flag=flag) for number, flag in run))
        assert [answer.opaque for answer in answers(client, 4)] == [0, 2, 4, 6]
        eventually(lambda: len(broker.bodies(TOPIC)) == 9, "all are stored")


@pytest.mark.proves("apache.peers.fused-runs")
def test_one_send_that_must_be_looked_at_does_not_change_the_order(broker: Asker) -> None:
    """Queue 7 does not exist; the sends around it are stored."""
    frames = [frame(number, b"%d" % number) for number in range(10)]
    frames[5] = frame(5, b"odd", e="7")
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(frames))
        codes = {answer.opaque: answer.code for answer in answers(client, 10)}
    assert [opaque for opaque, code in codes.items() if code] == [5]
    kept = [b"%d" % number for number in range(10) if number != 5]
    assert broker.bodies(TOPIC) == [b"first", *kept]


def test_a_read_that_is_refused_half_way_keeps_nobody_from_an_answer(broker: Asker) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(RawClient(broker.broker.port)) for _ in range(3)]
        for number, client in enumerate(clients):
            client.send(frame(number, b"known", e="1"))
            answers(client, 1)
        first, third = (
            b"".join(frame(base + number, b"fast") for number in range(8)) for base in (100, 300)
        )
        queues = ["7" if number == 5 else "0" for number in range(8)]
        second = b"".join(
            frame(200 + number, b"odd", e=queue_id) for number, queue_id in enumerate(queues)
        )
        with held(broker):
            for client, sends in zip(clients, (first, second, third), strict=True):
                client.send(sends)
        told = [[answer.code for answer in answers(client, 8)] for client in clients]
    assert told[0] == told[2] == [ResponseCode.SUCCESS] * 8
    assert told[1].count(ResponseCode.SUCCESS) == 7


def test_rows_and_other_requests_of_a_connection_keep_their_order(broker: Asker) -> None:
    """A single send between two runs takes the general way: neither overtakes it."""
    runs = [b"".join(frame(n, b"%d" % n) for n in range(first, first + 5)) for first in (0, 10)]
    with RawClient(broker.broker.port) as client:
        client.send(runs[0])
        client.send(frame(7, b"%d" % 7, j="1", e="0"))
        client.send(runs[1])
        assert {answer.code for answer in answers(client, 11)} == {ResponseCode.SUCCESS}
    expected = [b"%d" % number for number in (*range(5), 7, *range(10, 15))]
    assert broker.bodies(TOPIC) == [b"first", *expected]


def test_an_unexpected_failure_is_told_to_every_producer(
    broker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(store: MessageStore, messages: object) -> object:
        raise RuntimeError("broken for the test")

    for way in ("append", "append_chunks"):
        monkeypatch.setattr(MessageStore, way, broken)
    with RawClient(broker.broker.port) as client:
        # In a tick, and without one, since nobody else sends.
        for _ in range(2):
            client.send(b"".join(frame(number, b"x") for number in range(6)))
            found = answers(client, 6)
            assert {answer.code for answer in found} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            assert "broken for the test" in (found[0].remark or "")
        monkeypatch.undo()
        client.send(b"".join(frame(number, b"y") for number in range(6)))
        assert {answer.code for answer in answers(client, 6)} == {ResponseCode.SUCCESS}
    assert broker.bodies(TOPIC) == [b"first"] + [b"y"] * 6


def test_messages_are_found_by_the_keys_of_their_rows(broker: Asker) -> None:
    with RawClient(broker.broker.port) as client:
        client.send(b"".join(frame(number, b"%d" % number) for number in range(8)))
        answers(client, 8)
    fields = {
        "topic": TOPIC, "key": "AC0006", "maxNum": "8", "beginTimestamp": "0",
        "endTimestamp": str(1 << 62), "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip
    found = broker.done(RequestCode.QUERY_MESSAGE, fields)
    assert b"AC0006" in found.body
    assert b"AC0005" not in found.body


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reads of sends each tick had to take."""
    counts: list[int] = []
    take = FastSends.take_runs

    def counted(
        sends: FastSends, arrived: list[Arrived], at: int, end: int, waited_ms: float
    ) -> int:
        counts.append(len(arrived) - at)
        return take(sends, arrived, at, end, waited_ms)

    monkeypatch.setattr(FastSends, "take_runs", counted)
    return counts


@pytest.mark.proves("apache.peers.without-a-tick")
@FAST_ONLY
def test_sends_of_one_read_need_no_tick(broker: Asker, taken: list[int], ticked: list[int]) -> None:
    with RawClient(broker.broker.port) as client:
        for first in range(0, 200, 50):
            client.send(b"".join(frame(first + n, b"%d" % (first + n)) for n in range(50)))
            assert [answer.opaque for answer in answers(client, 50)] == [
                first + number for number in range(50)
            ]
    assert broker.bodies(TOPIC) == [b"first", *(b"%d" % number for number in range(200))]
    assert sum(taken) > 100, "hardly any of them went as rows"
    # A run over the end of a segment is for the tick, and so may be a read of a few.
    assert len(ticked) < len(taken)


@pytest.mark.proves("apache.peers.without-a-tick")
@FAST_ONLY
def test_a_producer_that_is_alone_needs_no_tick(broker: Asker, ticked: list[int]) -> None:
    with RawClient(broker.broker.port) as client:
        for number in range(5):
            client.send(frame(number, b"%d" % number))
            assert client.next_frame().opaque == number
    assert len(ticked) <= 1, "only the first read cannot know that nobody else is there"
    assert broker.bodies(TOPIC) == [b"first", *(b"%d" % number for number in range(5))]


def test_a_frame_that_is_cut_off_is_taken_with_its_rest(broker: Asker) -> None:
    whole = b"".join(frame(number, b"%03d" % number) for number in range(40))
    with RawClient(broker.broker.port) as client:
        cuts = (0, len(whole) // 3, len(whole) // 3 + 2, len(whole) * 2 // 3, len(whole))
        for at, end in pairwise(cuts):
            client.send(whole[at:end])
        assert [answer.opaque for answer in answers(client, 40)] == list(range(40))
    assert broker.bodies(TOPIC) == [b"first", *(b"%03d" % number for number in range(40))]


def test_a_second_read_does_not_overtake_what_waits_for_the_tick(
    broker: Asker, fast_path: str
) -> None:
    """A connection with many bytes is read more than once before the tick."""
    app = broker.broker.app
    assert app is not None
    # A message without a unique key gets one, in the tick.
    odd = frame(100, b"odd").replace(b"UNIQ_KEY", b"uniq_key")
    fast = b"".join(frame(number, b"%d" % number) for number in range(101, 110))
    with RawClient(broker.broker.port) as client:
        for number in range(2):
            client.send(frame(number, b"%d" % number))
            answers(client, 1)
        [peer] = [
            connection
            for connection in app.server.connections
            if connection.address.endswith(f":{client.local_port}")
        ]
        assert app.intake.last_sender is (peer if fast_path == "on" else None)

        async def read_twice() -> None:
            peer.data_received(odd)
            peer.data_received(fast)

        broker.run(read_twice())
        assert {answer.code for answer in answers(client, 10)} == {ResponseCode.SUCCESS}
    expected = [b"first", b"0", b"1", b"odd", *(b"%d" % number for number in range(101, 110))]
    assert broker.bodies(TOPIC) == expected


@FAST_ONLY
def test_only_a_pull_held_at_one_of_its_queues_hurries_a_run(broker: Asker) -> None:
    app = broker.broker.app
    assert app is not None
    awaited: list[bool] = []

    async def ask() -> None:
        awaited.append(app.store.is_awaited)

    def sent(number: int, queue_id: str) -> bool:
        """Whether a message hurries; by synchronous flush it may be derived before we look."""
        client.send(frame(number, b"x", e=queue_id))
        answers(client, 1)
        broker.run(ask())
        return awaited.pop()

    with held_pull(broker.cluster, TOPIC, 1) as reader, RawClient(broker.broker.port) as client:
        # The first one takes the general way, of which nobody knows whom it concerns.
        sent(100, "1")
        assert [sent(number, "1") for number in range(5)] == [False] * 5
        assert not reader.has_news()
        dispatcher = app.store._dispatcher
        unawaited_end = dispatcher.unawaited_end
        sent(10, "0")
        assert reader.next_frame().code == ResponseCode.SUCCESS
        assert dispatcher.unawaited_end == unawaited_end, "somebody waited for this one"
    assert len(broker.bodies(TOPIC, 1)) == 7


def test_a_pull_that_waits_is_told_of_what_needed_no_tick(broker: Asker) -> None:
    with (
        held_pull(broker.cluster, TOPIC, 1) as reader,
        RawClient(broker.broker.port) as client,
    ):
        client.send(b"".join(frame(number, b"x") for number in range(40)))
        assert {answer.code for answer in answers(client, 40)} == {ResponseCode.SUCCESS}
        assert reader.next_frame().code == ResponseCode.SUCCESS
