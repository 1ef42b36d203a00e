"""Bodies by a schema: strict values in typed columns, and a reason for each that does not fit."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

from contrail.errors import OptionInvalid, RecordUndecodable
from contrail.pipeline.body_settings import BodyFormat, BodySettings
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.typed import schemas
from contrail.pipeline.typed.bodies import TypedBodies
from contrail.pipeline.typed.reading import ReadColumns, with_typed_fields

pytestmark = pytest.mark.proves("spark.tables.typed-bodies")

JSON_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": ["number", "null"]},
        "paid": {"type": "boolean"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"}}}},
}
GOOD = {
    "id": 7,
    "amount": 2,
    "paid": True,
    "at": "2026-11-16T10:00:00+01:00",
    "lines": [{"sku": "a"}, {"sku": None, "more": 1}],
    "labels": {"k": "v"},
}


def bodies_of(tmp_path: Path, format: BodyFormat, content: bytes, **more: Any) -> TypedBodies:
    path = tmp_path / "schema"
    path.write_bytes(content)
    return TypedBodies(BodySettings(format=format, schema=str(path), **more))


def of_json(tmp_path: Path, schema: Any = JSON_SCHEMA, **more: Any) -> TypedBodies:
    return bodies_of(tmp_path, BodyFormat.JSON, json.dumps(schema).encode(), **more)


def read(bodies: TypedBodies, *rows: bytes | None) -> list[tuple[Any, str | None]]:
    values, reasons = bodies.columns(pa.array(rows, pa.binary()))
    return list(zip(values.to_pylist(), reasons.to_pylist(), strict=True))


def test_json_becomes_typed_columns(tmp_path: Path) -> None:
    bodies = of_json(tmp_path)
    ((value, reason),) = read(bodies, json.dumps(GOOD).encode())
    assert reason is None
    assert value == {
        "id": 7,
        "amount": 2.0,
        "paid": True,
        "at": datetime(2026, 11, 16, 9, tzinfo=UTC),
        "lines": [{"sku": "a"}, {"sku": None}],
        "labels": [("k", "v")],
    }
    assert read(pickle.loads(pickle.dumps(bodies)), b'{"id": 1}')[0][0]["id"] == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[1]", "the body is [1], not an object"),
        (b"{}", "id is missing"),
        (b'{"id": "7"}', 'id is "7", not a whole number'),
        (b'{"id": true}', "id is true, not a whole number"),
        (b'{"id": 1.5}', "id is 1.5, not a whole number"),
        (b'{"id": 99999999999999999999}', "too big"),
        (b'{"id": 1, "paid": 1}', "paid is 1, not a boolean"),
        (b'{"id": 1, "at": "yesterday"}', "at: Invalid isoformat string"),
        (b'{"id": 1, "lines": [{"sku": 4}]}', "lines[].sku is 4, not a string"),
        (b'{"id": 1, "labels": {"k": []}}', "labels.* is [], not a string"),
    ],
)
def test_a_body_that_does_not_fit_has_a_reason_and_its_neighbours_are_read(
    tmp_path: Path, body: bytes, told: str
) -> None:
    rows = read(of_json(tmp_path), b'{"id": 1}', body, None, b'{"id": 2}')
    assert [value and value["id"] for value, _ in rows] == [1, None, None, 2]
    assert [reason is None for _, reason in rows] == [True, False, True, True]
    reason = rows[1][1]
    assert reason is not None and reason.startswith("json: ")
    assert told in reason or told == "too big"


def test_a_bad_body_is_refused_on_request(tmp_path: Path) -> None:
    bodies = of_json(tmp_path, refuses_bad=True)
    with pytest.raises(RecordUndecodable, match=r"json: id is missing \(row 1 of its batch\)"):
        read(bodies, b'{"id": 1}', b"{}")


def test_a_schema_of_spark_says_the_types_of_json(tmp_path: Path) -> None:
    fields = [
        {"name": "id", "type": "integer", "nullable": True, "metadata": {}},
        {"name": "amount", "type": "decimal(9,2)", "nullable": True, "metadata": {}},
        {"name": "day", "type": "date", "nullable": True, "metadata": {}},
        {"name": "raw", "type": "binary", "nullable": True, "metadata": {}},
    ]
    bodies = of_json(tmp_path, {"type": "struct", "fields": fields})
    body = b'{"id": 1, "amount": "2.50", "day": "2026-11-16", "raw": "AAE="}'
    ((value, _),) = read(bodies, body)
    assert value == {
        "id": 1,
        "amount": Decimal("2.50"),
        "day": date(2026, 11, 16),
        "raw": b"\x00\x01",
    }
    ((_, reason),) = read(bodies, b'{"id": 3000000000}')
    assert reason is not None


AVRO_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "labels", "type": {"type": "map", "values": "int"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
    ],
}


def test_avro_becomes_typed_columns(tmp_path: Path) -> None:
    bodies = bodies_of(tmp_path, BodyFormat.AVRO, json.dumps(AVRO_SCHEMA).encode())
    order = {
        "id": 7,
        "note": None,
        "at": datetime(2026, 11, 16, 9, tzinfo=UTC),
        "amount": Decimal("2.50"),
        "labels": {"k": 1},
        "kind": "B",
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO_SCHEMA), order)
    body = stream.getvalue()
    rows = read(bodies, body, body[:-1], body + b"x", b"")
    assert rows[0] == ({**order, "labels": [("k", 1)]}, None)
    assert [value for value, _ in rows[1:]] == [None, None, None]
    assert rows[2][1] == "avro: 1 bytes are left behind the record"


PROTO = b"""
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
enum Kind { NONE = 0; PAID = 1; }
message Line { string sku = 1; }
message Order {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  repeated Line lines = 4;
  map<string, int32> labels = 5;
  Kind kind = 6;
  uint64 large = 7;
}
"""


def test_protobuf_becomes_typed_columns(tmp_path: Path) -> None:
    bodies = bodies_of(tmp_path, BodyFormat.PROTOBUF, PROTO, message="Order")
    # id 7, at 5 s, a line "a", labels {"k": 1}, kind PAID, a large number.
    body = bytes.fromhex("0807 1a020805 22030a0161 2a050a016b1001 3001 38ffffffffffffffffff01")
    ((value, reason),) = read(bodies, body)
    assert reason is None
    assert value == {
        "id": 7,
        "note": None,
        "at": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        "lines": [{"sku": "a"}],
        "labels": [("k", 1)],
        "kind": "PAID",
        "large": Decimal(2**64 - 1),
    }
    again = pickle.loads(pickle.dumps(bodies))
    (_, (bad, reason)) = read(again, body, b"\x08")
    assert bad is None and reason is not None and reason.startswith("protobuf: ")
    with pytest.raises(OptionInvalid, match=r"name one of the schema's messages: shop\.Line, shop"):
        bodies_of(tmp_path, BodyFormat.PROTOBUF, PROTO)


@pytest.mark.parametrize(
    ("format", "content", "told"),
    [
        (BodyFormat.JSON, b"{", "it is not JSON"),
        (BodyFormat.JSON, b'{"type": "string"}', "bodies must be objects"),
        (BodyFormat.JSON, b'{"type": "object", "properties": {"a": {}}}', "a has no type"),
        (BodyFormat.JSON, b'{"$ref": "#/$defs/x"}', "is not in the schema itself"),
        (
            BodyFormat.JSON,
            b'{"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": '
            b'{"x": {"$ref": "#/$defs/x"}}}}}',
            "endless",
        ),
        (BodyFormat.AVRO, b'"string"', "a record"),
        (BodyFormat.AVRO, b"{}", "it is no Avro schema"),
        (
            BodyFormat.AVRO,
            b'{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}',
            "holds itself",
        ),
        (BodyFormat.PROTOBUF, b"\x0a\xff", "neither a .proto nor a descriptor set"),
        (
            BodyFormat.PROTOBUF,
            b'syntax = "proto3"; message R { R r = 1; }',
            "message R holds itself",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(
    tmp_path: Path, format: BodyFormat, content: bytes, told: str
) -> None:
    with pytest.raises(OptionInvalid, match=told.replace(".", r"\.")):
        bodies_of(tmp_path, format, content)


class Answer(io.BytesIO):
    """What a registry answers."""


def test_a_registry_is_asked_for_the_latest_or_the_named_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def answer(request: Any, timeout: float) -> Answer:
        asked.append(request.full_url)
        return Answer(json.dumps({"schema": json.dumps(AVRO_SCHEMA), "id": 4}).encode())

    monkeypatch.setattr(schemas, "urlopen", answer)
    for ending in ("", "/", "/versions/3"):
        address = f"http://registry:8081/subjects/orders-value{ending}"
        settings = BodySettings(format=BodyFormat.AVRO, schema=address)
        assert TypedBodies(settings).type.field("id").type == pa.int64()
    latest = "http://registry:8081/subjects/orders-value/versions/latest"
    assert asked == [latest, latest, "http://registry:8081/subjects/orders-value/versions/3"]
    with pytest.raises(OptionInvalid, match="it is AVRO, not bodyFormat=json"):
        TypedBodies(BodySettings(format=BodyFormat.JSON, schema=latest))


def test_a_schema_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionInvalid, match=r"the driver cannot read it \(No such file"):
        TypedBodies(BodySettings(format=BodyFormat.JSON, schema=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"bodySchema": "s"}, "bodySchema: it needs bodyFormat"),
        ({"bodyFormat": "xml", "bodySchema": "s"}, "bodyFormat='xml': give json or avro or"),
        ({"bodyFormat": "json"}, "bodySchema: it is missing"),
        ({"bodyFormat": "json", "bodySchema": "s", "rawBody": "true"}, "rawBody: bodyFormat"),
        ({"bodyFormat": "json", "bodySchema": "s", "bodyMessage": "M"}, "bodyMessage: it is for"),
        ({"bodyFormat": "json", "bodySchema": "s", "badBodies": "x"}, "badBodies='x'"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], told: str) -> None:
    given = {"namesrvAddr": "127.0.0.1:9876", "subscribe": "orders", **options}
    with pytest.raises(OptionInvalid, match=told):
        SourceSettings.of(given, streaming=False)


def test_a_query_may_name_some_columns_but_not_another_type(tmp_path: Path) -> None:
    path = tmp_path / "schema"
    path.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    settings = BodySettings(format=BodyFormat.JSON, schema=str(path))
    whole = with_typed_fields(StructType().add("queueOffset", LongType()), settings)
    assert whole.simpleString() == (
        "struct<queueOffset:bigint,value:struct<id:bigint>,bodyError:string>"
    )
    some = StructType([whole["value"], whole["queueOffset"]])
    columns = ReadColumns(some, settings)
    assert [column.name for column in columns.plan.columns] == ["queueOffset", "body"]
    batch = pa.RecordBatch.from_pydict({"queueOffset": [4], "body": [b'{"id": 1}']})
    (found,) = columns.batches(iter([batch]))
    assert found.to_pylist() == [{"value": {"id": 1}, "queueOffset": 4}]
    with pytest.raises(OptionInvalid, match=r"'value' is struct<id:bigint> by bodySchema, not str"):
        ReadColumns(StructType().add("value", StringType()), settings)
