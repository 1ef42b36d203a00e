"""Reads with a filter on properties over a real store, whole and damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.services.filtered_reads import (
    SCANNED_ROWS_MAX,
    FilteredReads,
    scanned_rows_max,
)
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.sql92 import Sql92Filter, compile_sql
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.store.log import MessageStore
from contrail.store.services.reading import GetResult
from contrail.store.state.reading import GetStatus
from tests.fault.store_setup import small_config

ORDERS = b"orders"
COUNT = 1000


class Decoding:
    """The same filter for a reader that decodes every message: the oracle."""

    sieve = None

    def __init__(self, compiled: Sql92Filter) -> None:
        self.text = compiled.text
        self.matches = compiled.matches


def fill(store: MessageStore, count: int = COUNT) -> None:
    for number in range(count):
        properties = {"kind": str(number % 100), "n": str(number)}
        body = b"body %d" % number + b"." * (2000 if number == 7 else number % 300)
        store.append([MessageDraft(ORDERS, 0, body, encode_properties(properties))])
        if number % 3 == 0:
            store.append([MessageDraft(b"others", 0, body)])
    store.dispatch()


@pytest.fixture(params=[300, 3000], ids=["small queue files", "one queue file"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MessageStore]:
    row_count: int = request.param
    config = small_config(tmp_path, segment_bytes=64 << 10, queue_file_bytes=20 * row_count)
    with MessageStore.open(config) as opened:
        fill(opened)
        yield opened


def read(
    store: MessageStore, text: str, at: int, *, sifts: bool = True, **limits: Any
) -> GetResult:
    compiled = compile_sql(text)
    settings = RuntimeSettings(BrokerConfig(**limits))
    plan = PullPlan(
        group="g",
        topic_name="orders",
        topic=ORDERS,
        queue_id=0,
        queue_offset=at,
        count_max=32,
        sys_flag=0,
        tag_codes=None,
        property_filter=compiled if sifts else Decoding(compiled),
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    return FilteredReads(settings, store).read(plan)


def walk(store: MessageStore, text: str, **options: Any) -> tuple[list[int], list[GetStatus]]:
    """The numbers of all messages that pass the filter, and how each read ended."""
    numbers, statuses, at = [], [], 0
    while at < store.queue_offset_max(ORDERS, 0):
        result = read(store, text, at, **options)
        assert result.next_queue_offset > at or result.status is GetStatus.QUEUE_ENTRY_DAMAGED
        assert result.message_count == len(result.messages)
        assert result.byte_count == sum(map(len, result.ranges))
        numbers += [int(message.properties["n"]) for message in result.messages]
        statuses.append(result.status)
        at = result.next_queue_offset
    return numbers, statuses


@pytest.mark.parametrize(
    "text", ["kind = 7", "kind >= 0", "nothing IS NOT NULL", "n BETWEEN 290 AND 310", "kind = 'x'"]
)
@pytest.mark.parametrize("limits", [{}, {"transfer_bytes_in_memory_max": 1024}])
def test_sifting_finds_what_decoding_every_message_finds(
    store: MessageStore, text: str, limits: dict[str, int]
) -> None:
    sifted, statuses = walk(store, text, **limits)
    assert sifted == walk(store, text, sifts=False, **limits)[0]
    assert set(statuses) <= {GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE}


@pytest.mark.parametrize("store", [3000], indirect=True)
def test_a_read_looks_at_as_many_rows_as_rocketmq_does(store: MessageStore) -> None:
    result = read(store, "nothing IS NOT NULL", 0)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_queue_offset == SCANNED_ROWS_MAX
    result = read(store, "kind = 7", 0)
    assert [message.queue_offset for message in result.messages] == list(range(7, 800, 100))
    assert result.next_queue_offset == SCANNED_ROWS_MAX


@pytest.mark.proves("wire.fairness.turns")
@pytest.mark.parametrize("store", [1000], indirect=True)
@pytest.mark.parametrize("sifts", [True, False])
def test_a_long_expression_looks_at_fewer_rows_and_finds_the_same(
    store: MessageStore, sifts: bool
) -> None:
    text = " OR ".join(["kind = 7", *(f"kind = {1000 + number}" for number in range(190))])
    result = read(store, text, 50, sifts=sifts)
    rows_max = scanned_rows_max(text)
    assert 32 <= rows_max < 100
    # Without the sieve messages are read one full answer at a time.
    assert 50 + rows_max <= result.next_queue_offset < 50 + rows_max + 32
    assert walk(store, text, sifts=sifts)[0] == walk(store, "kind = 7")[0]


@pytest.mark.parametrize(
    ("length", "rows"), [(0, 800), (256, 800), (512, 400), (2800, 73), (16_384, 32)]
)
def test_rows_shrink_with_the_length_of_an_expression(length: int, rows: int) -> None:
    assert scanned_rows_max("x" * length) == rows


@pytest.mark.parametrize("store", [300], indirect=True)
def test_a_read_ends_with_the_file_of_its_rows(store: MessageStore) -> None:
    result = read(store, "kind = 7", 250)
    assert result.status is GetStatus.NO_MATCHED_MESSAGE
    assert result.next_queue_offset == 300


def test_a_first_message_larger_than_any_limit_is_delivered_alone(store: MessageStore) -> None:
    result = read(store, "kind = 7", 7, transfer_bytes_in_memory_max=1024)
    assert [message.queue_offset for message in result.messages] == [7]


def flip(store: MessageStore, number: int, text: bytes) -> None:
    """Change the first byte of some text in a record, on the disk."""
    [row] = store.rows(ORDERS, 0, number, 1)
    [part] = store.record_parts(row.physical_offset, row.byte_count) or [None]
    assert part is not None, "the store was opened again, so that nothing is near"
    with part.path.open("r+b") as file:
        file.seek(part.position)
        record = file.read(row.byte_count)
        file.seek(part.position + record.index(text))
        file.write(bytes([record[record.index(text)] ^ 0x40]))


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[MessageStore]:
    config = small_config(tmp_path, segment_bytes=64 << 10, queue_file_bytes=20 * 3000)
    with MessageStore.open(config) as opened:
        fill(opened)
    with MessageStore.open(config) as opened:
        yield opened


def test_a_message_that_passes_is_verified_and_one_that_does_not_is_passed_over(
    reopened: MessageStore,
) -> None:
    flip(reopened, 107, b"body 107")
    flip(reopened, 110, b"body 110")
    numbers, statuses = walk(reopened, "kind = 7")
    assert numbers == [number for number in range(7, COUNT, 100) if number != 107]
    assert GetStatus.MESSAGE_DAMAGED in statuses
    assert walk(reopened, "kind = 8")[1] == [GetStatus.FOUND, GetStatus.FOUND]


def test_a_record_whose_lengths_do_not_add_up_ends_the_walk_before_it(
    reopened: MessageStore,
) -> None:
    flip(reopened, 205, b"orders")
    result = read(reopened, "kind = 7", 0)
    assert result.status is GetStatus.FOUND
    assert result.next_queue_offset == 205
    assert (
        read(reopened, "kind = 7", 205).status
        is read(reopened, "kind = 7", 205, sifts=False).status
    )
