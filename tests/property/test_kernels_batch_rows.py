"""Fast batches as rows: compiled equals pure, and both equal the general way."""

from __future__ import annotations

import json
from operator import add
from types import ModuleType
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.errors import MessageIllegal
from contrail.kernels import send_rows
from contrail.kernels.batch_split import split_units
from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_build import build_fitting_run
from contrail.kernels.send_places import QueuePlace
from contrail.kernels.send_records import are_admitted, build_sends
from contrail.kernels.send_tally import skips_of, tally_run
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import MessageDraft
from contrail.protocol.frames import FrameDecoder
from tests.property.test_kernels_send_dispatch import LOG_START, STORED_MS, Queues
from tests.unit.kernels.material import IPV4, IPV6, i32, i64, properties, twins

KERNEL, PURE = twins("batch_rows")
DISPATCH, PURE_DISPATCH = twins("send_dispatch")
ANSWERS, PURE_ANSWERS = twins("answer_build")
TALLY, PURE_TALLY = twins("send_tally")

COUNT_MAX = 5
FIFO_MARK = b"__SHARDINGKEY\x01"
KNOWN = {
    (topic, queue_id): queue_id * 7 for topic in (b"orders", b"t" * 127) for queue_id in (0, 1)
}

well_formed_properties = st.lists(
    st.sampled_from(
        [
            b"UNIQ_KEY\x01AC01\x02",
            b"TAGS\x01x\x02",
            b"KEYS\x01k1 k2\x02",
            b"__SHARDINGKEY\x01k\x02",
            b"D\x01elay\x02",
        ]
    ),
    max_size=4,
    unique=True,
).map(b"".join)
odd_properties = properties | st.sampled_from(
    [b"DELAY\x013\x02", b"a\x01DELAY\x02", b"__CRC32#\x010123456789\x02", b"x" * 300]
)
units = st.builds(BatchUnit, st.binary(min_size=1, max_size=40), well_formed_properties, i32)
odd_units = st.builds(BatchUnit, st.binary(max_size=40), odd_properties, i32)
well_formed_bodies = st.lists(units, min_size=1, max_size=COUNT_MAX).map(encode_batch)
bodies = well_formed_bodies | st.lists(units | odd_units, max_size=COUNT_MAX + 2).map(encode_batch)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(well_formed_bodies))
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


runs = st.lists(drafts_of(well_formed_bodies | bodies | damaged()), min_size=1, max_size=3)
well_formed_runs = st.lists(drafts_of(well_formed_bodies), min_size=1, max_size=3)
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


def rows_of(kernel: ModuleType, drafts: list[Any], body_bytes_max: int) -> list[Any] | None:
    chunks = [kernel.batch_rows(draft, body_bytes_max, COUNT_MAX) for draft in drafts]
    return None if None in chunks else chunks


def build(
    chunks: list[Any], known: dict[tuple[bytes, int], int], *rest: Any
) -> tuple[Any, dict[tuple[bytes, int], int]] | None:
    """The records of admitted chunks, and the next offsets; the rows have their places then."""
    places: dict[bytes, list[QueuePlace | None]] = {}
    counts = {topic: 2 for topic, _ in known}
    if not all(are_admitted(chunk, counts, places, -1, 1 << 20) for chunk in chunks):
        return None
    lent: list[QueuePlace] = []
    built = build_sends(chunks, dict(known), lent, *rest)
    return None if built is None else (built, {one.key: one.planned_offset for one in lent})


@given(
    runs | well_formed_runs,
    st.integers(0, 2000) | st.just(1 << 20),
    hosts,
    st.integers(0, 100) | st.just(1 << 20),
)
def test_records_offsets_counts_and_queues_are_those_of_the_general_way(
    drafts: list[Any], room_bytes: int, store_host: bytes, body_bytes_max: int
) -> None:
    chunks = rows_of(KERNEL, drafts, body_bytes_max)
    assert chunks == rows_of(PURE, drafts, body_bytes_max)
    rest = (LOG_START, room_bytes, STORED_MS, store_host)
    built = None if chunks is None else build(chunks, KNOWN, *rest)
    if chunks is None or built is None:
        return
    general = in_general(drafts, KNOWN, *rest, body_bytes_max)
    assert general is not None, "what the general way refuses was taken"
    split, (parts, queue_offsets, physical_offsets, end, planned, _) = general
    (records, built_end, last), built_planned = built
    assert (records, built_end, built_planned) == (b"".join(parts), end, planned)
    assert last == physical_offsets[-1]
    for column, places in (
        (send_rows.QUEUE_OFFSET, queue_offsets),
        (send_rows.PHYSICAL_OFFSET, physical_offsets),
    ):
        in_rows = [number for one in chunks for number in one[2][column :: send_rows.ROW_NUMBERS]]
        assert in_rows == places
    run = [draft for batch in split for draft in batch]
    tally = tally_run(run, physical_offsets, end, FIFO_MARK, skips_of(FIFO_MARK))
    for kernel in (TALLY, PURE_TALLY):
        assert tallied(kernel, chunks) == tally
    _, index_rows, _, _ = derive_rows(
        records, 0, len(records), LOG_START, [], frozenset(), False, True
    )
    for dispatch in (DISPATCH, PURE_DISPATCH):
        assert Queues(dispatch).put(chunks) == index_rows


def tallied(kernel: ModuleType, chunks: list[Any]) -> dict[tuple[bytes, int], list[int]]:
    counted: list[QueuePlace] = []
    assert kernel.tally_rows(chunks, counted) == sum(chunk[1] for chunk in chunks)
    sums: dict[tuple[bytes, int], list[int]] = {}
    for place in counted:
        for kind, counts in enumerate(place.take_counts()):
            if counts[0]:
                known = sums.get((place.topic, kind), [0] * len(counts))
                sums[place.topic, kind] = list(map(add, known, counts))
    return sums


@given(well_formed_runs)
def test_fast_batches_to_known_queues_are_taken(drafts: list[Any]) -> None:
    """Otherwise every batch could take the general way unnoticed."""
    known = [draft for draft in drafts if draft[:2] in KNOWN]
    chunks = rows_of(KERNEL, known, 1 << 20)
    assert chunks is not None
    assert build(chunks, KNOWN, 0, 1 << 20, 5, IPV4) is not None
    assert [chunk[1] for chunk in chunks] == [
        len(split_units(draft[2], draft, COUNT_MAX)) for draft in known
    ]


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
