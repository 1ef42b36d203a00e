"""The kernel behind the Arrow columns: edges that random bytes seldom reach."""

from __future__ import annotations

import numpy as np
import pytest

from contrail.model.message import MessageDraft
from tests.unit.kernels.material import IPV6, log_of, twins

KERNELS = dict(zip(("built", "pure"), twins("arrow_columns"), strict=True))

kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def draft(**fields: object) -> MessageDraft:
    return MessageDraft(b"T", 0, b"body")._replace(**fields)


def rows_of(kernel: object, log: bytes) -> np.ndarray:
    positions = np.empty(100, np.int64)
    count, reached, reason = kernel.walk_records(log, 0, len(log), -1, positions.data)  # type: ignore[attr-defined]
    assert (reached, reason) == (len(log), 0)
    return positions[:count]


def listed(kernel: object, texts: list[bytes]) -> list[dict[bytes, bytes]] | None:
    data = b"".join(texts)
    sizes = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(sizes) - sizes
    room = len(data)
    rows = np.empty(len(texts) + 1, np.int32)
    name_ends, value_ends = np.empty((2, room // 4 + len(texts) + 1), np.int32)
    names, values = bytearray(room), bytearray(room)
    count, *_ = kernel.list_properties(  # type: ignore[attr-defined]
        data,
        starts.data,
        sizes.data,
        rows.data,
        name_ends.data,
        names,
        value_ends.data,
        values,
    )
    if count < 0:
        return None
    pairs = [
        (
            bytes(names[name_ends[index] : name_ends[index + 1]]),
            bytes(values[value_ends[index] : value_ends[index + 1]]),
        )
        for index in range(count)
    ]
    return [dict(pairs[rows[row] : rows[row + 1]]) for row in range(len(texts))]


@kernels
def test_a_walk_ends_when_there_is_no_more_room_for_positions(kernel: object) -> None:
    log = log_of([draft(), draft(), draft()])
    positions = np.full(2, -1, np.int64)
    found = kernel.walk_records(log, 0, len(log), 0, positions.data)  # type: ignore[attr-defined]
    assert found == (2, int(positions[1]) * 2, 0)


@kernels
def test_a_record_of_another_place_ends_a_walk_with_a_base(kernel: object) -> None:
    log = log_of([draft(), draft()], base_offset=50)
    positions = np.empty(2, np.int64)
    walk = kernel.walk_records  # type: ignore[attr-defined]
    assert walk(log, 0, len(log), 50, positions.data)[0] == 2
    assert walk(log, 0, len(log), 51, positions.data) == (0, 0, 5)


@kernels
def test_fields_behind_long_hosts_are_found(kernel: object) -> None:
    log = log_of([draft(born_host=IPV6, reconsume_times=7)], store_host=IPV6)
    rows = rows_of(kernel, log)
    numbers, spans = np.empty(2, np.int64), np.empty(6, np.int64)
    fields = bytes((72, 4, 2, 56, 8, 1))
    kernel.measure_records(log, rows.data, fields, numbers.data, spans.data)  # type: ignore[attr-defined]
    assert numbers.tolist() == [7, 1_760_000_000_123]
    body_at, body_bytes = spans[:2].tolist()
    assert log[body_at : body_at + body_bytes] == b"body"


@kernels
def test_a_field_that_no_record_has_is_refused(kernel: object) -> None:
    log = log_of([draft()])
    for field in (b"\x55\x08\x00", b"\x00\x02\x00", b"\x00\x04\x03"):
        with pytest.raises(ValueError, match="no field of a record"):
            kernel.measure_records(  # type: ignore[attr-defined]
                log, rows_of(kernel, log).data, field, np.empty(1, np.int64).data, b""
            )


@kernels
def test_buffers_of_the_wrong_length_are_refused(kernel: object) -> None:
    one, two = np.zeros(1, np.int64).data, np.zeros(2, np.int64).data
    with pytest.raises(ValueError, match="do not fit 2 numbers"):
        kernel.measure_records(b"", one, bytes((20, 8, 0)), two, np.empty(0, np.int64).data)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="need 6 places"):
        kernel.measure_records(b"", one, b"", np.empty(0, np.int64).data, two)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="reaches past the end of the names"):
        kernel.find_properties(b"", one, one, b"\x00\x09k", two)  # type: ignore[attr-defined]


@kernels
def test_rows_with_the_same_lengths_but_other_names_are_not_taken_for_alike(kernel: object) -> None:
    texts = [
        b"aa\x01bb\x02cc\x01dd\x02",
        b"aa\x01xx\x02cc\x01yy\x02",
        b"cc\x01bb\x02aa\x01dd\x02",
        b"a\x01bbb\x02cc\x01dd\x02",
        b"aa\x01b\x02bcc\x01dd\x02",
        b"aa\x01b\x01\x02cc\x01d\x01\x02",
        b"aa\x01bb\x02cc\x01dddd"[:12],
    ]
    assert listed(kernel, texts) == [
        {b"aa": b"bb", b"cc": b"dd"},
        {b"aa": b"xx", b"cc": b"yy"},
        {b"cc": b"bb", b"aa": b"dd"},
        {b"a": b"bbb", b"cc": b"dd"},
        {b"aa": b"b", b"bcc": b"dd"},
        {b"aa": b"b\x01", b"cc": b"d\x01"},
        {b"aa": b"bb", b"cc": b"ddd"},
    ]


@kernels
def test_marks_are_counted_beyond_what_a_byte_holds(kernel: object) -> None:
    first = b"".join(b"n%03d\x01v\x02" % number for number in range(60))
    hidden = bytearray(first.replace(b"n", b"m"))
    # The same marks in the same places, and one more inside a name.
    hidden[-6] = 2
    found = listed(kernel, [first, bytes(hidden)])
    assert found is not None
    assert len(found[0]) == 60
    assert len(found[1]) == 60 and b"m059" not in found[1]


@kernels
def test_a_record_with_very_many_properties_is_left_to_others(kernel: object) -> None:
    pairs = [b"n%d\x01v\x02" % number for number in range(65)]
    assert listed(kernel, [b"".join(pairs)]) is None
    found = listed(kernel, [b"".join(pairs[:64])])
    assert found is not None and len(found[0]) == 64


@kernels
def test_a_named_property_is_found_among_very_many(kernel: object) -> None:
    text = b"".join(b"n%d\x01v%d\x02" % (number, number) for number in range(100))
    values = np.empty(2, np.int64)
    place, size = np.zeros(1, np.int64), np.array([len(text)], np.int64)
    kernel.find_properties(text, place.data, size.data, b"\x00\x03n97", values.data)  # type: ignore[attr-defined]
    start, length = values.tolist()
    assert text[start : start + length] == b"v97"


@kernels
def test_a_body_that_was_changed_is_found(kernel: object) -> None:
    log = bytearray(log_of([draft(), draft(body=b"other")]))
    rows = rows_of(kernel, bytes(log))
    assert kernel.check_bodies(bytes(log), rows.data) == -1  # type: ignore[attr-defined]
    log[log.index(b"other")] ^= 1
    assert kernel.check_bodies(bytes(log), rows.data) == 1  # type: ignore[attr-defined]
