"""Marks messages that could not be decoded, in copies and archives, by a property."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from contrail.pipeline.columns import DECODE_ERROR_COLUMN, PROPERTIES_COLUMN

# A copy of such a message has the body as stored, without the flags that were wrong.
DECODE_ERROR_PROPERTY = "CONTRAIL_DECODE_ERROR"


def with_errors_as_properties(messages: DataFrame) -> DataFrame:
    """``messages`` with the text of the column ``decodeError`` moved into a property."""
    others = f.map_filter(PROPERTIES_COLUMN, lambda name, _: name != DECODE_ERROR_PROPERTY)
    told = f.map_concat(others, decode_error_property())
    is_told = f.col(DECODE_ERROR_COLUMN).isNotNull()
    properties = f.when(is_told, told).otherwise(f.col(PROPERTIES_COLUMN))
    return messages.withColumn(PROPERTIES_COLUMN, properties).drop(DECODE_ERROR_COLUMN)


def decode_error_property() -> Column:
    """A map with the error property of an undecoded row or of the copy of one; else empty."""
    before = f.element_at(PROPERTIES_COLUMN, f.lit(DECODE_ERROR_PROPERTY))
    error = f.coalesce(f.col(DECODE_ERROR_COLUMN), before)
    none = f.create_map().cast("map<string,string>")
    return f.when(error.isNull(), none).otherwise(f.create_map(f.lit(DECODE_ERROR_PROPERTY), error))
