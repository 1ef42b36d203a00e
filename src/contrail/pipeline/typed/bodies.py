"""The columns ``value`` and ``bodyError`` of messages whose bodies have a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from contrail.errors import RecordUndecodable
from contrail.pipeline.arrow_fitting import fitted_array
from contrail.pipeline.body_settings import BodyFormat, BodySettings
from contrail.pipeline.typed.avro_bodies import avro_decoder
from contrail.pipeline.typed.json_bodies import json_decoder
from contrail.pipeline.typed.protobuf_bodies import compiled, protobuf_decoder
from contrail.pipeline.typed.schemas import schema_content

VALUE_COLUMN = "value"
ERROR_COLUMN = "bodyError"
_REASON_CHARS_MAX = 200


class TypedBodies:
    """Reads bodies by a schema. Made on the driver; executors get it with the schema's content."""

    def __init__(self, settings: BodySettings, content: bytes | None = None) -> None:
        """Raises ``OptionInvalid`` if the schema cannot be read or used."""
        self._settings = settings
        if content is None:
            content = schema_content(settings)
            if settings.format is BodyFormat.PROTOBUF:
                content = compiled(content)
        self._content = content
        self.type, self._decode = _opened(settings, content)

    def __reduce__(self) -> tuple[type[TypedBodies], tuple[BodySettings, bytes]]:
        return TypedBodies, (self._settings, self._content)

    def columns(self, bodies: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The values and the reasons why a body has none; each row has one of the two, unless the
        body itself is null.

        Raises:
            RecordUndecodable: a body does not fit, and bad ones are refused.
        """
        values: list[Any] = []
        reasons: list[str | None] = []
        for body in bodies.to_pylist():
            value, reason = (None, None) if body is None else self._read(body)
            values.append(value)
            reasons.append(reason)
        try:
            typed = pa.array(values, self.type)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            # A value that its column cannot hold, such as a number that is too large.
            typed = self._one_by_one(values, reasons)
        self._refuse(reasons)
        return typed, pa.array(reasons, pa.string())

    def _read(self, body: bytes) -> tuple[Any, str | None]:
        try:
            return self._decode(body), None
        except Exception as error:
            # Each library has its own errors for bytes that are not what they should be.
            return None, self._told(error)

    def _one_by_one(self, values: list[Any], reasons: list[str | None]) -> pa.Array:
        for index, value in enumerate(values):
            try:
                pa.array([value], self.type)
            except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
                values[index], reasons[index] = None, self._told(error)
        return pa.array(values, self.type)

    def _told(self, error: Exception) -> str:
        text = f"{self._settings.format}: {error or type(error).__name__}"
        return text if len(text) <= _REASON_CHARS_MAX else f"{text[: _REASON_CHARS_MAX - 3]}..."

    def _refuse(self, reasons: Sequence[str | None]) -> None:
        if not self._settings.refuses_bad:
            return
        for number, reason in enumerate(reasons):
            if reason is not None:
                raise RecordUndecodable(
                    f"a body does not fit its schema: {reason} (row {number} of its batch): keep "
                    "such rows with badBodies=column, which puts the reason into bodyError",
                    physical_offset=-1,
                )


def _opened(settings: BodySettings, content: bytes) -> tuple[pa.StructType, Callable[[bytes], Any]]:
    openers: Mapping[BodyFormat, Callable[[], tuple[pa.StructType, Callable[[bytes], Any]]]] = {
        BodyFormat.JSON: partial(json_decoder, content),
        BodyFormat.AVRO: partial(avro_decoder, content),
        BodyFormat.PROTOBUF: partial(protobuf_decoder, content, settings.message),
    }
    return openers[settings.format]()


class TypedBatches:
    """Adds the typed columns to the batches of a reader that decodes ``body`` for it."""

    def __init__(self, bodies: TypedBodies, schema: pa.Schema) -> None:
        """``schema`` is that of the query, with the typed columns."""
        self._bodies = bodies
        self._schema = schema.serialize().to_pybytes()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.BufferReader(self._schema))
        for batch in batches:
            names = batch.schema.names
            typed = dict(
                zip(
                    (VALUE_COLUMN, ERROR_COLUMN),
                    self._bodies.columns(batch.column(names.index("body"))),
                    strict=True,
                )
            )
            columns = [
                fitted_array(typed[field.name], field.type)
                if field.name in typed
                else batch.column(names.index(field.name))
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
