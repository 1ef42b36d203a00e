"""Columns: the table, schemas as projections, and refused schemas."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from contrail.errors import OptionInvalid
from contrail.pipeline.columns import (
    DEFAULT_COLUMNS,
    MESSAGE_COLUMNS,
    ColumnKind,
    default_schema,
    plan_columns,
    schema_of,
)


def schema(*fields: StructField) -> StructType:
    return StructType(list(fields))


def test_the_default_schema_has_the_property_map_on_request_only() -> None:
    assert default_schema(False).fieldNames() == list(DEFAULT_COLUMNS)
    assert default_schema(True).fieldNames() == [*DEFAULT_COLUMNS, "properties"]


def test_every_column_has_the_type_of_the_table() -> None:
    found = {
        field.name: field.dataType.simpleString() for field in schema_of(list(MESSAGE_COLUMNS))
    }
    assert found == dict(MESSAGE_COLUMNS)


def test_a_plan_has_the_arrow_types_that_spark_expects() -> None:
    planned = plan_columns(schema_of(list(MESSAGE_COLUMNS))).arrow_schema
    assert planned.field("storeTimestamp").type == pa.timestamp("us", tz="UTC")
    assert planned.field("body").type == pa.binary()
    assert planned.field("queueId").type == pa.int32()
    assert planned.field("properties").type == pa.map_(pa.string(), pa.string())


def test_an_unknown_string_column_is_the_property_of_that_name() -> None:
    plan = plan_columns(schema(StructField("region", StringType())))
    assert plan.columns[0].kind is ColumnKind.PROPERTY
    assert plan.property_names == ["region"]


def test_a_property_that_two_columns_need_is_looked_up_once() -> None:
    plan = plan_columns(
        schema(StructField("tags", StringType()), StructField("TAGS", StringType()))
    )
    assert plan.property_names == ["TAGS"]


def test_a_plan_can_be_pickled_for_executors() -> None:
    plan = plan_columns(default_schema(True))
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            StructField("queueId", LongType()),
            "column 'queueId' is 'int', not 'bigint': write `queueId int`",
        ),
        (StructField("body", StringType()), "column 'body' is 'binary', not 'string'"),
        (StructField("queueoffset", LongType()), "did you mean `queueOffset`"),
        (StructField("amount", IntegerType()), "is a property and has the type `string`"),
        (StructField("region", StringType(), False), "leave out `NOT NULL`"),
        (StructField("keys", StringType(), False), "leave out `NOT NULL`"),
    ],
)
def test_a_column_of_another_type_is_refused(field: StructField, message: str) -> None:
    with pytest.raises(OptionInvalid, match=message):
        plan_columns(schema(field))


def test_a_column_named_twice_is_refused() -> None:
    field = StructField("topic", StringType())
    with pytest.raises(OptionInvalid, match="'topic' is in the schema twice"):
        plan_columns(schema(field, field))
