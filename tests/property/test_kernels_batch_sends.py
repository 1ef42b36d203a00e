"""Tidy batches: compiled equals pure, and both equal the general way."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.errors import MessageIllegal
from contrail.kernels.batch_split import split_units
from contrail.kernels.record_build import build_fitting_run
from contrail.kernels.send_tally import skips_of, tally_run
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import MessageDraft
from contrail.protocol.frames import FrameDecoder
from tests.unit.kernels.material import IPV4, IPV6, i32, i64, outcome, properties, twins

KERNEL, PURE = twins("batch_sends")
ANSWERS, PURE_ANSWERS = twins("answer_build")
TALLY, PURE_TALLY = twins("send_tally")

COUNT_MAX = 5
FIFO_MARK = b"__SHARDINGKEY\x01"
KNOWN = {
    (topic, queue_id): queue_id * 10 for topic in (b"orders", b"t" * 127) for queue_id in (0, 1)
}

tidy_properties = st.lists(
    st.sampled_from(
        [
            b"UNIQ_KEY\x01AC01\x02",
            b"TAGS\x01x\x02",
            b"__SHARDINGKEY\x01k\x02",
            b"D\x01elay\x02",
            b"",
        ]
    ),
    max_size=4,
).map(b"".join)
odd_properties = properties | st.sampled_from(
    [b"DELAY\x013\x02", b"a\x01DELAY\x02", b"__CRC32#\x010123456789\x02", b"x" * 300]
)
units = st.builds(BatchUnit, st.binary(max_size=40), tidy_properties, i32)
odd_units = st.builds(BatchUnit, st.binary(max_size=40), odd_properties, i32)
tidy_bodies = st.lists(units, min_size=1, max_size=COUNT_MAX).map(encode_batch)
bodies = tidy_bodies | st.lists(units | odd_units, max_size=COUNT_MAX + 2).map(encode_batch)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(tidy_bodies))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


def drafts_of(bodies: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(
        st.sampled_from([b"orders", b"orders", b"t" * 127, b"u" * 128, b""]),
        st.sampled_from([0, 0, 1, 2]),
        bodies,
        st.just(b"UNIQ_KEY\x01AC\x02"),
        i32,
        st.sampled_from([0, 1, 0x10, 0x31]),
        i64,
        st.sampled_from([IPV4, IPV6]),
        i32,
        st.just(0),
    )


runs = st.lists(drafts_of(tidy_bodies | bodies | damaged()), min_size=1, max_size=3)
tidy_runs = st.lists(drafts_of(tidy_bodies), min_size=1, max_size=3)
hosts = st.sampled_from([IPV4, IPV6])


def in_general(drafts: list[Any], *rest: Any) -> tuple[list[list[Any]], Any] | None:
    """The messages of each batch and their records; None when one of them is refused."""
    try:
        split = [split_units(draft[2], draft, COUNT_MAX) for draft in drafts]
        known, physical_end, room_bytes, now_ms, store_host, body_bytes_max = rest
        run = [MessageDraft._make(draft) for batch in split for draft in batch]
        built = build_fitting_run(
            run, known, physical_end, room_bytes, 1, now_ms, store_host, body_bytes_max, False
        )
    except MessageIllegal:
        return None
    if any(sum(len(unit[2]) for unit in batch) > body_bytes_max for batch in split):
        return None
    return (split, built) if built is not None and not built[5] else None


@given(
    runs | tidy_runs,
    st.integers(0, 2**40),
    st.integers(0, 2000) | st.just(1 << 20),
    hosts,
    st.integers(0, 100) | st.just(1 << 20),
)
def test_records_places_and_counts_are_those_of_the_general_way(
    drafts: list[Any], physical_end: int, room_bytes: int, store_host: bytes, body_bytes_max: int
) -> None:
    rest = (KNOWN, physical_end, room_bytes, 1_700_000_000_000, store_host, body_bytes_max)
    built = KERNEL.build_batches(drafts, *rest, COUNT_MAX)
    assert built == PURE.build_batches(drafts, *rest, COUNT_MAX)
    general = in_general(drafts, *rest)
    if built is None:
        texts = b"".join(draft[2] for draft in drafts)
        assert general is None or b"DELAY" in texts or b"_" in texts
        return
    assert general is not None, "what the general way refuses was taken"
    split, (parts, queue_offsets, physical_offsets, end, planned, _) = general
    records, places, built_end, built_planned = built
    assert (records, built_end, built_planned) == (b"".join(parts), end, planned)
    assert [start for place in places for start in place[1]] == physical_offsets
    first = 0
    for place, batch in zip(places, split, strict=True):
        assert (place[0], len(place[1])) == (queue_offsets[first], len(batch))
        first += len(batch)
    run = [draft for batch in split for draft in batch]
    tally = tally_run(run, physical_offsets, end, FIFO_MARK, skips_of(FIFO_MARK))
    for kernel in (TALLY, PURE_TALLY):
        assert kernel.tally_batches(drafts, places, end) == tally


@given(tidy_runs)
def test_tidy_batches_to_known_queues_are_taken(drafts: list[Any]) -> None:
    """Or else every batch takes the general way and nobody notices."""
    known = [draft for draft in drafts if draft[:2] in KNOWN]
    built = KERNEL.build_batches(known, KNOWN, 0, 1 << 20, 5, IPV4, 1 << 20, COUNT_MAX)
    assert built is not None
    assert len(built[1]) == len(known)


@given(i32, i32, i64, st.lists(i64, min_size=1, max_size=4), st.sampled_from([b"", b"AC01"]))
@example(1, 0, 0, [0, 1232], b"AC01")
def test_an_answer_names_every_message(
    opaque: int, queue_id: int, queue_offset: int, places: list[int], key: bytes
) -> None:
    arguments = (opaque, queue_id, queue_offset, places, key, b"7F00000100002A9F", b'"a":"b"')
    answer = ANSWERS.batch_answer(*arguments)
    assert answer == PURE_ANSWERS.batch_answer(*arguments)
    header_bytes = int.from_bytes(answer[4:8], "big")
    assert int.from_bytes(answer[:4], "big") == header_bytes + 4 == len(answer) - 4
    (found,) = FrameDecoder().feed(answer)
    ids = [f"7F00000100002A9F{place & (1 << 64) - 1:016X}" for place in places]
    expected = {"msgId": ",".join(ids), "queueId": str(queue_id), "queueOffset": str(queue_offset)}
    if key:
        expected["transactionId"] = key.decode()
    fields = json.loads(answer[8:])["extFields"]
    assert fields == {**expected, "a": "b"}
    assert found.opaque == opaque  # type: ignore[union-attr]


items = st.tuples(
    st.booleans(),
    st.sampled_from([0, 0, 2, 1, 4]),
    drafts_of(st.sampled_from([b"", b"x"])),
).map(lambda parts: (0, 0, 0, 320, b"", b"", 4, parts[0], -1, parts[1], b"", parts[2]))


@given(st.lists(items, max_size=4), st.integers(0, 4), st.integers(-1, 3))
def test_compiled_and_pure_count_batches_alike(
    sends: list[Any], first: int, queue_count: int
) -> None:
    first = min(first, len(sends))
    arguments = (sends, first, {b"orders": queue_count}, 0x701)
    found = outcome(KERNEL.count_batches, *arguments)
    assert found == outcome(PURE.count_batches, *arguments)
    taken = sends[first : first + found[1]]
    assert all(send[7] and send[9] in (0, 2) and send[11][0] == b"orders" for send in taken)
