"""Sifting by properties: compiled equals pure on any bytes, and both equal decoding everything."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from contrail.model.message import MessageDraft
from contrail.model.properties import decode_properties
from contrail.model.record import decode_record
from tests.unit.kernels.material import (
    damaged_logs,
    drafts,
    i32,
    i64,
    log_of,
    outcome,
    record_positions,
    twins,
)

KERNEL, PURE = twins("property_sieve")
ROWS, FULL, UNPROVEN = KERNEL.ENDED_ROWS, KERNEL.ENDED_FULL, KERNEL.ENDED_UNPROVEN
ANY = 1 << 40

names = st.lists(
    st.sampled_from([b"k", b"KEYS", b"TAGS", b"DELAY", b"KEY", b"WAIT", b"UNIQ_KEY", b"K"]),
    max_size=3,
    unique=True,
).map(tuple)
limits = st.integers(-1, 5) | st.just(ANY)
sizes = st.integers(-1, 600) | st.just(ANY)
entries = st.lists(st.tuples(i64 | st.integers(0, 400), i32 | st.integers(80, 250)), max_size=6)
properties = st.lists(
    st.tuples(
        st.sampled_from(["k", "KEYS", "KEY", "TAGS", "kk", ""]),
        st.sampled_from(["", "1", "7", "x\x01y", "größe"]) | st.text(max_size=6),
    ),
    max_size=6,
).map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode())


class Asked(dict[bytes, bool]):
    """Lets values with an even number of characters pass, and notes the values it was asked for."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __missing__(self, key: bytes) -> bool:
        text = key.decode("utf-8", "replace")
        self.texts.append(text)
        return len(text) % 2 == 0


def packed(places: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qiq", place, size, 0) for place, size in places)


def rows_of(log: bytes, base_offset: int) -> bytes:
    return packed([(base_offset + at, size) for at, size in record_positions(log)])


def wanted_text(record: bytes, wanted: tuple[bytes, ...]) -> str:
    """The values as ``model.properties`` decodes them."""
    found = decode_properties(decode_record(record, check_body_crc=False).raw_properties)
    return "\x02".join(found.get(name.decode(), "") for name in wanted)


@given(
    damaged_logs() | st.tuples(st.binary(max_size=300), st.just(0)),
    st.none() | entries.map(packed) | st.binary(max_size=100),
    limits,
    sizes,
    sizes,
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([b"T", b"TopicTest", b""]),
    st.integers(0, 2),
    names,
)
def test_compiled_and_pure_sift_alike_on_any_bytes(
    damaged: tuple[bytes, int],
    rows: bytes | None,
    count_max: int,
    bytes_max: int,
    scanned_bytes_max: int,
    is_first_free: bool,
    queue_id: int,
    topic: bytes,
    queue_offset: int,
    wanted: tuple[bytes, ...],
) -> None:
    log, base_offset = damaged
    if rows is None:
        # The record that is there, as far as anything is.
        size = int.from_bytes(log[:4], "big", signed=True) if len(log) >= 4 else 100
        rows = packed([(base_offset, size)])
    numbers = (count_max, bytes_max, scanned_bytes_max, is_first_free, base_offset, queue_id)
    ours, pure = Asked(), Asked()
    places = (*numbers, topic, queue_offset, wanted)
    memory, pure_memory = bytearray(KERNEL.MEMORY_BYTES), bytearray(KERNEL.MEMORY_BYTES)
    found = outcome(KERNEL.sift_rows, log, rows, *places, ours, memory)
    assert found == outcome(PURE.sift_rows, log, rows, *places, pure, pure_memory)
    assert memory == pure_memory
    assert ours.texts == pure.texts
    assert found[0] == "returned"


@given(
    st.lists(st.tuples(drafts, properties | st.binary(max_size=60)), min_size=1, max_size=5),
    limits,
    sizes,
    sizes,
    st.booleans(),
    names,
    st.booleans(),
)
def test_the_records_that_pass_are_those_that_decoding_finds(
    messages: list[tuple[MessageDraft, bytes]],
    count_max: int,
    bytes_max: int,
    scanned_bytes_max: int,
    is_first_free: bool,
    wanted: tuple[bytes, ...],
    record_crc: bool,
) -> None:
    stored = [draft._replace(topic=b"T", queue_id=3, properties=found) for draft, found in messages]
    log = log_of(stored, base_offset=500, record_crc=record_crc)
    selected: list[int] = []
    texts: list[str] = []
    taken = walked_bytes = walked = 0
    ended = ROWS
    for at, size in record_positions(log):
        over = taken + size > bytes_max and (selected or not is_first_free)
        far = walked_bytes + size > scanned_bytes_max and (walked or not is_first_free)
        if len(selected) // 3 >= count_max or over or far:
            ended = FULL
            break
        texts.append(wanted_text(log[at : at + size], wanted))
        if len(texts[-1]) % 2 == 0:
            selected += [500 + at, size, walked]
            taken += size
        walked_bytes += size
        walked += 1
    given_limits = (count_max, bytes_max, scanned_bytes_max, is_first_free)
    for kernel in (KERNEL, PURE):
        asked, memory = Asked(), bytearray(kernel.MEMORY_BYTES)
        arguments = (*given_limits, 500, 3, b"T", 0, wanted, asked, memory)
        found = kernel.sift_rows(log, rows_of(log, 500), *arguments)
        # The kernel does not ask again for a verdict it remembers.
        assert set(asked.texts) == set(texts)
        assert found == (selected, walked, walked_bytes, ended)
        assert kernel.sift_rows(log, rows_of(log, 500), *arguments) == found


@given(properties, st.integers(0, 2000), st.integers(1, 255))
def test_a_record_that_is_not_the_named_one_is_not_walked(
    stored: bytes, place: int, change: int
) -> None:
    messages = [MessageDraft(b"T", 3, b"body", stored) for _ in range(2)]
    log = log_of(messages)
    (_, first_bytes), (second_at, second_bytes) = record_positions(log)
    properties_bytes = len(decode_record(log[second_at:]).raw_properties)
    # Size, magic, queue, queue and physical offset; the body's length, the topic and its length.
    front = [*range(8), *range(12, 16), *range(20, 36), *range(84, 88)]
    behind = range(92, second_bytes - properties_bytes)
    damaged_at = [*front, *behind][place % (len(front) + len(behind))]
    damaged = bytearray(log)
    damaged[second_at + damaged_at] ^= change
    for kernel in (KERNEL, PURE):
        arguments = (rows_of(log, 0), 9, ANY, ANY, True, 0, 3, b"T", 0, (b"k",), Asked())
        memory = bytearray(kernel.MEMORY_BYTES)
        _, walked, walked_bytes, ended = kernel.sift_rows(bytes(damaged), *arguments, memory)
        assert (walked, walked_bytes, ended) == (1, first_bytes, UNPROVEN)


values = st.lists(st.binary(max_size=60) | st.sampled_from([b"", b"1", b"\x03"]), max_size=2)


@given(st.lists(values, min_size=1, max_size=400))
def test_a_memory_never_gives_one_values_verdict_to_another(stored: list[list[bytes]]) -> None:
    wanted = (b"a", b"b")
    parts = [
        b"".join(b"%s\x01%s\x02" % pair for pair in zip(wanted, pair_values, strict=False))
        for pair_values in stored
    ]
    log = log_of([MessageDraft(b"T", 3, b"", part) for part in parts])
    # A verdict that depends on every byte.
    truth = [sum(decode_both(part)) % 2 == 0 for part in parts]

    class Verdicts(dict[bytes, bool]):
        def __missing__(self, key: bytes) -> bool:
            return sum(key) % 2 == 0

    for kernel in (KERNEL, PURE):
        memory = bytearray(kernel.MEMORY_BYTES)
        arguments = (rows_of(log, 0), ANY, ANY, ANY, True, 0, 3, b"T", 0, wanted, Verdicts())
        for _ in range(2):
            selected, walked, _, _ = kernel.sift_rows(log, *arguments, memory)
            assert walked == len(stored)
            assert selected[2::3] == [index for index, passes in enumerate(truth) if passes]


def decode_both(part: bytes) -> bytes:
    """The values of a and b as a sieve has them."""
    found = {}
    for pair in part.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if value:
            found[name] = value
    return b"\x02".join(found.get(name, b"") for name in (b"a", b"b"))


@given(st.integers(0, 20), st.integers(0, 20_000))
def test_too_many_names_or_another_memory_are_refused_alike(name_count: int, size: int) -> None:
    wanted = tuple(b"n%d" % number for number in range(name_count))
    arguments = (b"", b"", 1, 1, 1, True, 0, 0, b"T", 0, wanted, {}, bytearray(size))
    assert outcome(KERNEL.sift_rows, *arguments) == outcome(PURE.sift_rows, *arguments)


@given(entries.map(packed) | st.binary(max_size=100))
def test_compiled_and_pure_span_rows_alike(rows: bytes) -> None:
    assert outcome(KERNEL.row_span, rows) == outcome(PURE.row_span, rows)


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**6)), min_size=1, max_size=6))
def test_a_span_holds_every_record_of_its_rows(places: list[tuple[int, int]]) -> None:
    span = (min(at for at, _ in places), max(at + size for at, size in places))
    assert KERNEL.row_span(packed(places)) == span
