"""Rows of the sink: columns that fit, values that can be sent, units as the client makes them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from contrail.errors import OptionInvalid, SinkRefused
from contrail.model.batch import BatchUnit, decode_batch, encode_batch
from contrail.model.properties import decode_properties
from contrail.pipeline.sink_rows import SinkRows, Where, plan_rows, read_rows
from contrail.pipeline.sink_units import Stamp, cut_runs, encode_units

HERE = Where(partition=3, first_row=100)
ARROW_TYPES = {
    "body": pa.binary(),
    "queueId": pa.int32(),
    "delayLevel": pa.int32(),
    "flag": pa.int32(),
    "deliverTimestamp": pa.timestamp("us", tz="UTC"),
    "properties": pa.map_(pa.string(), pa.string()),
}
TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,int>": MapType(StringType(), IntegerType()),
}
SPARK_TYPES = {
    "body": "binary",
    "queueid": "int",
    "delaylevel": "int",
    "flag": "int",
    "delivertimestamp": "timestamp",
    "properties": "map<string,string>",
}


def batch_of(**columns: Sequence[object]) -> pa.RecordBatch:
    arrays = [
        pa.array(values, ARROW_TYPES.get(name, pa.string())) for name, values in columns.items()
    ]
    return pa.record_batch(arrays, names=list(columns))


def schema_of(*names: str) -> StructType:
    return ddl(", ".join(f"{name} {SPARK_TYPES.get(name.lower(), 'string')}" for name in names))


def ddl(text: str) -> StructType:
    """Spark's own reader of such texts needs a session."""
    columns = [column.split(" ") for column in text.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in columns])


def read(topic: str | None = "orders", /, **columns: Sequence[object]) -> SinkRows:
    return read_rows(batch_of(**columns), plan_rows(schema_of(*columns), topic), HERE)


def units_of(rows: SinkRows, stamp: Stamp | None = None) -> list[BatchUnit]:
    ids = [f"ID{number}" for number in range(rows.row_count)]
    units = encode_units(rows, np.arange(rows.row_count), ids, stamp or Stamp(), HERE)
    return decode_batch(units.between(0, rows.row_count))


def properties_of(rows: SinkRows, stamp: Stamp | None = None) -> list[dict[str, str]]:
    return [decode_properties(unit.properties) for unit in units_of(rows, stamp)]


# Columns.


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("body binary, tag string", "column tag: .* did you mean tags"),
        ("body binary, shardKey string", "did you mean shardingKey"),
        ("body binary, colour string", "column colour: .* it takes body, topic"),
        ("body binary, queueOffset bigint", "column queueOffset: .* drop it"),
        ("body int", "column body: it is of type int, the sink takes binary or string: cast it"),
        ("body binary, queueId string", "column queueId: it is of type string.*int or bigint"),
        ("body binary, properties map<string,int>", "map<string,int>.*map<string,string>"),
        ("body binary, flag bigint", "column flag: it is of type bigint, the sink takes int"),
        ("body binary, deliverTimestamp date", "column deliverTimestamp: it is of type date"),
        ("tags string", "column body: it is missing"),
        ("body binary, Body binary", "column body: it is there twice"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_fix(schema: str, said: str) -> None:
    with pytest.raises(OptionInvalid, match=said):
        plan_rows(ddl(schema), "orders")


def test_a_topic_must_be_given_and_valid() -> None:
    with pytest.raises(OptionInvalid, match="give the option topic, or a column"):
        plan_rows(schema_of("body"), None)
    with pytest.raises(OptionInvalid, match="topic='a b'"):
        plan_rows(schema_of("body"), "a b")


def test_column_names_are_accepted_in_any_case_as_in_spark() -> None:
    assert plan_rows(schema_of("BODY", "queueid"), "orders").places == {"body": 0, "queueId": 1}


# Values.


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": [b"x", None]}, "row 101 of partition 3, column body: it is null"),
        ({"body": [b"x", b"y", b""]}, "row 102 of partition 3, column body: it is empty"),
        ({"body": [b"x"], "queueId": [-1]}, "row 100 of partition 3, column queueId"),
        ({"body": [b"x"], "tags": ["a\x02b"]}, "column tags: it holds a control character"),
        ({"body": [b"x"], "delayLevel": [-2]}, "column delayLevel: it is below 0"),
        (
            {
                "body": [b"x"],
                "delayLevel": [3],
                "deliverTimestamp": [datetime(2030, 1, 1, tzinfo=UTC)],
            },
            "column deliverTimestamp: the row has a delayLevel too",
        ),
    ],
)
def test_a_value_that_cannot_be_sent_is_refused_with_row_and_column(
    columns: dict[str, list[object]], said: str
) -> None:
    with pytest.raises(SinkRefused, match=said):
        read(**columns)


def test_a_body_that_is_too_long_is_refused() -> None:
    with pytest.raises(
        SinkRefused, match=r"row 101 .* column body: it has more than 4194304 bytes"
    ):
        read(body=[b"x", bytes((4 << 20) + 1)])


def test_a_message_too_long_with_its_properties_is_refused_in_stamped_sends() -> None:
    rows = read(body=[b"x", bytes(4 << 20)])
    with pytest.raises(
        SinkRefused, match=r"row 101 .* column body: .* at most 4194304 .* idempotence=none"
    ):
        units_of(rows, Stamp("sink/7/3"))
    assert len(units_of(rows)) == 2


@pytest.mark.parametrize("stamp", [Stamp("sink/7/3"), Stamp()])
def test_flags_are_sent(stamp: Stamp) -> None:
    rows = read(body=[b"x", b"y", b"z"], flag=[7, None, -(1 << 31)])
    assert [unit.flag for unit in units_of(rows, stamp)] == [7, 0, -(1 << 31)]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ({"KEYS": "k"}, "property 'KEYS' cannot be set: use the column keys"),
        ({"UNIQ_KEY": "k"}, "property 'UNIQ_KEY' cannot be set: the client sets it"),
        ({"SPARK_SINK_SEQ": "1"}, "property 'SPARK_SINK_SEQ' is the sink's own"),
        ({"__SHARDINGKEY": "1"}, "use the column shardingKey"),
        ({"region": None}, "the value of 'region' is null"),
        ({"region": "  "}, "the value of 'region' is blank"),
        ({"region": "a\x02b"}, "the value of 'region' holds a control character"),
        ({"INNER_MULTI_DISPATCH": "a/b"}, "holds a slash"),
        ({"a{b}\x01": "1"}, "control character"),
    ],
)
def test_a_property_that_cannot_be_set_is_refused_with_its_row(
    pairs: dict[str, str], said: str
) -> None:
    maps = [None, [("fine", "1")], list(pairs.items())]
    with pytest.raises(SinkRefused, match="row 102 of partition 3, column properties") as refused:
        read(body=[b"a", b"b", b"c"], properties=maps)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("topics", "said"),
    [(["orders", None], "row 101 .* column topic: it is null"), (["a", "b c"], "row 101 .*'b c'")],
)
def test_a_wrong_topic_is_refused_with_its_row(topics: list[object], said: str) -> None:
    with pytest.raises(SinkRefused, match=said):
        read(None, body=[b"x", b"y"], topic=topics)


def test_the_topic_option_comes_before_the_column() -> None:
    rows = read("orders", body=[b"x", b"y"], topic=["other", None])
    assert rows.topics.texts == ["orders"]
    assert rows.topics.codes.tolist() == [0, 0]


def test_properties_that_are_too_long_together_are_refused() -> None:
    rows = read(body=[b"x", b"y"], properties=[None, [("a", "v" * 20_000), ("b", "v" * 20_000)]])
    with pytest.raises(SinkRefused, match=r"row 101 .* column properties: .* at most 32767"):
        units_of(rows)


# Units.


def test_every_column_arrives_as_the_client_would_send_it() -> None:
    moment = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    rows = read(
        body=[b"one", b"two", b"three"],
        tags=["paid", None, " "],
        keys=["k1 k2", None, ""],
        shardingKey=[None, "s", None],
        delayLevel=[None, 3, 0],
        deliverTimestamp=[moment, None, None],
        properties=[[("region", "eu"), ("\u00e4", "\u00f6\x01")], None, []],
    )
    assert properties_of(rows) == [
        {
            "TAGS": "paid",
            "KEYS": "k1 k2",
            "TIMER_DELIVER_MS": str(int(moment.timestamp() * 1000)),
            "region": "eu",
            "\u00e4": "\u00f6\x01",
            "UNIQ_KEY": "ID0",
        },
        {"__SHARDINGKEY": "s", "DELAY": "3", "UNIQ_KEY": "ID1"},
        {"UNIQ_KEY": "ID2"},
    ]
    assert rows.delayed is not None
    assert rows.delayed.tolist() == [True, True, False]


def test_a_deliver_time_may_be_given_in_milliseconds() -> None:
    schema = ddl("body string, deliverTimestamp bigint")
    batch = pa.record_batch({"body": ["x"], "deliverTimestamp": pa.array([1234], pa.int64())})
    rows = read_rows(batch, plan_rows(schema, "orders"), HERE)
    assert properties_of(rows)[0]["TIMER_DELIVER_MS"] == "1234"


def test_a_stamp_names_the_task_and_the_number_of_each_row() -> None:
    found = properties_of(read(body=[b"x", b"y"]), Stamp("sink/7/3", "attempt-1"))
    assert [one["SPARK_SINK_SEQ"] for one in found] == ["100", "101"]
    assert {one["SPARK_SINK_KEY"] for one in found} == {"sink/7/3"}
    assert {one["SPARK_SINK_ATTEMPT"] for one in found} == {"attempt-1"}


def test_without_an_attempt_a_stamp_has_none() -> None:
    (found,) = properties_of(read(body=[b"x"]), Stamp("sink/7/3"))
    assert "SPARK_SINK_ATTEMPT" not in found


def test_rows_are_encoded_in_the_given_order() -> None:
    rows = read(body=[b"a", b"b", b"c"])
    units = encode_units(rows, np.array([2, 0]), ["I", "J"], Stamp("s/0/0"), HERE)
    found = decode_batch(units.between(0, 2))
    assert [unit.body for unit in found] == [b"c", b"a"]
    seqs = [decode_properties(unit.properties)["SPARK_SINK_SEQ"] for unit in found]
    assert seqs == ["102", "100"]


def test_a_slice_of_a_batch_reads_like_a_batch_of_its_own() -> None:
    maps = [[("a", "1")], [("b", "2"), ("c", "3")], None, [("d", "4")]]
    whole = batch_of(body=[b"a", b"b", b"c", b"d"], properties=maps, tags=["t", "u", None, "v"])
    plan = plan_rows(schema_of("body", "properties", "tags"), "orders")
    rows = read_rows(whole.slice(1, 3), plan, HERE)
    assert properties_of(rows) == [
        {"b": "2", "c": "3", "TAGS": "u", "UNIQ_KEY": "ID0"},
        {"UNIQ_KEY": "ID1"},
        {"d": "4", "TAGS": "v", "UNIQ_KEY": "ID2"},
    ]


names = st.text("abcxyz\u00e9\U0001f600", min_size=1, max_size=6)
values = st.text("abc xyz\u00e9/\x01", min_size=1, max_size=9).filter(lambda text: text.strip())


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=40),
            st.none() | st.dictionaries(names, values, max_size=4),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_units_are_those_of_the_batch_codec(given_rows: list[tuple[bytes, dict[str, str]]]) -> None:
    maps = [None if pairs is None else list(pairs.items()) for _, pairs in given_rows]
    rows = read(body=[body for body, _ in given_rows], properties=maps)
    ids = [f"ID{number}" for number in range(len(given_rows))]
    units = encode_units(rows, np.arange(len(ids)), ids, Stamp(), HERE)
    expected = [
        BatchUnit(
            body,
            "".join(
                f"{name}\x01{value}\x02"
                for name, value in {**(pairs or {}), "UNIQ_KEY": ids[number]}.items()
            ).encode(),
        )
        for number, (body, pairs) in enumerate(given_rows)
    ]
    assert units.between(0, len(ids)) == encode_batch(expected)


# Runs.


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120), st.integers(1, 7)
)
def test_runs_hold_all_units_in_order_within_both_limits(
    sizes: list[int], bytes_max: int, count_max: int
) -> None:
    ends = np.cumsum([0, *sizes])
    runs = list(cut_runs(ends, 0, len(sizes), bytes_max=bytes_max, count_max=count_max))
    assert [number for first, last in runs for number in range(first, last)] == list(
        range(len(sizes))
    )
    for first, last in runs:
        assert last - first <= count_max
        assert last - first == 1 or ends[last] - ends[first] <= bytes_max
    for first, last in runs[:-1]:
        assert last - first == count_max or ends[last + 1] - ends[first] > bytes_max
