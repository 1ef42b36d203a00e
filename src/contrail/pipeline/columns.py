"""The columns of a message, and the plan of those that a query asks for.

A schema is a projection: only its columns are decoded and sent to Spark. A string column of a
name that is not in the table is the message property of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from contrail.errors import OptionInvalid
from contrail.model.properties import KEYS, TAGS, UNIQ_KEY

TIME_ZONE = "UTC"

# In the order of the default schema; the second half is decoded only if a query names it.
MESSAGE_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "topic": "string",
        "brokerName": "string",
        "queueId": "int",
        "queueOffset": "bigint",
        "keys": "string",
        "tags": "string",
        "body": "binary",
        "bornTimestamp": "timestamp",
        "storeTimestamp": "timestamp",
        "msgId": "string",
        "sysFlag": "int",
        "flag": "int",
        "reconsumeTimes": "int",
        "bornHost": "string",
        "storeHost": "string",
        "physicalOffset": "bigint",
        "storeSize": "int",
        "properties": "map<string,string>",
        "decodeError": "string",
    }
)
DEFAULT_COLUMNS = tuple(MESSAGE_COLUMNS)[:9]
PROPERTIES_COLUMN = "properties"
DECODE_ERROR_COLUMN = "decodeError"
# The columns of an archive; files of all versions have these, so that they can be merged.
ARCHIVED_COLUMNS = tuple(name for name in MESSAGE_COLUMNS if name != DECODE_ERROR_COLUMN)

# Spark's own parser of types needs a session, and planning must work without one.
_TYPES: Mapping[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


class ColumnKind(Enum):
    """The way a column is made from a record."""

    NUMBER = "number"
    TIME = "time"
    BODY = "body"
    TOPIC = "topic"
    BROKER = "broker"
    PROPERTY = "property"
    PROPERTIES = "properties"
    HOST = "host"
    MESSAGE_ID = "message id"
    DECODE_ERROR = "decode error"


_KINDS: Mapping[str, ColumnKind] = {
    "topic": ColumnKind.TOPIC,
    "brokerName": ColumnKind.BROKER,
    "body": ColumnKind.BODY,
    "msgId": ColumnKind.MESSAGE_ID,
    "bornHost": ColumnKind.HOST,
    "storeHost": ColumnKind.HOST,
    "bornTimestamp": ColumnKind.TIME,
    "storeTimestamp": ColumnKind.TIME,
    "keys": ColumnKind.PROPERTY,
    "tags": ColumnKind.PROPERTY,
    "properties": ColumnKind.PROPERTIES,
    "decodeError": ColumnKind.DECODE_ERROR,
}
_PROPERTY_NAMES = {"keys": KEYS, "tags": TAGS, "msgId": UNIQ_KEY}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its kind, and its message property, if it holds one."""

    name: str
    kind: ColumnKind
    property_name: str = ""


@dataclass(frozen=True)
class ColumnPlan:
    """The columns of a query in their order, and the Arrow schema that Spark expects of them."""

    columns: tuple[Column, ...]
    arrow_schema: pa.Schema

    def names(self, *kinds: ColumnKind) -> list[str]:
        """The columns of these kinds."""
        return [column.name for column in self.columns if column.kind in kinds]

    @property
    def property_names(self) -> list[str]:
        """The properties to look up, each once."""
        wanted = (column.property_name for column in self.columns if column.property_name)
        return list(dict.fromkeys(wanted))


def default_schema(include_properties: bool) -> StructType:
    """The schema of a query that names none."""
    names = [*DEFAULT_COLUMNS, PROPERTIES_COLUMN] if include_properties else DEFAULT_COLUMNS
    return schema_of(names)


def schema_of(names: list[str] | tuple[str, ...]) -> StructType:
    """These columns of the table, in this order."""
    return StructType([StructField(name, _TYPES[MESSAGE_COLUMNS[name]]) for name in names])


def plan_columns(schema: StructType) -> ColumnPlan:
    """The plan of a schema.

    Raises:
        OptionInvalid: a column has another type than its values, forbids nulls that it may
            hold, or is named twice.
    """
    columns = tuple(_planned(schema))
    return ColumnPlan(columns, to_arrow_schema(schema, timezone=TIME_ZONE))


def _planned(schema: StructType) -> Iterator[Column]:
    seen: set[str] = set()
    for field in schema.fields:
        if field.name in seen:
            raise OptionInvalid(f"column {field.name!r} is in the schema twice: name it once")
        seen.add(field.name)
        yield _column(field)


def _column(field: StructField) -> Column:
    expected, found = MESSAGE_COLUMNS.get(field.name), field.dataType.simpleString()
    if expected is None and found != "string":
        raise OptionInvalid(_unknown(field.name, found))
    if expected is not None and found != expected:
        raise OptionInvalid(
            f"column {field.name!r} is {expected!r}, not {found!r}: write `{field.name} {expected}`"
        )
    column = _column_of(field.name)
    if column.kind is ColumnKind.PROPERTY and not field.nullable:
        raise OptionInvalid(
            f"column {field.name!r} is null where a message has no such property: "
            f"leave out `NOT NULL`"
        )
    if column.kind is ColumnKind.DECODE_ERROR and not field.nullable:
        raise OptionInvalid(
            f"column {field.name!r} is null where a message was decoded: leave out `NOT NULL`"
        )
    return column


def _column_of(name: str) -> Column:
    if name not in MESSAGE_COLUMNS:
        return Column(name, ColumnKind.PROPERTY, name)
    return Column(name, _KINDS.get(name, ColumnKind.NUMBER), _PROPERTY_NAMES.get(name, ""))


def _unknown(name: str, found: str) -> str:
    lowered = {known.lower(): known for known in MESSAGE_COLUMNS}
    close = get_close_matches(name.lower(), lowered, n=1)
    hint = f"; did you mean `{lowered[close[0]]}`?" if close else ""
    return (
        f"column {name!r} is {found!r}, but what is no field of a message is a property and "
        f"has the type `string`{hint}"
    )
