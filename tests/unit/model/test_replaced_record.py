"""A record that replaces a damaged one: whole at every length, with the fields that fit."""

from __future__ import annotations

import pytest

from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.record_layout import REASON_END
from contrail.kernels.record_scan import check_record
from contrail.model.record import RECORD_BYTES_MIN, decode_record
from contrail.model.replaced_record import LostPlace, encode_replacement, read_replacement
from contrail.model.topic import REPLACED_TOPIC

PLACE = LostPlace(b"orders", 3, 41, 1, -77)
AT = 4096


def replaced(record_bytes: int, **options: object) -> bytes:
    return encode_replacement(
        record_bytes,
        physical_offset=AT,
        **{"place": PLACE, "store_timestamp_ms": 1_760_000_000_000, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("with_crc", [False, True])
def test_a_replacement_is_a_whole_record_at_every_length(with_crc: bool) -> None:
    least = RECORD_BYTES_MIN + (20 if with_crc else 0)
    for record_bytes in [*range(least, least + 400), 70_000]:
        record = replaced(record_bytes, with_crc=with_crc, properties={"KEYS": "a b"})
        assert len(record) == record_bytes
        mode = 2 if with_crc else 0
        assert check_record(record, 0, len(record), AT, True, mode) == (REASON_END, record_bytes)
        assert REPLACED_TOPIC.startswith(decode_record(record).topic)


def test_no_record_is_smaller_than_the_smallest() -> None:
    with pytest.raises(ValueError, match="no record fits into 90 bytes"):
        replaced(RECORD_BYTES_MIN - 1)


def test_with_little_room_keys_are_left_out_first_then_the_topics_name_then_the_lost_topic() -> (
    None
):
    keys = {"UNIQ_KEY": "ID1", "KEYS": "k1"}
    least_named = RECORD_BYTES_MIN + 12 + len(PLACE.topic)
    whole = decode_record(replaced(300, properties=keys))
    assert (read_replacement(whole), whole.properties) == (PLACE, keys)
    keyless = decode_record(replaced(least_named + len(REPLACED_TOPIC), properties=keys))
    assert (read_replacement(keyless), keyless.properties) == (PLACE, {})
    assert keyless.topic == REPLACED_TOPIC
    short = decode_record(replaced(least_named, properties=keys))
    assert (read_replacement(short), short.topic) == (PLACE, "")
    nameless = read_replacement(decode_record(replaced(least_named - 1)))
    assert nameless is not None and nameless.topic == b""


def test_rows_and_keys_of_the_lost_message_are_derived_from_its_replacement() -> None:
    record = replaced(300, properties={"KEYS": "k1"})
    queues, index_rows, count, _ = derive_rows(
        record, 0, len(record), AT, [0], frozenset(), False, True
    )
    (run,) = queues[b"orders"][3]
    assert (run[0], run[1], count) == (41, 1, 1)
    assert run[2] == AT.to_bytes(8, "big") + (300).to_bytes(4, "big") + (-77).to_bytes(
        8, "big", signed=True
    )
    assert len(index_rows) == 20


def test_a_replaced_batch_keeps_the_offsets_of_all_its_messages() -> None:
    record = replaced(300, place=LostPlace(b"orders", 0, 70, 5, 0))
    queues, *_ = derive_rows(record, 0, len(record), AT, [0], frozenset({b"orders"}), False, True)
    (run,) = queues[b"orders"][0]
    assert (run[0], run[1], len(run[2])) == (70, 5, 46)
    queues, *_ = derive_rows(record, 0, len(record), AT, [0], frozenset(), False, True)
    assert queues[b"orders"][0][0][:2] == [70, 1]


def test_a_clients_record_of_that_topic_replaces_nothing() -> None:
    record = bytearray(replaced(300))
    record[76:84] = bytes(8)
    assert read_replacement(decode_record(bytes(record))) is None
    assert derive_rows(record, 0, len(record), AT, [0], frozenset(), False, True)[0] == {}
