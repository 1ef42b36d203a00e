"""Messages that could not be decoded, in copies and archives: a property says so."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from contrail.pipeline.columns import DECODE_ERROR_COLUMN, PROPERTIES_COLUMN

# A copy of such a message has the body as it was stored, and cannot have the flags that lied.
DECODE_ERROR_PROPERTY = "CONTRAIL_DECODE_ERROR"


def with_errors_as_properties(messages: DataFrame) -> DataFrame:
    """``messages`` without the column ``decodeError``; where it has a text, a property has it."""
    others = f.map_filter(PROPERTIES_COLUMN, lambda name, _: name != DECODE_ERROR_PROPERTY)
    told = f.map_concat(others, decode_error_property())
    is_told = f.col(DECODE_ERROR_COLUMN).isNotNull()
    properties = f.when(is_told, told).otherwise(f.col(PROPERTIES_COLUMN))
    return messages.withColumn(PROPERTIES_COLUMN, properties).drop(DECODE_ERROR_COLUMN)


def decode_error_property() -> Column:
    """A map with the property of a row that was not decoded, or is the copy of one; else empty."""
    before = f.element_at(PROPERTIES_COLUMN, f.lit(DECODE_ERROR_PROPERTY))
    error = f.coalesce(f.col(DECODE_ERROR_COLUMN), before)
    none = f.create_map().cast("map<string,string>")
    return f.when(error.isNull(), none).otherwise(f.create_map(f.lit(DECODE_ERROR_PROPERTY), error))
