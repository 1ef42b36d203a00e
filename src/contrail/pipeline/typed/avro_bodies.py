"""Bodies in Avro's binary encoding, by fastavro: the types of a record, and its values."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from contrail.errors import OptionInvalid

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Mapping[tuple[Any, Any], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("string", "uuid"): pa.string(),
}


def avro_decoder(content: bytes) -> tuple[pa.StructType, Callable[[bytes], Any]]:
    """The type that a schema says, and the function that reads a body.

    Raises:
        OptionInvalid: it is no schema of a record, or fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        raise OptionInvalid(
            "bodyFormat=avro needs fastavro: pip install contrail-mq[avro]"
        ) from error
    try:
        schema = json.loads(content)
        parsed = fastavro.parse_schema(schema)
    except (ValueError, fastavro.schema.SchemaParseException, KeyError) as error:
        raise OptionInvalid(f"bodySchema: it is no Avro schema: {error}") from error
    kind = _Types().of(schema, "")
    if not pa.types.is_struct(kind):
        raise OptionInvalid("bodySchema: an Avro schema of bodies is a record")
    mapped = _has_maps(kind)

    def decode(body: bytes) -> Any:
        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, parsed, None)
        rest = len(body) - stream.tell()
        if rest:
            raise ValueError(f"{rest} bytes are left behind the record")
        return _shaped(value, kind) if mapped else value

    return kind, decode


class _Types:
    """The types of a schema, which may name an earlier one again."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, schema: Any, path: str) -> pa.DataType:
        if isinstance(schema, list):
            others = [one for one in schema if one != "null"]
            if len(others) != 1:
                raise OptionInvalid(
                    f"bodySchema: {path} is a union of several types, and a column has one"
                )
            return self.of(others[0], path)
        if isinstance(schema, str):
            if schema in _PLAIN:
                return _PLAIN[schema]
            found = self._named.get(schema) or self._named.get(schema.rpartition(".")[2])
            if found is None:
                raise OptionInvalid(f"bodySchema: {path} is {schema!r}, which holds itself")
            return found
        return self._of_object(schema, path)

    def _of_object(self, schema: Mapping[str, Any], path: str) -> pa.DataType:
        kind, logical = schema["type"], schema.get("logicalType")
        if kind == "record":
            self._named[schema["name"]] = None
            fields = [
                pa.field(field["name"], self.of(field["type"], f"{path}{field['name']}."))
                for field in schema["fields"]
            ]
            found = self._named[schema["name"]] = pa.struct(fields)
            return found
        if kind == "array":
            return pa.list_(self.of(schema["items"], f"{path}[]."))
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], f"{path}*."))
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if kind == "fixed":
            found = self._named[schema["name"]] = pa.binary()
            return found
        if kind == "enum":
            found = self._named[schema["name"]] = pa.string()
            return found
        if (kind, logical) in _LOGICAL:
            return _LOGICAL[(kind, logical)]
        if logical is not None and isinstance(kind, str) and kind in ("int", "long", "string"):
            raise OptionInvalid(f"bodySchema: {path} is {logical!r}, which no column has")
        return self.of(kind, path)


def _has_maps(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_maps(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_maps(field.type) for field in kind)


def _shaped(value: Any, kind: pa.DataType) -> Any:
    """The value with each map as pairs, as Arrow takes them."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _shaped(one, kind.item_type)) for key, one in value.items()]
    if pa.types.is_list(kind):
        return [_shaped(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {field.name: _shaped(value.get(field.name), field.type) for field in kind}
    return value
