"""Records as Arrow batches: equal rows from both engines, and every rare form of record."""

from __future__ import annotations

import logging
from importlib.machinery import EXTENSION_SUFFIXES

import numpy as np
import pyarrow as pa
import pytest

from contrail.client.compression import Compression, compress
from contrail.errors import PipelineError, RecordDamaged, RecordUndecodable
from contrail.model.batch import BatchUnit, encode_batch, mark_inner_batch
from contrail.model.message import MessageDraft
from contrail.model.properties import encode_properties
from contrail.pipeline import arrow, arrow_python
from contrail.pipeline.bodies import BODY_BYTES_MAX
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


@pytest.mark.proves("spark.source.arrow", "spark.clusters.codecs")
@engines
@pytest.mark.parametrize("kind", list(Compression))
def test_bodies_are_inflated_unless_they_are_wanted_raw(engine: str, kind: Compression) -> None:
    body, flags = compress(b"z" * 5000, kind)
    log = log_of([draft(1), draft(body=body, sys_flag=flags), draft(2)])
    assert [row["body"] for row in decoded(engine, log)] == [b"body 1", b"z" * 5000, b"body 2"]
    assert [row["body"] for row in decoded(engine, log, raw_body=True)][1] == body


UNDECODABLE = [
    draft(body=b"no zlib", sys_flag=0x1),
    draft(body=b"no zlib", sys_flag=0x301),
    draft(body=b"no lz4", sys_flag=0x101),
    draft(body=b"no zstd", sys_flag=0x201),
    draft(body=b"no such way", sys_flag=0x701),
    draft(body=b"", sys_flag=0x101),
    draft(body=b"", sys_flag=0x301),
    draft(body=compress(bytes(1000), Compression.LZ4)[0][:-5], sys_flag=0x101),
    draft(body=compress(bytes(1000), Compression.ZSTD)[0][:-5], sys_flag=0x201),
    draft(body=compress(bytes(1000), Compression.ZLIB)[0][:-5], sys_flag=0x301),
    *(
        draft(body=compress(bytes(BODY_BYTES_MAX + 1), kind)[0], sys_flag=0x1 | kind.value)
        for kind in Compression
    ),
    draft(body=b"no batch", sys_flag=0xC0, properties=b"INNER_NUM\x013\x02"),
    draft(body=b"no batch", sys_flag=0xC0, properties=b"INNER_NUM\x01many\x02"),
    draft(body=b"no batch", sys_flag=0xC1, properties=b"INNER_NUM\x013\x02"),
]


@pytest.mark.proves("client.undecodable.spark")
@engines
@pytest.mark.parametrize("message", UNDECODABLE)
def test_a_record_that_cannot_be_decoded_is_a_row_with_its_body_as_stored(
    engine: str, message: MessageDraft, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of([draft(1), message, draft(2)])
    plan = plan_columns(schema_of(["body", "decodeError"]))

    def work() -> list[dict[str, object]]:
        return rows_of([arrow.decode(log, arrow.walk(log), plan, broker_name="")])

    first, bad, last = with_engine(engine, work)
    assert first == {"body": b"body 1", "decodeError": None}
    assert last == {"body": b"body 2", "decodeError": None}
    assert bad["body"] == message.body
    place = int(arrow.walk(log)[1])
    assert bad["decodeError"].startswith(f"record at physical offset {place} cannot be decoded: ")
    assert bad["decodeError"] in caplog.text
    assert "the column decodeError says which rows" in caplog.text
    # The log names the column, or how to ask for it.
    caplog.clear()
    (told,) = decoded(engine, log, plan_columns(schema_of(["body"])))[1:2]
    assert told == {"body": message.body}
    assert "name the column decodeError in .schema(...) to see which rows" in caplog.text
    # Bodies are not inflated if no column needs them.
    assert decoded(engine, log, plan_columns(schema_of(["flag"]))) == [{"flag": 0}] * 3
    (alone,) = with_engine(
        engine,
        lambda: rows_of(
            arrow.batches(
                log, arrow.walk(log)[1:2], plan_columns(schema_of(["decodeError"])), broker_name=""
            )
        ),
    )
    assert alone["decodeError"] == bad["decodeError"]


@engines
@pytest.mark.parametrize("message", UNDECODABLE)
def test_a_record_that_cannot_be_decoded_is_refused_if_the_option_says_so(
    engine: str, message: MessageDraft
) -> None:
    log = log_of([draft(), message])
    plan = plan_columns(schema_of(["body"]))
    refusing = arrow.Undecodable(refuses=True, where="orders broker-a:0: ")

    def work() -> None:
        list(arrow.batches(log, arrow.walk(log), plan, broker_name="", undecodable=refusing))

    with pytest.raises(
        RecordUndecodable, match=r"^orders broker-a:0: record at .*=false"
    ) as raised:
        with_engine(engine, work)
    assert raised.value.physical_offset == arrow.walk(log)[1]


def test_the_first_record_of_a_task_that_cannot_be_decoded_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = log_of([draft(number, body=b"no zlib", sys_flag=1) for number in range(5)])
    kept = arrow.Undecodable(where="orders broker-a:0: ")
    plan = plan_columns(schema_of(["body"]))
    list(arrow.batches(log, arrow.walk(log), plan, broker_name="", rows_max=2, undecodable=kept))
    assert kept.count == 5
    # Interpreted kernels are logged as well, once for each process.
    told = [message for message in caplog.messages if "record at physical offset" in message]
    assert len(told) == 1
    assert told[0].startswith("orders broker-a:0: record at physical offset 0 cannot")


def test_a_batch_that_cannot_be_opened_keeps_its_queue_offsets() -> None:
    closed = draft(body=b"no batch", sys_flag=0xC0, properties=b"INNER_NUM\x013\x02")
    log = log_of([draft(), closed, inner_batch(b"a", b"b")], queue_offsets=[4, 5, 8])
    data, rows = arrow.unwrapped(log, arrow.walk(log))
    assert arrow.numbers(data, rows, "queueOffset").tolist() == [4, 5, 8, 9]
    assert arrow_python.offsets_of_closed_batches(data, rows).tolist() == [5, 6, 7]


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
def test_numbers_at_a_position_without_a_record_name_the_position(engine: str) -> None:
    log = log_of([draft()])
    rows = np.array([0, 5], np.int64)
    with pytest.raises(RecordDamaged, match="no whole record starts at byte 5 of the buffer"):
        with_engine(engine, lambda: arrow.numbers(log, rows, "queueId"))


def test_a_walk_with_a_base_names_the_physical_offset() -> None:
    log = log_of([draft(), draft()], base_offset=4096)
    assert len(arrow.walk(log, base_offset=4096)) == 2
    with pytest.raises(RecordDamaged, match="physical offset 8192: it names another") as raised:
        arrow.walk(log, base_offset=8192)
    assert raised.value.physical_offset == 8192


def test_any_kind_of_buffer_is_decoded() -> None:
    log = log_of([draft(1)])
    plan = plan_columns(schema_of(list(MESSAGE_COLUMNS)))
    for buffer in (bytearray(log), memoryview(log)):
        batch = arrow.decode(buffer, arrow.walk(buffer), plan, broker_name="broker-a")
        assert [{**row, "decodeError": False} for row in rows_of([batch])] == expected_rows(log)


def test_topics_are_read_for_choosing_rows() -> None:
    log = log_of([draft(), draft(topic=b"bills")])
    seen = arrow.glance(log, arrow.walk(log), ["queueOffset"])
    assert seen.topics.to_pylist() == ["orders", "bills"]
    assert seen.numbers["queueOffset"].tolist() == [0, 1]


@pytest.mark.proves("house.folded.arrow-engines", "spark.source.arrow")
@pytest.mark.parametrize("is_compiled", [True, False])
def test_without_the_compiled_kernel_python_decodes_and_logs_it_once(
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
