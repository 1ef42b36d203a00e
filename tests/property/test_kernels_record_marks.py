"""Marked records: compiled equals pure on any bytes, and both find what decoding finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels.record_layout import REASON_END, TRANSACTION_MASK
from contrail.model.message import MessageDraft
from contrail.model.record import decode_record
from tests.unit.kernels.material import (
    damaged_logs,
    drafts,
    log_of,
    outcome,
    record_positions,
    twins,
)

KERNEL, PURE = twins("record_marks")

any_logs = damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0))


@given(any_logs, st.data())
def test_compiled_and_pure_pick_the_same_records(
    damaged: tuple[bytes, int], data: st.DataObject
) -> None:
    log, _ = damaged
    end = data.draw(st.just(len(log)) | st.integers(-2, len(log) + 2))
    start = data.draw(st.just(0) | st.integers(-2, len(log) + 2))
    arguments = (log, start, end)
    assert outcome(KERNEL.marked_records, *arguments) == outcome(PURE.marked_records, *arguments)


@given(st.lists(drafts, max_size=6))
def test_marked_records_are_those_of_transactions_and_of_named_places(
    given_drafts: list[MessageDraft],
) -> None:
    log = log_of(given_drafts)
    records = [(at, decode_record(log[at : at + size], 0)) for at, size in record_positions(log)]
    expected = [
        (at, message.prepared_transaction_offset)
        for at, message in records
        if message.prepared_transaction_offset or message.sys_flag & TRANSACTION_MASK
    ]
    assert KERNEL.marked_records(log, 0, len(log)) == (len(log), REASON_END, expected)
