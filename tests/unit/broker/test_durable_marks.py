"""Marks wait for the log."""

from __future__ import annotations

from contrail.broker.state.causes import Delivered, cause_mark
from contrail.broker.state.durable_marks import DurableMarks
from contrail.model.message import StoredMessage
from contrail.model.record import TRANSACTION_COMMIT


def test_a_mark_is_not_given_before_the_log_is_durable_that_far() -> None:
    marks: DurableMarks[str] = DurableMarks()
    marks.note(100, "a")
    marks.note(200, "b")
    assert marks.take(99) is None
    assert marks.take(150) == (100, "a")
    assert marks.take(150) is None
    assert marks.take(200) == (200, "b")


def test_only_the_newest_of_those_that_hold_is_given() -> None:
    marks: DurableMarks[int] = DurableMarks()
    for end in range(10):
        marks.note(end, end)
    assert marks.take(7) == (7, 7)
    assert len(marks) == 2


def test_a_newer_mark_at_the_same_place_replaces_the_older() -> None:
    marks: DurableMarks[str] = DurableMarks()
    marks.note(100, "a")
    marks.note(100, "b")
    assert marks.take(100) == (100, "b")


def stored(
    prepared: int, sys_flag: int = 0, reconsume_times: int = 0, properties: bytes = b""
) -> StoredMessage:
    blank = dict.fromkeys(StoredMessage.__dataclass_fields__, 0)
    fields = {
        "prepared_transaction_offset": prepared,
        "sys_flag": sys_flag,
        "reconsume_times": reconsume_times,
        "raw_properties": properties,
    }
    return StoredMessage(**{**blank, **fields})  # type: ignore[arg-type]


def test_a_delivered_record_names_the_one_that_waited() -> None:
    records = [stored(cause_mark(0)), stored(cause_mark(4711)), stored(0)]
    delivered = Delivered.of(records, 0)
    assert delivered.waited == {0, 4711}
    assert delivered.committed == set()


def test_a_commit_names_its_half_message_even_at_the_very_beginning() -> None:
    first = stored(0, TRANSACTION_COMMIT, properties=b"__transactionId__\x01k1\x02")
    delivered = Delivered.of([first, stored(99, TRANSACTION_COMMIT | 1)], 0)
    assert delivered.committed == {0, 99}
    assert delivered.waited == set()


def test_the_commit_bits_of_a_message_without_a_transaction_commit_nothing() -> None:
    sent = stored(0, TRANSACTION_COMMIT, properties=b"KEYS\x01__transactionId__\x02")
    assert Delivered.of([sent], 0).committed == set()


def test_the_retry_of_a_committed_message_is_no_commit() -> None:
    waited = stored(cause_mark(7), TRANSACTION_COMMIT, reconsume_times=1)
    sent_back = stored(0, TRANSACTION_COMMIT, reconsume_times=1)
    delivered = Delivered.of([waited, sent_back], 0)
    assert delivered.waited == {7}
    assert delivered.committed == set()
