"""Rows of the sink: the accepted columns, and the checks of their values.

Checks work by column: no object is made for a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from contrail.client.outgoing import MESSAGE_BYTES_MAX, check_topic
from contrail.client.reserved_names import RESERVED_NAMES, check_property
from contrail.errors import MessageInvalid, OptionInvalid, SinkRefused
from contrail.model.properties import (
    DELAY,
    INNER_MULTI_DISPATCH,
    KEYS,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
)
from contrail.pipeline.sink_layout import CodedTexts
from contrail.protocol.bodies.sinks import SINK_ATTEMPT, SINK_KEY, SINK_SEQ

_SINK_PROPERTIES = frozenset({SINK_KEY, SINK_SEQ, SINK_ATTEMPT})
# Names that the column ``properties`` may not hold; copy jobs filter by this list.
RESERVED_PROPERTIES = frozenset(RESERVED_NAMES) | _SINK_PROPERTIES | {SHARDING_KEY}

_TEXT = "string"
_WHOLE = "int or bigint"
SINK_COLUMNS: Mapping[str, str] = {
    "body": "binary or string",
    "topic": _TEXT,
    "tags": _TEXT,
    "keys": _TEXT,
    "properties": "map<string,string>",
    "brokerName": _TEXT,
    "queueId": _WHOLE,
    "shardingKey": _TEXT,
    "delayLevel": _WHOLE,
    "deliverTimestamp": "timestamp or bigint (epoch milliseconds)",
    "flag": "int",
}
# Columns of the source that a message gets when it is stored: no sink can write them.
_ONLY_READ = frozenset(
    {
        "queueOffset", "bornTimestamp", "storeTimestamp", "msgId", "sysFlag",
        "reconsumeTimes", "bornHost", "storeHost", "physicalOffset", "storeSize",
    }
)  # fmt: skip
_WHOLE_TYPES = (ByteType, ShortType, IntegerType, LongType)
_TEXT_PROPERTIES = {"tags": TAGS, "keys": KEYS, "shardingKey": SHARDING_KEY}
LARGE = pa.large_binary()


# Columns.


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The positions of the columns. ``topic`` is the option, which overrides the column."""

    topic: str | None
    places: Mapping[str, int]

    def has(self, column: str) -> bool:
        return column in self.places


def plan_rows(schema: StructType, topic: str | None) -> RowPlan:
    """The plan for writing rows of a schema.

    Raises:
        OptionInvalid: a column is unknown, missing, there twice or of another type.
    """
    known = {name.lower(): name for name in SINK_COLUMNS}
    places: dict[str, int] = {}
    for place, field in enumerate(schema.fields):
        name = known.get(field.name.lower())
        if name is None:
            raise OptionInvalid(_unknown_column(field.name))
        if name in places:
            raise OptionInvalid(f"column {name}: it is there twice: drop one of the two")
        if not _has_type(name, field.dataType):
            raise OptionInvalid(
                f"column {name}: it is of type {field.dataType.simpleString()}, the sink takes "
                f"{SINK_COLUMNS[name]}: cast it"
            )
        places[name] = place
    if "body" not in places:
        raise OptionInvalid("column body: it is missing: select what to send as body")
    if topic is None and "topic" not in places:
        raise OptionInvalid("topic: give the option topic, or a column of that name")
    if topic is not None:
        _check_topic_option(topic)
    return RowPlan(topic, places)


def _unknown_column(name: str) -> str:
    if name in _ONLY_READ:
        return f"column {name}: a message gets it when it is stored, the sink cannot: drop it"
    near = get_close_matches(name.lower(), [one.lower() for one in SINK_COLUMNS], 1)
    meant = next((one for one in SINK_COLUMNS if near and one.lower() == near[0]), None)
    fix = f"did you mean {meant}?" if meant else f"it takes {', '.join(SINK_COLUMNS)}; drop others"
    return f"column {name}: the sink does not take it: {fix}"


def _has_type(name: str, kind: DataType) -> bool:
    if name == "body":
        return isinstance(kind, BinaryType | StringType)
    if name == "properties":
        return (
            isinstance(kind, MapType)
            and isinstance(kind.keyType, StringType)
            and isinstance(kind.valueType, StringType)
        )
    if name == "deliverTimestamp":
        return isinstance(kind, TimestampType | LongType)
    if name == "flag":
        return isinstance(kind, IntegerType)
    if SINK_COLUMNS[name] == _WHOLE:
        return isinstance(kind, _WHOLE_TYPES)
    return isinstance(kind, StringType)


def _check_topic_option(topic: str) -> None:
    try:
        check_topic(topic)
    except MessageInvalid as error:
        raise OptionInvalid(f"topic={topic!r}: {error}") from error


# Values.


class Where(NamedTuple):
    """The position of rows in their partition, for errors about a row."""

    partition: int
    first_row: int

    def refuse(self, bad: Any, column: str, problem: str) -> None:
        """Raises ``SinkRefused`` for the first row that is marked as bad, if one is."""
        marks = np.asarray(pc.fill_null(bad, False))
        if marks.any():
            self.refuse_row(int(marks.argmax()), column, problem)

    def refuse_row(self, row: int, column: str, problem: str) -> NoReturn:
        raise SinkRefused(
            f"row {self.first_row + row} of partition {self.partition}, column {column}: {problem}"
        )


@dataclass(frozen=True, slots=True)
class SinkRows:
    """The checked rows of an Arrow batch, by column."""

    row_count: int
    # One topic for all rows, or a code for each row.
    topics: CodedTexts
    bodies: pa.Array
    # The rows' own properties in stored form; None if no row has any.
    properties: pa.Array | None
    keys: CodedTexts | None
    sharding_keys: CodedTexts | None
    queue_ids: list[int | None] | None
    broker_names: list[str | None] | None
    # Rows that are delivered later.
    delayed: np.ndarray[Any, np.dtype[np.bool_]] | None
    # The application's own flag of each message, 0 without one.
    flags: np.ndarray[Any, np.dtype[np.int32]] | None = None


def read_rows(batch: pa.RecordBatch, plan: RowPlan, where: Where) -> SinkRows:
    """The rows of a batch.

    Raises:
        SinkRefused: a value cannot be sent; the message names the row and the column.
    """
    columns = {name: batch.column(place) for name, place in plan.places.items()}
    texts = {name: _text(columns[name], name, where) for name in _TEXT_PROPERTIES if plan.has(name)}
    parts = [_pairs(_TEXT_PROPERTIES[name], column) for name, column in texts.items()]
    delays, delayed = _delays(columns, where)
    parts += delays
    if plan.has("properties"):
        parts.append(_map_properties(columns["properties"], where))
    queue_ids = _queue_ids(columns["queueId"], where) if plan.has("queueId") else None
    return SinkRows(
        row_count=batch.num_rows,
        topics=_topics(columns.get("topic"), plan.topic, batch.num_rows, where),
        bodies=_bodies(columns["body"], where),
        properties=join(parts) if parts else None,
        keys=_coded(texts["keys"]) if "keys" in texts else None,
        sharding_keys=_coded(texts["shardingKey"]) if "shardingKey" in texts else None,
        queue_ids=queue_ids,
        broker_names=_broker_names(columns.get("brokerName")),
        delayed=delayed,
        flags=_flags(columns.get("flag")),
    )


def _bodies(column: pa.Array, where: Where) -> pa.Array:
    where.refuse(pc.is_null(column), "body", "it is null: a message needs a body, filter the row")
    bodies = column.cast(LARGE)
    lengths = pc.binary_length(bodies)
    where.refuse(pc.equal(lengths, 0), "body", "it is empty: send at least one byte")
    where.refuse(
        pc.greater(lengths, MESSAGE_BYTES_MAX),
        "body",
        f"it has more than {MESSAGE_BYTES_MAX} bytes: send it in parts",
    )
    return bodies


def _topics(
    column: pa.Array | None, option: str | None, row_count: int, where: Where
) -> CodedTexts:
    if option is not None:
        return CodedTexts([option], np.zeros(row_count, np.int64))
    assert column is not None
    where.refuse(
        pc.is_null(column), "topic", "it is null: fill it, or give the option topic for all rows"
    )
    coded = _coded(column)
    for code, topic in enumerate(coded.texts):
        try:
            check_topic(topic)
        except MessageInvalid as error:
            where.refuse_row(int((coded.codes == code).argmax()), "topic", str(error))
    return coded


def _text(column: pa.Array, name: str, where: Where) -> pa.Array:
    """A text column with blank texts as null: a record cannot keep them."""
    for mark in ("\x01", "\x02"):
        where.refuse(
            pc.match_substring(column, mark), name, "it holds a control character (1 or 2)"
        )
    blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    return pc.if_else(blank, pa.scalar(None, column.type), column)


def _coded(column: pa.Array) -> CodedTexts:
    coded = column.dictionary_encode()
    codes = pc.fill_null(coded.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return CodedTexts(coded.dictionary.to_pylist(), codes)


def _queue_ids(column: pa.Array, where: Where) -> list[int | None]:
    where.refuse(pc.less(column, 0), "queueId", "it is below 0: queues are numbered from 0 on")
    found: list[int | None] = column.to_pylist()
    return found


def _flags(column: pa.Array | None) -> np.ndarray[Any, np.dtype[np.int32]] | None:
    if column is None:
        return None
    found: np.ndarray[Any, np.dtype[np.int32]] = pc.fill_null(column, 0).to_numpy(
        zero_copy_only=False
    )
    return found


def _broker_names(column: pa.Array | None) -> list[str | None] | None:
    found: list[str | None] | None = None if column is None else column.to_pylist()
    return found


def _delays(
    columns: Mapping[str, pa.Array], where: Where
) -> tuple[list[pa.Array], np.ndarray[Any, np.dtype[np.bool_]] | None]:
    parts, has = [], []
    level, moment = columns.get("delayLevel"), columns.get("deliverTimestamp")
    if level is not None:
        where.refuse(pc.less(level, 0), "delayLevel", "it is below 0: levels begin with 1")
        level = pc.if_else(pc.equal(level, 0), pa.scalar(None, level.type), level)
        parts.append(_pairs(DELAY, level.cast(pa.large_string())))
        has.append(pc.is_valid(level))
    if moment is not None:
        if pa.types.is_timestamp(moment.type):
            moment = moment.cast(pa.timestamp("ms", tz=moment.type.tz), safe=False)
        moment = moment.cast(pa.int64())
        where.refuse(pc.less(moment, 0), "deliverTimestamp", "it is before 1970")
        parts.append(_pairs(TIMER_DELIVER_MS, moment.cast(pa.large_string())))
        has.append(pc.is_valid(moment))
    if len(has) == 2:
        where.refuse(
            pc.and_(*has), "deliverTimestamp", "the row has a delayLevel too: make one of them null"
        )
    if not has:
        return parts, None
    delayed = np.logical_or.reduce([one.to_numpy(zero_copy_only=False) for one in has])
    return parts, delayed


def _map_properties(column: pa.MapArray, where: Where) -> pa.Array:
    """The pairs of each row's map, back to back."""
    starts = column.offsets.to_numpy()
    names, values = column.keys, column.items
    _check_pairs(names, values, column, where)
    pairs = join(
        [_binary(names), scalar("\x01"), _binary(pc.fill_null(values, "")), scalar("\x02")]
    )
    # The pairs of one row are adjacent: a row's text lies between its first and last pair.
    ends = np.frombuffer(pairs.buffers()[1], np.int64)[: len(pairs) + 1]
    texts = pa.LargeBinaryArray.from_buffers(
        LARGE, len(column), [None, pa.py_buffer(ends[starts].copy()), pairs.buffers()[2]]
    )
    return pc.if_else(pc.is_valid(column), texts, pa.scalar(b"", LARGE))


def _check_pairs(names: pa.Array, values: pa.Array, column: pa.MapArray, where: Where) -> None:
    starts = column.offsets.to_numpy()

    def refuse(bad: Any, problem: str) -> None:
        marks = np.asarray(pc.fill_null(bad, False))
        marks[: starts[0]] = False
        marks[starts[-1] :] = False
        if marks.any():
            pair = int(marks.argmax())
            row = int(np.searchsorted(starts, pair, side="right")) - 1
            where.refuse_row(row, "properties", problem.format(names[pair].as_py()))

    for name in pc.unique(names).to_pylist():
        problem = _name_problem(name)
        if problem:
            refuse(pc.equal(names, name), problem.replace("{", "{{").replace("}", "}}"))
    refuse(pc.is_null(values), "the value of {!r} is null: leave the pair out")
    blank = pc.equal(pc.utf8_trim_whitespace(values), "")
    refuse(blank, "the value of {!r} is blank and would not survive: leave the pair out")
    refuse(pc.match_substring(values, "\x02"), "the value of {!r} holds a control character (2)")
    dispatch = pc.and_(pc.equal(names, INNER_MULTI_DISPATCH), pc.match_substring(values, "/"))
    refuse(dispatch, "the value of {!r} holds a slash: remove it")


def _name_problem(name: str) -> str | None:
    if name in _SINK_PROPERTIES:
        return f"property {name!r} is the sink's own: filter it out"
    if name == SHARDING_KEY:
        return f"property {name!r} is RocketMQ's own: use the column shardingKey"
    try:
        check_property(name, "-", "-")
    except MessageInvalid as error:
        column = {KEYS: "keys", TAGS: "tags", DELAY: "delayLevel"}.get(name)
        column = "deliverTimestamp" if name == TIMER_DELIVER_MS else column
        fix = f"use the column {column}" if column else str(error).partition("cannot be sent: ")[2]
        return f"property {name!r} cannot be set: {fix}"
    return None


# Arrow.


def scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), LARGE)


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(LARGE)


def join(parts: Sequence[Any]) -> pa.Array:
    """Joins the columns element by element."""
    return pc.binary_join_element_wise(*parts, scalar(""))


def _pairs(name: str, column: pa.Array) -> pa.Array:
    """``name`` with each value; nothing for null."""
    pairs = join([scalar(f"{name}\x01"), _binary(column), scalar("\x02")])
    return pc.fill_null(pairs, b"")
