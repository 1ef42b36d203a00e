"""Cursors of the delay levels: where they stand, what a delivery looks like."""

from __future__ import annotations

import pytest

from contrail.broker.state.causes import cause_mark
from contrail.broker.state.delay_cursors import DelayCursors, as_delivered
from contrail.errors import MessageIllegal
from contrail.model.data_version import DataVersion
from contrail.model.message import StoredMessage
from contrail.model.properties import encode_properties

NOW_MS = 1_760_000_000_000
TABLE = [0, 1_000, 5_000, 10_000]


def stored(sys_flag: int = 0, **properties: str) -> StoredMessage:
    return StoredMessage(
        topic="SCHEDULE_TOPIC_XXXX",
        queue_id=2,
        queue_offset=7,
        physical_offset=4_096,
        record_bytes=300,
        body=b"body",
        raw_properties=encode_properties(properties),
        flag=9,
        sys_flag=sys_flag,
        body_crc=0,
        born_timestamp_ms=NOW_MS - 5,
        born_host=b"\x0a\x00\x00\x01\x00\x00\x1f\x90",
        store_timestamp_ms=NOW_MS,
        store_host=b"\x7f\x00\x00\x01\x00\x00\x2a\x9f",
        reconsume_times=3,
        prepared_transaction_offset=0,
    )


def test_a_level_that_is_not_configured_has_no_delay() -> None:
    cursors = DelayCursors(TABLE)
    assert cursors.levels == (1, 2, 3)
    assert [cursors.delay_ms(level) for level in (1, 3, 4)] == [1_000, 10_000, 0]


@pytest.mark.parametrize(
    ("stored_offset", "expected", "reported"),
    [(4, 10, 4), (25, 20, 25), (15, 15, None), (10, 10, None), (20, 20, None), (None, 10, None)],
)
def test_a_cursor_outside_its_queue_goes_to_the_nearer_end(
    stored_offset: int | None, expected: int, reported: int | None
) -> None:
    cursors = DelayCursors(TABLE, {} if stored_offset is None else {2: stored_offset})
    assert cursors.correct(2, queue_offset_min=10, queue_offset_max=20) == reported
    assert cursors.at(2) == expected


def test_loaded_cursors_are_kept_even_for_levels_that_are_not_configured() -> None:
    version = DataVersion(0, 4, NOW_MS)
    cursors = DelayCursors(TABLE, {1: 5, 18: 70}, data_version=version, unknown={"more": 1})
    assert list(cursors.levels) == [1, 2, 3]
    assert cursors.knows(1) and not cursors.knows(2)
    assert cursors.snapshot() == ({1: 5, 18: 70}, version, {"more": 1})


def test_a_snapshot_is_a_copy() -> None:
    cursors = DelayCursors(TABLE)
    snapshot = cursors.snapshot()
    cursors.put(1, 3)
    assert snapshot.queue_offsets == {}
    assert cursors.at(1) == 3


def test_the_version_changes_once_in_two_hundred_deliveries() -> None:
    cursors = DelayCursors(TABLE)
    cursors.delivered_to(1, 150, NOW_MS)
    assert cursors.snapshot().data_version == DataVersion()
    cursors.delivered_to(2, 49, NOW_MS)
    assert cursors.snapshot().data_version == DataVersion()
    cursors.delivered_to(1, 151, NOW_MS + 7)
    assert cursors.snapshot().data_version == DataVersion(0, 1, NOW_MS + 7)


def test_a_delivered_message_is_the_stored_one_in_its_real_place() -> None:
    waiting = stored(0x8 | 0x1, DELAY="3", TAGS="a", REAL_TOPIC="orders", REAL_QID="5", WAIT="true")
    draft = as_delivered(waiting)
    assert (draft.topic, draft.queue_id) == (b"orders", 5)
    assert draft.body == b"body"
    # RocketMQ leaves the marks of the delay in the text of what it delivers.
    assert draft.properties == waiting.raw_properties
    assert (draft.flag, draft.sys_flag, draft.reconsume_times) == (9, 0x9, 3)
    assert (draft.born_timestamp_ms, draft.born_host) == (NOW_MS - 5, waiting.born_host)


def test_a_delivered_message_names_the_record_that_waited() -> None:
    draft = as_delivered(stored(REAL_TOPIC="orders", REAL_QID="5"))
    assert draft.prepared_transaction_offset == cause_mark(4_096)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"REAL_TOPIC": "orders"},
        {"REAL_QID": "1"},
        {"REAL_TOPIC": "orders", "REAL_QID": "one"},
        {"REAL_TOPIC": "orders", "REAL_QID": "-1"},
        {"REAL_TOPIC": "orders", "REAL_QID": "1_0"},
        {"REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"},
        {"REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "0"},
    ],
)
def test_a_message_without_a_place_to_go_is_illegal(properties: dict[str, str]) -> None:
    with pytest.raises(MessageIllegal):
        as_delivered(stored(0, **properties))


def test_a_slave_takes_its_masters_cursors_and_says_whether_that_changed_anything() -> None:
    cursors = DelayCursors([0, 1000, 5000], {1: 4, 2: 9})
    version = DataVersion(0, 3, 100)
    assert cursors.replace({1: 6}, version)
    assert cursors.snapshot().queue_offsets == {1: 6, 2: 9}
    assert cursors.snapshot().data_version == version
    assert not cursors.replace({1: 6}, version)


def test_no_cursor_of_a_slave_moves_back_when_its_master_forgot_what_it_delivered() -> None:
    cursors = DelayCursors([0, 1000, 5000], {1: 4, 2: 9})
    cursors.replace({1: 6, 2: 7}, DataVersion(0, 3, 100))
    assert cursors.snapshot().queue_offsets == {1: 6, 2: 9}
