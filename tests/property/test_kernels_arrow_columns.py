"""Records as columns: compiled = pure = Python = the record model, on any bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.compression import Compression, compress
from contrail.errors import RecordDamaged
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch, put_inner_base
from contrail.model.message import MessageDraft
from contrail.pipeline import arrow
from tests.unit.kernels.material import (
    IPV4,
    IPV6,
    damaged_logs,
    drafts,
    log_of,
    outcome,
    properties,
    record_positions,
)
from tests.unit.pipeline.record_material import (
    ENGINES,
    KERNEL,
    PURE,
    decoded,
    expected_rows,
    with_engine,
)

any_logs = damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0))
fields = st.sampled_from(
    [b"", bytes((20, 8, 0)), bytes((0, 4, 0, 56, 8, 1, 64, 8, 1, 72, 4, 2)), bytes((84, 4, 2))]
)


@st.composite
def compressed_drafts(draw: st.DrawFn) -> MessageDraft:
    body, flags = compress(draw(st.binary(max_size=200)), draw(st.sampled_from(list(Compression))))
    return draw(drafts)._replace(body=body, sys_flag=flags)


@st.composite
def batch_drafts(draw: st.DrawFn) -> MessageDraft:
    units = st.builds(BatchUnit, st.binary(max_size=30), properties, st.integers(-5, 5))
    body = encode_batch(draw(st.lists(units, min_size=1, max_size=4)))
    plain = draw(drafts)._replace(body=body, sys_flag=0, properties=b"")
    return put_inner_base(mark_inner_batch(plain), 7)


any_drafts = drafts | compressed_drafts() | batch_drafts()


@pytest.mark.proves("house.folded.arrow-engines", "spark.source.arrow")
@given(st.lists(any_drafts, max_size=5), st.sampled_from([IPV4, IPV6]), st.booleans())
def test_every_engine_gives_the_rows_that_the_record_model_gives(
    messages: list[MessageDraft], store_host: bytes, raw_body: bool
) -> None:
    log = log_of(messages, base_offset=1000, store_host=store_host)
    expected = expected_rows(log, raw_body=raw_body)
    for name in ENGINES:
        assert decoded(name, log, raw_body=raw_body) == expected


@given(any_logs, st.integers(-1, 3), st.data())
def test_compiled_and_pure_walk_to_the_same_byte_for_the_same_reason(
    damaged: tuple[bytes, int], room: int, data: st.DataObject
) -> None:
    log, base_offset = damaged
    start = data.draw(st.just(0) | st.integers(-2, len(log) + 2))
    end = data.draw(st.just(len(log)) | st.integers(-2, len(log) + 2))
    base_offset = data.draw(st.sampled_from([-1, base_offset]))
    found = []
    for kernel in (KERNEL, PURE):
        positions = np.full(5 if room < 0 else room, -7, np.int64)
        answer = outcome(kernel.walk_records, log, start, end, base_offset, positions.data)
        found.append((answer, positions.tolist()))
    assert found[0] == found[1]


@given(any_logs, fields, st.booleans(), st.data())
def test_every_engine_measures_alike_or_finds_the_same_record_bad(
    damaged: tuple[bytes, int], wanted: bytes, wants_spans: bool, data: st.DataObject
) -> None:
    log, _ = damaged
    places = st.sampled_from([*starts_before_damage(log), 0]) | st.integers(-5, len(log) + 5)
    rows = np.array(data.draw(st.lists(places, max_size=4)), np.int64)
    found = [
        with_engine(name, lambda engine=engine: engine.measure(log, rows, wanted, wants_spans))
        for name, (engine, _) in ENGINES.items()
    ]
    for numbers, spans, flags, bad_row, reason in found[1:]:
        assert (bad_row, reason) == found[0][3:]
        if bad_row < 0:
            assert flags == found[0][2]
            assert numbers.tolist() == found[0][0].tolist()
            assert spans.tolist() == found[0][1].tolist()


def starts_before_damage(log: bytes) -> list[int]:
    positions = np.empty(8, np.int64)
    count, _, _ = PURE.walk_records(log, 0, len(log), -1, positions.data)
    starts: list[int] = positions[:count].tolist()
    return starts


@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-3, 62), st.integers(-2, 20))))
def test_spans_outside_the_buffer_are_refused_alike(
    data: bytes, spans: list[tuple[int, int]]
) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    sizes = np.array([size for _, size in spans], np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    found = []
    for kernel in (KERNEL, PURE):
        target = bytearray(40)
        answer = outcome(kernel.copy_spans, data, starts.data, offsets.data, target)
        values = np.zeros(2 * len(spans), np.int64)
        looked = outcome(
            kernel.find_properties, data, starts.data, sizes.data, b"\0\1k", values.data
        )
        found.append((answer, bytes(target), looked, values.tolist()))
    assert found[0] == found[1]


@pytest.mark.proves("house.folded.arrow-engines")
@given(st.lists(properties | st.just(b"a\x01b\x02") | st.just(b"a\x01b\x02c\x01dd\x02")))
def test_properties_are_found_and_listed_alike(texts: list[bytes]) -> None:
    data = b"".join(texts)
    sizes = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(sizes) - sizes
    names = [b"TAGS", b"k", b"a", b"", b"c"]
    found, maps = [], []
    stretch = arrow._Stretch(data, starts, {}, np.array([sizes] * 4 + [starts, sizes]), 0)
    map_type = pa.map_(pa.string(), pa.string())
    for name, (engine, _) in ENGINES.items():

        def work(engine: Any = engine) -> tuple[Any, Any]:
            return engine.find(data, starts, sizes, names), arrow._maps(stretch, map_type)

        values, listed = with_engine(name, work)
        listed.validate(full=True)
        found.append(values.tolist())
        maps.append(listed.to_pylist())
    assert found[0] == found[1] == found[2]
    assert maps[0] == maps[1] == maps[2]


@given(any_logs, st.data())
def test_bodies_are_checked_alike(damaged: tuple[bytes, int], data: st.DataObject) -> None:
    log, _ = damaged
    places = data.draw(st.lists(st.integers(-3, len(log) + 3) | st.just(0), max_size=3))
    rows = np.array(places, np.int64)
    arguments = (log, rows.data)
    assert outcome(KERNEL.check_bodies, *arguments) == outcome(PURE.check_bodies, *arguments)


@given(st.lists(drafts, min_size=1, max_size=3), st.data())
def test_a_log_cut_inside_a_record_is_damaged_at_that_record(
    messages: list[MessageDraft], data: st.DataObject
) -> None:
    log = log_of(messages)
    ends = {0, *(at + size for at, size in record_positions(log))}
    cut = data.draw(st.integers(1, len(log)))
    if cut in ends:
        cut -= 1
    place = max(end for end in ends if end <= cut)
    for name in ENGINES:
        with pytest.raises(RecordDamaged, match=f"byte {place} of the buffer") as raised:
            decoded(name, log[:cut])
        assert raised.value.physical_offset == place


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=8))
def test_rows_in_any_order_and_overlapping_are_copied_as_they_are(
    spans: list[tuple[int, int]],
) -> None:
    data = bytes(range(60))
    starts = np.array([start for start, _ in spans], np.int64)
    sizes = np.array([size for _, size in spans], np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    expected = b"".join(data[start : start + size] for start, size in spans)
    for name, (engine, _) in ENGINES.items():
        copied, is_ascii = with_engine(
            name, lambda engine=engine: engine.copy(data, starts, offsets)
        )
        assert (copied.to_pybytes(), is_ascii) == (expected, True)
