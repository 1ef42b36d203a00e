"""Batch splitting: compiled equals pure on any bytes, and both equal the batch decoder."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.model.batch import BatchUnit, decode_batch, encode_batch
from contrail.model.message import MessageDraft
from tests.unit.kernels.material import i32, outcome, twins

KERNEL, PURE = twins("batch_split")

DRAFT = MessageDraft(b"orders", 3, b"", sys_flag=1, born_timestamp_ms=7, reconsume_times=2)
units = st.builds(BatchUnit, st.binary(max_size=40), st.binary(max_size=20), i32)
batches = st.lists(units, min_size=1, max_size=6).map(encode_batch)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(batches))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(damaged() | st.binary(max_size=80), st.integers(0, 8))
def test_compiled_and_pure_split_alike_whatever_the_bytes(data: bytes, count_max: int) -> None:
    found = outcome(KERNEL.split_units, data, DRAFT, count_max)
    assert found == outcome(PURE.split_units, data, DRAFT, count_max)
    assert found[0] in ("returned", "BatchIllegal")


@given(damaged())
def test_a_batch_splits_as_the_decoder_reads_it(data: bytes) -> None:
    kind, read = outcome(decode_batch, data)
    if kind == "returned":
        read = [
            DRAFT._replace(body=unit.body, properties=unit.properties, flag=unit.flag)
            for unit in read
        ]
    assert outcome(KERNEL.split_units, data, DRAFT, 1000) == (kind, read)
