"""Sends as rows of numbers: compiled equals pure, and both equal the general way."""

from __future__ import annotations

import json
from array import array
from operator import add
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels import send_rows
from contrail.kernels.answer_build import batch_answer
from contrail.kernels.frame_scan import KIND_SEND, scan_frames
from contrail.kernels.record_build import build_fitting_run
from contrail.kernels.send_places import QueuePlace
from contrail.kernels.send_tally import skips_of, tally_run
from tests.unit.kernels.frame_material import (
    BORN_HOST,
    SUFFIX,
    TYPE_BINARY,
    binary_header,
    bodies,
    frame,
    mutated,
    streams,
)
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("send_records")
SCAN, PURE_SCAN = twins("send_scan")
FRAMES, PURE_FRAMES = twins("frame_scan")
ANSWERS, PURE_ANSWERS = twins("answer_build")
TALLY, PURE_TALLY = twins("send_tally")
PLACES, PURE_PLACES = twins("send_places")

LIMIT = 16 << 20
FAST_FLAGS = 0x701
FIFO_MARK = b"__SHARDINGKEY\x01"
HOST_DIGITS = b"7F00000100002A9F"
EXTRA = b'"MSG_REGION":"r","TRACE_ON":"true"'
TOPICS = ["orders", "TopicTest", "t" * 127]

_values = st.sampled_from(["AC0001", "x", "a b", 'say "no"', "back\\slash", "é", "1"])
_pairs = st.tuples(
    st.sampled_from(["TAGS", "KEYS", "__SHARDINGKEY", "other", "WAIT", "__CRC", "MSG_REGION"]),
    _values,
)


@st.composite
def well_formed_frames(draw: st.DrawFn) -> bytes:
    """A send as a Java client writes it; sometimes one for the general way."""
    pairs = [("UNIQ_KEY", f"AC{draw(st.integers(0, 10**9))}"), *draw(st.lists(_pairs, max_size=3))]
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    fields = {
        "a": "makers",
        "b": draw(st.sampled_from(TOPICS)),
        "c": "TBW102",
        "d": "4",
        "e": str(draw(st.integers(0, 3))),
        "f": draw(st.sampled_from(["0", "0", "1", "256"])),
        "g": str(draw(st.integers(0, 2**50))),
        "h": str(draw(st.integers(-(2**31), 2**31 - 1))),
        "i": text[:-1] if draw(st.booleans()) else text,
        "j": str(draw(st.integers(0, 16))),
        "k": "false",
        "m": "false",
    }
    header: dict[str, Any] = {
        "code": 310,
        "extFields": fields,
        "flag": draw(st.sampled_from([0, 0, 0, 2])),
        "language": "JAVA",
        "opaque": draw(st.integers(-(2**31), 2**31 - 1)),
        "version": 479,
    }
    body = draw(st.binary(min_size=1, max_size=40) | bodies)
    if draw(st.integers(0, 3)) == 0:
        binary = binary_header(310, fields, opaque=header["opaque"], flag=header["flag"])
        return frame(binary, body, TYPE_BINARY)
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=draw(st.booleans()))
    return frame(encoded.encode(), body)


well_formed_streams = st.lists(well_formed_frames(), min_size=1, max_size=5).map(b"".join)
hosts = st.sampled_from([bytes(8), b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", bytes(range(20))])


def scanned(scan: ModuleType, data: bytes) -> tuple[Any, ...] | None:
    found = scan.scan_sends(data, LIMIT, LIMIT, SUFFIX)
    if found is None:
        return None
    count, consumed, rows, texts, topics = found
    used = rows[(count - 1) * send_rows.ROW_NUMBERS + send_rows.PROPERTIES_END]
    return count, consumed, rows[: count * send_rows.ROW_NUMBERS], texts[:used], topics


def chunk_of(data: bytes, born_host: bytes = BORN_HOST) -> tuple[Any, ...] | None:
    found = SCAN.scan_sends(data, LIMIT, LIMIT, SUFFIX)
    if found is None:
        return None
    count, consumed, rows, texts, topics = found
    rows = rows[: count * send_rows.ROW_NUMBERS]
    return (data[:consumed], count, rows, texts, [born_host] * count, topics)


def is_fast(data: bytes) -> bool:
    chunk = chunk_of(data)
    return chunk is not None and chunk[0] == data


fast_streams = well_formed_streams.filter(is_fast)


def copied(chunk: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*chunk[:2], array("q", chunk[2]), *chunk[3:5], list(chunk[5]))


class Table:
    """Next offsets as the log keeps them, and the places of queues that borrow from it."""

    def __init__(self, known: dict[tuple[bytes, int], int]) -> None:
        self.known = dict(known)
        self.lent: list[QueuePlace] = []
        self._places: dict[tuple[bytes, int], QueuePlace] = {}

    def admitted(self, *chunks: tuple[Any, ...] | None) -> list[Any]:
        """Copies of the chunks, with places instead of topics, whatever admission says of them."""
        found = []
        for chunk in chunks:
            assert chunk is not None
            queue_ids = chunk[2][send_rows.QUEUE_ID :: send_rows.ROW_NUMBERS]
            keys = zip(chunk[5], queue_ids, strict=True)
            places = [self._places.setdefault(key, QueuePlace(*key)) for key in keys]
            found.append((*copied(chunk)[:5], places))
        return found

    def build(self, kernel: ModuleType, chunks: list[Any], *rest: Any) -> Any:
        return kernel.build_sends(chunks, self.known, self.lent, *rest)

    def state(self) -> dict[tuple[bytes, int], tuple[int, int]]:
        """By queue: its next offset, and the one that is planned."""
        lent = {place.key: (place.next_offset, place.planned_offset) for place in self.lent}
        assert all(place.is_lent for place in self.lent)
        assert len(lent) == len(self.lent) and not lent.keys() & self.known.keys()
        return lent | {key: (offset, offset) for key, offset in self.known.items()}


@given(
    st.binary(max_size=60)
    | streams
    | mutated(streams)
    | well_formed_streams
    | mutated(well_formed_streams)
)
def test_compiled_and_pure_scan_alike(data: bytes) -> None:
    assert outcome(scanned, SCAN, data) == outcome(scanned, PURE_SCAN, data)


@given(st.binary(max_size=60) | streams | well_formed_streams | mutated(well_formed_frames()))
def test_one_whole_send_is_known_by_how_it_begins(data: bytes) -> None:
    whole = len(data) >= 20 and int.from_bytes(data[:4], "big") + 4 == len(data)
    expected = whole and data[8:20] == b'{"code":310,'
    assert FRAMES.is_one_send(data) == PURE_FRAMES.is_one_send(data) == expected


@given(streams | mutated(streams) | well_formed_streams | mutated(well_formed_streams))
def test_rows_say_what_the_items_say(data: bytes) -> None:
    chunk = chunk_of(data)
    if chunk is None:
        return
    data, count, rows, texts, _, topics = chunk
    items, consumed, _, kinds = scan_frames(data, 0, LIMIT, LIMIT, BORN_HOST, SUFFIX)
    assert (kinds, consumed) == (KIND_SEND, len(data))
    assert count == len(items)
    for number, item in enumerate(items):
        row = rows[number * send_rows.ROW_NUMBERS : (number + 1) * send_rows.ROW_NUMBERS]
        draft = item[11]
        assert (item[7], item[9], item[3]) == (False, 0, 310)
        assert row[send_rows.OPAQUE] == item[0]
        assert row[send_rows.ONE_WAY] == item[1] & 2
        assert texts[row[send_rows.KEY_AT] : row[send_rows.KEY_END]] == item[10]
        assert topics[number] == draft[0]
        assert row[send_rows.TOPIC_BYTES] == len(draft[0])
        assert data[row[send_rows.BODY_AT] : row[send_rows.BODY_END]] == draft[2]
        assert texts[row[send_rows.PROPERTIES_AT] : row[send_rows.PROPERTIES_END]] == draft[3]
        numbers = ("QUEUE_ID", "FLAG", "SYS_FLAG", "BORN_MS", "TIMES")
        places = [getattr(send_rows, name) for name in numbers]
        assert [row[at] for at in places] == [draft[1], draft[4], draft[5], draft[6], draft[8]]


def java_send() -> bytes:
    pairs = "UNIQ_KEY\x01AC0001\x02WAIT\x01true\x02TAGS\x01x\x02"
    fields = {
        "a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": pairs, "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1}
    return frame(json.dumps(header, separators=(",", ":")).encode(), b"body")


JAVA_SEND = java_send()


def test_a_java_clients_sends_become_rows() -> None:
    """Otherwise every message could take the general way unnoticed."""
    found = scanned(SCAN, JAVA_SEND * 3)
    assert found is not None
    assert found[0] == 3


@pytest.mark.proves("apache.peers.fused-runs")
@given(fast_streams, hosts, hosts, st.integers(0, 2**40), st.integers(0, 6000))
def test_records_are_those_of_the_general_way(
    data: bytes, born_host: bytes, store_host: bytes, physical_end: int, room_bytes: int
) -> None:
    chunk = chunk_of(data, born_host)
    assert chunk is not None
    drafts = [item[11] for item in scan_frames(data, 0, LIMIT, LIMIT, born_host, SUFFIX)[0]]
    known = {(topic.encode(), queue): queue * 10 for topic in TOPICS for queue in range(4)}
    general = build_fitting_run(
        drafts, known, physical_end, room_bytes, 1, 1_700_000_000_000, store_host, LIMIT, False
    )
    rest = (physical_end, room_bytes, 1_700_000_000_000, store_host)
    table, twin_table = Table(known), Table(known)
    (chunk,), (twin,) = table.admitted(chunk), twin_table.admitted(chunk)
    built = table.build(KERNEL, [chunk], *rest)
    assert built == twin_table.build(PURE, [twin], *rest)
    assert (chunk[:5], table.state()) == (twin[:5], twin_table.state())
    if general is None:
        assert built is None
        return
    parts, queue_offsets, physical_offsets, end, planned, _ = general
    assert built == (bytearray(b"".join(parts)), end, physical_offsets[-1])
    # The offsets are only planned before the plan is committed.
    wanted = {key: (offset, planned.get(key, offset)) for key, offset in known.items()}
    assert table.state() == wanted
    PLACES.commit_places([chunk])
    PURE_PLACES.commit_places([twin])
    wanted = {key: (offset, offset) for key, (_, offset) in wanted.items()}
    assert table.state() == twin_table.state() == wanted
    PLACES.return_lent(table.lent, table.known)
    PURE_PLACES.return_lent(twin_table.lent, twin_table.known)
    assert table.known == twin_table.known == known | planned
    assert table.state() == twin_table.state() == wanted
    step = send_rows.ROW_NUMBERS
    assert list(chunk[2][send_rows.QUEUE_OFFSET :: step]) == queue_offsets
    assert list(chunk[2][send_rows.PHYSICAL_OFFSET :: step]) == physical_offsets
    check_what_follows(chunk, data, drafts, queue_offsets, physical_offsets, end)


def check_what_follows(
    chunk: tuple[Any, ...],
    data: bytes,
    drafts: list[Any],
    queue_offsets: list[int],
    physical_offsets: list[int],
    end: int,
) -> None:
    items = scan_frames(data, 0, LIMIT, LIMIT, chunk[4][0], SUFFIX)[0]
    places = zip(items, queue_offsets, physical_offsets, strict=True)
    expected = [
        b""
        if item[1] & 2
        else batch_answer(item[0], item[11][1], first, [at], item[10], HOST_DIGITS, EXTRA)
        for item, first, at in places
    ]
    for answers in (ANSWERS, PURE_ANSWERS):
        assert answers.row_answers_singly(*chunk[1:4], HOST_DIGITS, EXTRA) == expected
        assert answers.row_answers(*chunk[1:4], HOST_DIGITS, EXTRA) == b"".join(expected)
    tally = tally_run(drafts, physical_offsets, end, FIFO_MARK, skips_of(FIFO_MARK))
    for kernel in (TALLY, PURE_TALLY):
        assert tallied(kernel, chunk) == tally
    two_way = sum(not item[1] & 2 for item in items)
    assert KERNEL.two_way_count(chunk) == PURE.two_way_count(chunk) == two_way


def tallied(kernel: ModuleType, chunk: tuple[Any, ...]) -> dict[tuple[bytes, int], list[int]]:
    counted: list[QueuePlace] = []
    assert kernel.tally_rows([chunk], counted) == chunk[1]
    assert set(counted) == set(chunk[5]) and len(counted) == len(set(chunk[5]))
    sums: dict[tuple[bytes, int], list[int]] = {}
    for place in counted:
        for kind, counts in enumerate(place.take_counts()):
            if counts[0]:
                known = sums.get((place.topic, kind), [0] * len(counts))
                sums[place.topic, kind] = list(map(add, known, counts))
        assert place.take_counts() == ([0] * 9, [0] * 9)
    return sums


@pytest.mark.proves("apache.peers.fused-runs")
@given(fast_streams, st.integers(-1, 5), st.integers(0, 41))
def test_the_same_sends_are_admitted_as_on_the_general_way(
    data: bytes, queue_count: int, body_bytes_max: int
) -> None:
    chunk = chunk_of(data)
    assert chunk is not None
    counts = {topic.encode(): queue_count for topic in TOPICS[:2]}
    items = scan_frames(data, 0, LIMIT, LIMIT, BORN_HOST, SUFFIX)[0]
    drafts = [item[11] for item in items]
    expected = all(
        0 < len(draft[2]) <= body_bytes_max
        and 0 <= draft[1] < counts.get(draft[0], 0)
        and not draft[5] & ~FAST_FLAGS
        for draft in drafts
    )
    for kernel in (KERNEL, PURE):
        places: dict[bytes, list[QueuePlace | None]] = {}
        # The second one meets the places of the first.
        ones = [copied(chunk), copied(chunk)]
        for one in ones:
            arguments = (one, counts, places, FAST_FLAGS, body_bytes_max)
            assert kernel.are_admitted(*arguments) == expected
        if expected:
            assert [place.key for place in ones[0][5]] == [item[11][:2] for item in items]
            assert ones[0][5] == ones[1][5]


@pytest.mark.parametrize("kernel", [KERNEL, PURE], ids=["imported", "pure"])
def test_a_topic_of_very_many_queues_is_left_to_the_general_way(kernel: ModuleType) -> None:
    chunk = chunk_of(JAVA_SEND)
    assert chunk is not None
    for queue_count, expected in ((65_536, True), (65_537, False), (2**31 - 1, False)):
        arguments = (copied(chunk), {b"t": queue_count}, {}, FAST_FLAGS, LIMIT)
        assert kernel.are_admitted(*arguments) is expected


@given(st.lists(fast_streams, min_size=2, max_size=4))
def test_chunks_of_several_connections_are_one_run(streams_of_peers: list[bytes]) -> None:
    chunks = [chunk_of(data) for data in streams_of_peers]
    known = {(topic.encode(), queue): 0 for topic in TOPICS for queue in range(4)}
    whole = chunk_of(b"".join(streams_of_peers))
    rest = (4096, LIMIT, 5, bytes(8))
    apart, together = Table(known), Table(known)
    built = apart.build(KERNEL, apart.admitted(*chunks), *rest)
    assert built == together.build(KERNEL, together.admitted(whole), *rest)
    assert apart.state() == together.state()


@given(fast_streams)
def test_a_queue_without_a_next_offset_is_left_to_the_general_way(data: bytes) -> None:
    chunk = chunk_of(data)
    for kernel in (KERNEL, PURE):
        table = Table({})
        assert table.build(kernel, table.admitted(chunk), 0, LIMIT, 5, bytes(8)) is None


@given(fast_streams, fast_streams)
def test_a_plan_that_was_not_carried_out_leaves_nothing(data: bytes, other: bytes) -> None:
    """Neither with the places that it was made with, nor with others of the same queues."""
    known = {(topic.encode(), queue): queue * 10 for topic in TOPICS for queue in range(4)}
    rest = (4096, LIMIT, 5, bytes(8))
    for kernel in (KERNEL, PURE):
        table, fresh = Table(known), Table(known)
        assert table.build(kernel, table.admitted(chunk_of(data)), *rest) is not None
        again = table.build(kernel, table.admitted(chunk_of(other)), *rest)
        assert again == fresh.build(kernel, fresh.admitted(chunk_of(other)), *rest)
        # An offset lent to one place is not there for another.
        stranger = Table({})
        stranger.known = fresh.known
        assert stranger.build(kernel, stranger.admitted(chunk_of(other)), *rest) is None


def test_no_sends_give_no_counts_and_no_answers() -> None:
    chunk = (b"", 0, array("q"), bytearray(), [], [])
    for kernel in (KERNEL, PURE):
        assert kernel.two_way_count(chunk) == 0
        assert kernel.are_admitted(chunk, {}, {}, 0, 1)
    for answers in (ANSWERS, PURE_ANSWERS):
        assert answers.row_answers(*chunk[1:4], HOST_DIGITS, EXTRA) == b""
        assert answers.row_answers_singly(*chunk[1:4], HOST_DIGITS, EXTRA) == []
    for kernel in (TALLY, PURE_TALLY):
        assert kernel.tally_rows([chunk], []) == 0


def test_rows_that_are_too_few_are_refused() -> None:
    chunk = (b"", 1, array("q"), bytearray(), [b"host"], [b"orders"])
    for kernel in (KERNEL, PURE):
        with pytest.raises(IndexError):
            kernel.two_way_count(chunk)
    for answers in (ANSWERS, PURE_ANSWERS):
        with pytest.raises(IndexError):
            answers.row_answers(*chunk[1:4], HOST_DIGITS, EXTRA)


@given(st.lists(st.integers(0, 3), max_size=12), st.sets(st.integers(0, 3)))
def test_watched_queues_are_found_in_chunks(queues: list[int], waited: set[int]) -> None:
    watched = {(b"orders", queue): None for queue in waited}
    for module in (PLACES, PURE_PLACES):
        places = [module.QueuePlace(b"orders", queue) for queue in range(4)]
        chunk = (b"", len(queues), array("q"), bytearray(), [], [places[at] for at in queues])
        assert module.are_watched([chunk], watched) == bool(waited & set(queues))
        assert not module.are_watched([], watched)
