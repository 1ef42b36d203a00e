"""The columns of a read of ``format("rocketmq")``: those of records, and typed ones of bodies."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from contrail.errors import OptionInvalid
from contrail.pipeline.body_settings import BodySettings
from contrail.pipeline.columns import TIME_ZONE, plan_columns
from contrail.pipeline.typed.bodies import (
    ERROR_COLUMN,
    VALUE_COLUMN,
    TypedBatches,
    TypedBodies,
)

_BODY = "body"


def typed_fields(bodies: TypedBodies) -> list[StructField]:
    """The typed columns, as Spark names their types."""
    return [
        StructField(VALUE_COLUMN, from_arrow_type(bodies.type)),
        StructField(ERROR_COLUMN, StringType()),
    ]


def with_typed_fields(schema: StructType, settings: BodySettings | None) -> StructType:
    """The default schema of a read, with the typed columns that its options give."""
    if settings is None:
        return schema
    return StructType([*schema.fields, *typed_fields(TypedBodies(settings))])


class ReadColumns:
    """The plan of a query's columns; sent to executors with the reader.

    Raises:
        OptionInvalid: a typed column has another type than the schema of bodies says.
    """

    def __init__(self, schema: StructType, settings: BodySettings | None) -> None:
        self._typed: TypedBatches | None = None
        if settings is None or not {VALUE_COLUMN, ERROR_COLUMN} & set(schema.names):
            self.plan = plan_columns(schema)
            return
        bodies = TypedBodies(settings)
        for wanted in typed_fields(bodies):
            found = schema[wanted.name].dataType if wanted.name in schema.names else None
            if found is not None and found != wanted.dataType:
                raise OptionInvalid(
                    f"column {wanted.name!r} is {wanted.dataType.simpleString()} by bodySchema, "
                    f"not {found.simpleString()}: leave out .schema(...), or write that type"
                )
        self.plan = plan_columns(_of_records(schema))
        self._typed = TypedBatches(bodies, to_arrow_schema(schema, timezone=TIME_ZONE))

    def batches(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of records as the query wants them."""
        return found if self._typed is None else self._typed(found)


def _of_records(schema: StructType) -> StructType:
    """The columns that records have, with the body that the typed ones need."""
    fields = [field for field in schema.fields if field.name not in (VALUE_COLUMN, ERROR_COLUMN)]
    if not any(field.name == _BODY for field in fields):
        fields.append(StructField(_BODY, BinaryType()))
    return StructType(fields)
