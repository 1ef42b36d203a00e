"""Typed columns of messages that Spark already has: for jobs, whatever they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from contrail.pipeline.arrow_fitting import fitted_array
from contrail.pipeline.options import BODY_OPTIONS, body_settings
from contrail.pipeline.typed.bodies import ERROR_COLUMN, VALUE_COLUMN, TypedBodies
from contrail.pipeline.typed.reading import typed_fields

_BOTH = "contrail_typed"


def with_typed_columns(messages: DataFrame, bodies: TypedBodies) -> DataFrame:
    """``messages``, which have the column ``body``, with ``value`` and ``bodyError``."""
    kind = StructType(typed_fields(bodies))
    wanted = to_arrow_type(kind, timezone="UTC")

    def read(column: pa.Array) -> pa.Array:
        value, error = bodies.columns(column)
        columns = [fitted_array(value, wanted.field(0).type), error]
        return pa.StructArray.from_arrays(columns, fields=list(wanted))

    # Spark's stubs know no structs here.
    made: Any = arrow_udf
    typed = made(read, returnType=kind)("body")
    both = messages.withColumn(_BOTH, typed)
    return both.select(*messages.columns, f"{_BOTH}.{VALUE_COLUMN}", f"{_BOTH}.{ERROR_COLUMN}")


def bodies_of(options: Mapping[str, str]) -> TypedBodies | None:
    """The schema of bodies that a job's options name; None without ``bodyFormat``.

    Raises:
        OptionInvalid: the options contradict each other, or the schema cannot be used.
    """
    found = body_settings(options)
    return None if found is None else TypedBodies(found)


def without_body_options(options: Mapping[str, str]) -> dict[str, str]:
    """A job's options for its source, which reads bodies as they are."""
    ours = {name.lower() for name in ("bodyFormat", *BODY_OPTIONS)}
    return {name: value for name, value in options.items() if name.lower() not in ours}
