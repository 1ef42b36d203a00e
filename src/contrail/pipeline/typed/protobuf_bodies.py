"""Bodies in protobuf: a compiled descriptor set, or the text of a ``.proto``, and their values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from contrail.errors import OptionInvalid

_TIMESTAMP = "google.protobuf.Timestamp"
_FILE = "bodies.proto"


def compiled(content: bytes) -> bytes:
    """The descriptor set of a schema; the text of a ``.proto`` is compiled here, on the driver.

    Raises:
        OptionInvalid: it is neither, or a library is not installed.
    """
    _require()
    from google.protobuf import descriptor_pb2

    if b"message" not in content or b"{" not in content:
        try:
            descriptor_pb2.FileDescriptorSet.FromString(content)
        except Exception as error:
            raise OptionInvalid(
                f"bodySchema: it is neither a .proto nor a descriptor set: {error}"
            ) from error
        return content
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError as error:
        raise OptionInvalid(
            "bodySchema: a .proto needs grpcio-tools: pip install contrail-mq[protobuf], or give "
            "what `protoc --include_imports --descriptor_set_out=FILE` writes"
        ) from error
    with tempfile.TemporaryDirectory(prefix="contrail-proto-") as folder:
        Path(folder, _FILE).write_bytes(content)
        made = Path(folder, "set")
        types = Path(grpc_tools.__file__).parent / "_proto"
        command = ["protoc", f"-I{folder}", f"-I{types}", "--include_imports"]
        if protoc.main([*command, f"--descriptor_set_out={made}", _FILE]) != 0:
            raise OptionInvalid("bodySchema: protoc refuses it, for the reason that it printed")
        return made.read_bytes()


def protobuf_decoder(
    content: bytes, message: str | None
) -> tuple[pa.StructType, Callable[[bytes], Any]]:
    """The type of a message of a descriptor set, and the function that reads a body.

    Raises:
        OptionInvalid: there is no such message, or it holds itself.
    """
    _require()
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    found = descriptor_pb2.FileDescriptorSet.FromString(content)
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    descriptor = pool.FindMessageTypeByName(_named(found, message))
    kind = _type_of(descriptor, ())
    factory = message_factory.GetMessageClass(descriptor)

    def decode(body: bytes) -> Any:
        try:
            return _value_of(factory.FromString(body))
        except DecodeError as error:
            raise ValueError(str(error)) from error

    return kind, decode


def _require() -> None:
    try:
        import google.protobuf  # noqa: F401
    except ImportError as error:
        raise OptionInvalid(
            "bodyFormat=protobuf needs protobuf: pip install contrail-mq[protobuf]"
        ) from error


def _named(found: Any, message: str | None) -> str:
    """The full name of the message that bodies are."""
    file = found.file[-1]
    names = [".".join(filter(None, (file.package, one.name))) for one in file.message_type]
    if message is None and len(names) == 1:
        return names[0]
    for name in names:
        if message is not None and (name == message or name.rpartition(".")[2] == message):
            return name
    raise OptionInvalid(
        f"bodyMessage={message or ''!r}: name one of the schema's messages: "
        f"{', '.join(names) or 'it has none'}"
    )


def _type_of(descriptor: Any, outer: tuple[str, ...]) -> pa.StructType:
    if descriptor.full_name in outer:
        raise OptionInvalid(
            f"bodySchema: message {descriptor.full_name} holds itself, which no column can"
        )
    inside = (*outer, descriptor.full_name)
    return pa.struct([pa.field(one.name, _field_type(one, inside)) for one in descriptor.fields])


def _field_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_one_type(entry["key"], outer), _one_type(entry["value"], outer))
    kind = _one_type(field, outer)
    return pa.list_(kind) if field.is_repeated else kind


def _one_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return _type_of(field.message_type, outer)
    return {
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_INT32: pa.int32(),
        # Spark has no unsigned numbers.
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_ENUM: pa.string(),
        field.CPPTYPE_STRING: pa.binary() if field.type == field.TYPE_BYTES else pa.string(),
    }[field.cpp_type]


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _value_of(message: Any) -> dict[str, Any]:
    """All fields; one that tells whether it was set is null if it was not."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        held = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            values[field.name] = [(key, _one_value(inner, held[key])) for key in held]
        elif field.is_repeated:
            values[field.name] = [_one_value(field, one) for one in held]
        elif field.has_presence and not message.HasField(field.name):
            values[field.name] = None
        else:
            values[field.name] = _one_value(field, held)
    return values


def _one_value(field: Any, value: Any) -> Any:
    from datetime import UTC
    from decimal import Decimal

    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.ToDatetime(tzinfo=UTC)
        return _value_of(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    return Decimal(value) if field.cpp_type == field.CPPTYPE_UINT64 else value
