"""Record building: compiled equals pure, and a scan finds the built records again."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels.record_layout import REASON_END
from contrail.kernels.record_scan import scan_records
from contrail.model.message import MessageDraft
from contrail.store.state.append import AppendState
from tests.unit.kernels.material import (
    IPV4,
    IPV6,
    drafts,
    i32,
    i64,
    log_of,
    outcome,
    properties,
    record_positions,
    twins,
)

KERNEL, PURE = twins("record_build")

huge = i64 | st.integers(-(2**70), 2**70)
any_drafts = st.builds(
    MessageDraft,
    topic=st.binary(max_size=3)
    | st.sampled_from([b"t" * 127, b"t" * 128, b"%RETRY%" + b"t" * 248, b"%DLQ%" + b"t" * 251]),
    queue_id=i32 | huge,
    body=st.binary(max_size=20),
    properties=properties | st.integers(32_740, 32_770).map(lambda count: b"k\x01" + b"v" * count),
    flag=i32 | huge,
    sys_flag=i32 | huge,
    born_timestamp_ms=huge,
    born_host=st.sampled_from([IPV4, IPV6, b"", b"1234567"]),
    reconsume_times=i32 | huge,
    prepared_transaction_offset=huge,
)


@given(
    st.lists(drafts | any_drafts, max_size=3),
    st.sampled_from([0, 10, 4096]),
    st.booleans(),
    st.sampled_from([8, 20, 8, 20, 0, 9]),
)
def test_compiled_and_pure_measure_and_refuse_alike(
    messages: list[MessageDraft], body_bytes_max: int, record_crc: bool, store_host_bytes: int
) -> None:
    arguments = (messages, body_bytes_max, record_crc, store_host_bytes)
    assert outcome(KERNEL.measure_run, *arguments) == outcome(PURE.measure_run, *arguments)


@pytest.mark.proves("store.reader.kernels")
@given(
    st.lists(drafts, max_size=4),
    st.lists(i64, min_size=4, max_size=4),
    st.integers(0, 2**62),
    i64,
    st.sampled_from([IPV4, IPV6]),
    st.booleans(),
)
def test_compiled_and_pure_build_the_same_parts_of_the_measured_size(
    messages: list[MessageDraft],
    queue_offsets: list[int],
    physical_offset: int,
    store_timestamp_ms: int,
    store_host: bytes,
    record_crc: bool,
) -> None:
    arguments = (
        messages,
        queue_offsets[: len(messages)],
        physical_offset,
        store_timestamp_ms,
        store_host,
        record_crc,
    )
    parts = KERNEL.build_run(*arguments)
    assert parts == PURE.build_run(*arguments)
    sizes = KERNEL.measure_run(messages, 4096, record_crc, len(store_host))
    step = 5 if record_crc else 4
    assert [sum(map(len, parts[at : at + step])) for at in range(0, len(parts), step)] == sizes


@pytest.mark.proves("store.log.record-versions")
@given(
    st.lists(drafts, max_size=4),
    st.sampled_from([IPV4, IPV6]),
    st.booleans(),
    st.integers(0, 2**62),
    i64,
)
def test_every_record_built_passes_the_strictest_scan(
    messages: list[MessageDraft],
    store_host: bytes,
    record_crc: bool,
    base_offset: int,
    store_timestamp_ms: int,
) -> None:
    log = log_of(
        messages,
        base_offset=base_offset,
        store_host=store_host,
        record_crc=record_crc,
        store_timestamp_ms=store_timestamp_ms,
    )
    found = scan_records(log, 0, len(log), base_offset, True, 2 if record_crc else 0)
    last_position = record_positions(log)[-1][0] if messages else -1
    last_timestamp_ms = store_timestamp_ms if messages else 0
    assert found == (len(log), REASON_END, len(messages), last_position, last_timestamp_ms)


@pytest.mark.proves("store.log.checksums")
@given(st.lists(drafts, min_size=1, max_size=3), st.sampled_from([IPV4, IPV6]))
def test_the_record_crc_is_the_crc_of_the_record_before_it(
    messages: list[MessageDraft], store_host: bytes
) -> None:
    log = log_of(messages, store_host=store_host, record_crc=True)
    for position, size in record_positions(log):
        record = log[position : position + size]
        name, digits, end = record[-20:-11], record[-11:-1], record[-1:]
        assert (name, end) == (b"__CRC32#\x01", b"\x02")
        assert int(digits[::-1]) == zlib.crc32(record[:-20]) & 0x7FFFFFFF


@pytest.mark.proves("store.log.runs")
@given(
    st.lists(drafts | any_drafts, max_size=6),
    st.dictionaries(st.tuples(st.sampled_from([b"orders", b"t"]), st.integers(0, 3)), i32),
    st.integers(0, 1 << 40),
    st.integers(0, 4000) | st.just(1 << 30),
    st.integers(1, 5),
    st.sampled_from([IPV4, IPV6]),
    st.booleans(),
)
def test_a_run_built_in_one_pass_is_the_run_measured_placed_and_built(
    run: list[MessageDraft],
    next_offsets: dict[tuple[bytes, int], int],
    physical_end: int,
    room_bytes: int,
    weight: int,
    store_host: bytes,
    record_crc: bool,
) -> None:
    arguments = (run, next_offsets, physical_end, room_bytes, weight, 7, store_host, 99, record_crc)
    compiled = outcome(KERNEL.build_fitting_run, *arguments)
    assert compiled == outcome(PURE.build_fitting_run, *arguments)
    if compiled[0] != "returned" or compiled[1] is None or not run:
        return
    parts, queue_offsets, physical_offsets, end, planned, fresh = compiled[1]
    sizes = KERNEL.measure_run(run, 99, record_crc, len(store_host))
    state = AppendState(segment_bytes=1 << 50, physical_end=physical_end)
    for (topic, queue_id), queue_offset in next_offsets.items():
        state.set_next_offset(topic, queue_id, queue_offset)
    plan = state.plan_append(run, sizes, weight=weight)
    assert (queue_offsets, physical_offsets) == (plan.queue_offsets, plan.physical_offsets)
    assert (end, planned, fresh) == (plan.physical_end, plan.next_offsets, plan.new_queues)
    built = KERNEL.build_run(run, queue_offsets, physical_end, 7, store_host, record_crc)
    assert b"".join(parts) == b"".join(built)


@given(st.lists(drafts, min_size=1, max_size=4), st.integers(0, 2000))
def test_a_run_over_the_room_is_not_built(run: list[MessageDraft], room_bytes: int) -> None:
    total = sum(KERNEL.measure_run(run, 1 << 20, False, 8))
    built = KERNEL.build_fitting_run(run, {}, 0, room_bytes, 1, 7, IPV4, 1 << 20, False)
    assert (built is None) == (total > room_bytes)
