"""How a read takes bodies apart: the format and the schema that its options name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BodyFormat(StrEnum):
    """The formats of typed bodies."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class BodySettings:
    """How bodies are read: the format, the schema's address, and what becomes of bad ones."""

    format: BodyFormat
    # A file, or an address of a registry.
    schema: str
    # Of a protobuf schema with several messages: the one that bodies are.
    message: str | None = None
    # End the query at a body that does not fit; else the row has the reason in a column.
    refuses_bad: bool = False
