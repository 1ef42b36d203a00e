"""Bodies in JSON: types by a JSON Schema or by Spark's own schema, and strict values of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

import pyarrow as pa

from contrail.errors import OptionInvalid

Convert: TypeAlias = Callable[[Any], Any]
_DEPTH_MAX = 32
_PLAIN = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64()}
_FORMATS = {
    "date-time": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "int32": pa.int32(),
    "float": pa.float32(),
}


def json_decoder(content: bytes) -> tuple[pa.StructType, Callable[[bytes], Any]]:
    """The type that a schema says, and the function that reads a body.

    Raises:
        OptionInvalid: it is neither a JSON Schema of an object nor Spark's schema.
    """
    try:
        schema = json.loads(content)
    except ValueError as error:
        raise OptionInvalid(f"bodySchema: it is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise OptionInvalid("bodySchema: a JSON Schema is an object")
    if schema.get("type") == "struct":
        kind, required = _of_spark(schema), _Needed()
    else:
        kind, required = _of_json_schema(schema, schema, "", 0)
    if not pa.types.is_struct(kind) or kind.num_fields == 0:
        raise OptionInvalid("bodySchema: bodies must be objects with at least one property")
    convert = _converter(kind, required, "")
    return kind, lambda body: convert(json.loads(body))


class _Misfit(ValueError):
    """A value that its column cannot have; the text names its path."""


class _Needed(dict[str, "_Needed"]):
    """The properties that must be there, and what is below each property."""

    def __init__(self) -> None:
        super().__init__()
        self.names: frozenset[str] = frozenset()


def _of_spark(schema: Mapping[str, Any]) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    try:
        return to_arrow_type(StructType.fromJson(dict(schema)), timezone="UTC")
    except (KeyError, TypeError, ValueError) as error:
        raise OptionInvalid(f"bodySchema: it is no schema of Spark: {error}") from error


def _of_json_schema(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> tuple[pa.DataType, _Needed]:
    needed = _Needed()
    schema = _resolved(schema, root, path, depth)
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        kind = others[0] if len(others) == 1 else None
    if kind == "object" and isinstance(schema.get("properties"), dict):
        fields = []
        for name, inner in schema["properties"].items():
            found, needed[name] = _of_json_schema(inner, root, f"{path}{name}.", depth + 1)
            fields.append(pa.field(name, found))
        needed.names = frozenset(schema.get("required", ())) & set(schema["properties"])
        return pa.struct(fields), needed
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        inner, needed[""] = _of_json_schema(
            schema["additionalProperties"], root, f"{path}*.", depth + 1
        )
        return pa.map_(pa.string(), inner), needed
    if kind == "array" and isinstance(schema.get("items"), dict):
        inner, needed[""] = _of_json_schema(schema["items"], root, f"{path}[].", depth + 1)
        return pa.list_(inner), needed
    if kind == "boolean":
        return pa.bool_(), needed
    if kind in _PLAIN:
        return _FORMATS.get(str(schema.get("format")), _PLAIN[kind]), needed
    raise OptionInvalid(
        f"bodySchema: {path.rstrip('.') or 'the schema'} has no type that a column can have: give "
        "string, integer, number, boolean, an array of items, or an object with properties"
    )


def _resolved(
    schema: Mapping[str, Any], root: Mapping[str, Any], path: str, depth: int
) -> Mapping[str, Any]:
    if depth > _DEPTH_MAX:
        raise OptionInvalid(f"bodySchema: {path} is deeper than {_DEPTH_MAX} levels, or endless")
    there = schema.get("$ref")
    if there is None:
        return schema
    found: Any = root
    for part in str(there).removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        raise OptionInvalid(f"bodySchema: $ref {there!r} is not in the schema itself")
    return _resolved(found, root, path, depth + 1)


def _converter(kind: pa.DataType, needed: _Needed, path: str) -> Convert:
    """A function that takes a value of JSON and gives one that Arrow takes, or raises."""
    if pa.types.is_struct(kind):
        return _object(kind, needed, path)
    if pa.types.is_list(kind):
        inner = _converter(kind.value_type, needed.get("", _Needed()), f"{path}[]")
        return _checked(list, path, lambda value: [_or_none(inner, one) for one in value])
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type, needed.get("", _Needed()), f"{path}.*")
        return _checked(
            dict, path, lambda value: [(key, _or_none(inner, one)) for key, one in value.items()]
        )
    for is_kind, wanted, convert in _LEAVES:
        if is_kind(kind):
            return _checked(wanted, path, convert)
    raise OptionInvalid(f"bodySchema: {path} is {kind}, which JSON has no value for")


def _object(kind: pa.StructType, needed: _Needed, path: str) -> Convert:
    inner = {
        field.name: _converter(
            field.type, needed.get(field.name, _Needed()), f"{path}.{field.name}".lstrip(".")
        )
        for field in kind
    }

    def convert(value: dict[str, Any]) -> dict[str, Any]:
        for name in needed.names:
            if value.get(name) is None:
                raise _Misfit(f"{f'{path}.{name}'.lstrip('.')} is missing")
        return {name: _or_none(one, value.get(name)) for name, one in inner.items()}

    return _checked(dict, path or "the body", convert)


def _or_none(convert: Convert, value: Any) -> Any:
    return None if value is None else convert(value)


def _checked(wanted: type | tuple[type, ...], path: str, convert: Convert) -> Convert:
    def checked(value: Any) -> Any:
        # In Python a bool is an int; in JSON it is none.
        is_wanted = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        if not is_wanted:
            raise _Misfit(f"{path} is {_told(value)}, not {_names(wanted)}")
        try:
            return convert(value)
        except _Misfit:
            raise
        except (ArithmeticError, ValueError) as error:
            raise _Misfit(f"{path}: {error}") from error

    return checked


def _told(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _names(wanted: type | tuple[type, ...]) -> str:
    names = {dict: "an object", list: "an array", str: "a string", int: "a whole number"}
    names |= {bool: "a boolean", float: "a number"}
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    return names[kinds[-1]]


def _timestamp(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _decimal(value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{value!r} is no number") from None


def _same(value: Any) -> Any:
    return value


_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], type | tuple[type, ...], Convert], ...] = (
    (pa.types.is_boolean, bool, _same),
    (pa.types.is_integer, int, _same),
    (pa.types.is_floating, (int, float), float),
    (pa.types.is_decimal, (int, str, float), _decimal),
    (pa.types.is_string, str, _same),
    (pa.types.is_large_string, str, _same),
    (pa.types.is_binary, str, lambda value: base64.b64decode(value, validate=True)),
    (pa.types.is_timestamp, str, _timestamp),
    (pa.types.is_date, str, date.fromisoformat),
)
