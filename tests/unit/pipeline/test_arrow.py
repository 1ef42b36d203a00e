"""Records as Arrow batches: one engine like the other, and every rare kind of record."""

from __future__ import annotations

import logging
from importlib.machinery import EXTENSION_SUFFIXES

import numpy as np
import pyarrow as pa
import pytest

from contrail.client.compression import Compression, compress
from contrail.errors import ClientError, PipelineError, RecordDamaged
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.pipeline import arrow, arrow_row_wise
from contrail.pipeline.columns import MESSAGE_COLUMNS, default_schema, plan_columns, schema_of
from tests.unit.kernels.material import IPV6, log_of
from tests.unit.pipeline.record_material import (
    ENGINES,
    decoded,
    expected_rows,
    rows_of,
    with_engine,
)

engines = pytest.mark.parametrize("engine", ENGINES)


def draft(number: int = 0, **fields: object) -> MessageDraft:
    properties = encode_properties({"KEYS": f"k{number}", "TAGS": "t", "UNIQ_KEY": f"ID{number}"})
    plain = MessageDraft(b"orders", number % 4, f"body {number}".encode(), properties)
    return plain._replace(**fields)


def inner_batch(*bodies: bytes, **fields: object) -> MessageDraft:
    units = [BatchUnit(body, b"TAGS\x01b%d\x02" % number) for number, body in enumerate(bodies)]
    return mark_inner_batch(draft(body=encode_batch(units), **fields))


@engines
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [draft(1), draft(2)],
        [draft(body=b"")],
        [draft(properties=b"")],
        [draft(born_host=IPV6), draft(1)],
        [draft(topic=b"%RETRY%" + b"g" * 200)],
        [draft(topic="größe".encode()), draft(properties="KEYS\x01grün\x02".encode())],
        [draft(topic=b"\xff\xfe"), draft(properties=b"KEYS\x01\xff\x02TAGS\x01ok\x02")],
        [draft(properties=b"\xff\x01a\x02\xfe\x01b\x02KEYS\x01x")],
        [draft(properties=b"KEYS\x01a\x02KEYS\x01b\x02KEYS\x01\x02")],
        [draft(properties=b"".join(b"n%d\x01v\x02" % n for n in range(200))), draft()],
        [inner_batch(b"one", b"two"), draft(5)],
        [draft(sys_flag=0x40, properties=b"INNER_NUM\x011\x02")],
        [draft(born_timestamp_ms=2**63 - 1), draft(born_timestamp_ms=-(2**63))],
    ],
)
def test_records_become_the_rows_that_a_client_would_show(
    engine: str, messages: list[MessageDraft]
) -> None:
    log = log_of(messages)
    assert decoded(engine, log) == expected_rows(log)


@engines
@pytest.mark.parametrize("kind", list(Compression))
def test_bodies_are_inflated_unless_they_are_wanted_raw(engine: str, kind: Compression) -> None:
    body, flags = compress(b"z" * 5000, kind)
    log = log_of([draft(1), draft(body=body, sys_flag=flags), draft(2)])
    assert [row["body"] for row in decoded(engine, log)] == [b"body 1", b"z" * 5000, b"body 2"]
    assert [row["body"] for row in decoded(engine, log, raw_body=True)][1] == body


@engines
def test_a_body_that_cannot_be_inflated_names_its_place(engine: str) -> None:
    log = log_of([draft(), draft(body=b"no zlib", sys_flag=1)])
    with pytest.raises(RecordDamaged, match=r"physical offset 1\d\d is damaged") as raised:
        decoded(engine, log)
    assert raised.value.physical_offset == arrow.walk(log)[1]
    assert decoded(engine, log, plan_columns(schema_of(["tags"]))) == [{"tags": "t"}] * 2


def test_a_library_that_is_missing_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(body: bytes, sys_flag: int) -> bytes:
        raise ClientError("pip install it") from ImportError("lz4")

    monkeypatch.setattr(arrow_row_wise, "decompress", missing)
    log = log_of([draft(sys_flag=1)])
    with pytest.raises(ClientError, match="pip install it"):
        decoded("kernel", log)


@engines
def test_a_batch_that_holds_none_names_its_place(engine: str) -> None:
    log = log_of([draft(), draft(sys_flag=0xC0, properties=b"INNER_NUM\x013\x02")])
    with pytest.raises(RecordDamaged, match=r"physical offset 1\d\d is damaged"):
        decoded(engine, log)


def test_the_messages_of_an_inner_batch_can_be_cut_by_offset() -> None:
    log = log_of([inner_batch(b"a", b"b", b"c"), draft(9)], queue_offsets=[10, 13])
    data, rows = arrow.unwrapped(log, arrow.walk(log))
    assert arrow.numbers(data, rows, "queueOffset").tolist() == [10, 11, 12, 13]
    again, same = arrow.unwrapped(data, rows[1:3])
    assert again is data and same.tolist() == rows[1:3].tolist()
    batch = arrow.decode(data, rows[1:3], plan_columns(schema_of(["body", "tags"])), broker_name="")
    assert rows_of([batch]) == [{"body": b"b", "tags": "b1"}, {"body": b"c", "tags": "b2"}]
    assert arrow.first_bad_body(data, rows) == -1


@engines
def test_a_projection_has_its_columns_in_its_order(engine: str) -> None:
    log = log_of([draft(3), draft(4, properties=b"region\x01eu\x02")])
    schema = schema_of(["queueId", "body"])
    schema.add("region", "string")
    rows = decoded(engine, log, plan_columns(schema))
    assert rows == [
        {"queueId": 3, "body": b"body 3", "region": None},
        {"queueId": 0, "body": b"body 4", "region": "eu"},
    ]
    assert list(rows[0]) == ["queueId", "body", "region"]


def test_batches_are_bounded_by_rows_and_by_bytes() -> None:
    log = log_of([draft(number, body=b"x" * 1000) for number in range(10)])
    plan, rows = plan_columns(default_schema(False)), arrow.walk(log)

    def counts(**bounds: int) -> list[int]:
        cut = arrow.batches(log, rows, plan, broker_name="b", **bounds)
        return [batch.num_rows for batch in cut]

    assert counts() == [10]
    assert counts(rows_max=4) == [4, 4, 2]
    assert counts(bytes_max=3500) == [3, 3, 3, 1]
    assert counts(bytes_max=1) == [1] * 10


def test_inflated_bodies_count_for_the_bound_of_a_batch() -> None:
    body, flags = compress(bytes(1000), Compression.ZLIB)
    log = log_of([draft(number, body=body, sys_flag=flags) for number in range(5)])
    plan = plan_columns(schema_of(["body"]))
    cut = list(arrow.batches(log, arrow.walk(log), plan, broker_name="b", bytes_max=2500))
    assert [batch.num_rows for batch in cut] == [2, 2, 1]
    assert pa.concat_batches(cut).column(0).to_pylist() == [bytes(1000)] * 5


def test_a_column_that_cannot_be_addressed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_I32_MAX", 10)
    with pytest.raises(PipelineError, match="decode fewer at a time"):
        decoded("kernel", log_of([draft(), draft()]))


@engines
def test_numbers_of_a_place_without_a_record_name_that_place(engine: str) -> None:
    log = log_of([draft()])
    rows = np.array([0, 5], np.int64)
    with pytest.raises(RecordDamaged, match="no whole record starts at byte 5 of the buffer"):
        with_engine(engine, lambda: arrow.numbers(log, rows, "queueId"))


def test_a_walk_with_a_base_names_the_physical_offset() -> None:
    log = log_of([draft(), draft()], base_offset=4096)
    assert len(arrow.walk(log, base_offset=4096)) == 2
    with pytest.raises(RecordDamaged, match="physical offset 8192: it belongs elsewhere") as raised:
        arrow.walk(log, base_offset=8192)
    assert raised.value.physical_offset == 8192


def test_any_buffer_will_do() -> None:
    log = log_of([draft(1)])
    plan = plan_columns(schema_of(list(MESSAGE_COLUMNS)))
    for buffer in (bytearray(log), memoryview(log)):
        batch = arrow.decode(buffer, arrow.walk(buffer), plan, broker_name="broker-a")
        assert rows_of([batch]) == expected_rows(log)


def test_topics_are_read_for_choosing_rows() -> None:
    log = log_of([draft(), draft(topic=b"bills")])
    seen = arrow.glance(log, arrow.walk(log), ["queueOffset"])
    assert seen.topics.to_pylist() == ["orders", "bills"]
    assert seen.numbers["queueOffset"].tolist() == [0, 1]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_without_the_compiled_kernel_numpy_takes_over_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_compiled: bool
) -> None:
    suffix = EXTENSION_SUFFIXES[0] if is_compiled else ".py"
    monkeypatch.setattr(arrow.kernel, "__file__", f"arrow_columns{suffix}")
    arrow._engine.cache_clear()
    with caplog.at_level(logging.WARNING):
        chosen = {id(arrow._engine()), id(arrow._engine())}
    arrow._engine.cache_clear()
    assert len(chosen) == 1
    assert len(caplog.records) == (0 if is_compiled else 1)
