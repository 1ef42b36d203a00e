"""Requests and responses, and their two header forms.

A frame is ``total(4) type(1) header_length(3) header body``; ``total`` counts the bytes behind it.
The header is JSON (type 0) or RocketMQ's binary form (type 1); each sender chooses for each frame.
Contrail answers in JSON, as RocketMQ's servers do. Field values are text on the wire.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from contrail.errors import LocalProtocolError, RemoteProtocolError
from contrail.model.fastjson import FastJsonError, JsonValue, loads

# The version number of RocketMQ 5.3.3; peers choose their dialect by it.
ANNOUNCED_VERSION = 479

FLAG_RESPONSE = 1
FLAG_ONE_WAY = 2

TYPE_JSON = 0
TYPE_BINARY = 1

FRAME_BYTES_MAX = 16 << 20
HEADER_BYTES_MAX = 256 << 10
FIELD_COUNT_MAX = 256
KEY_BYTES_MAX = 256
VALUE_BYTES_MAX = 64 << 10
# Commas and brackets outside of texts. 256 fields need 300.
HEADER_TOKENS_MAX = 16_384

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY",
    "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS",
)  # fmt: skip

_quote = json.encoder.encode_basestring
_PREFIX = Struct(">iI")
_BINARY_HEAD = Struct(">hBhiii")
_I16 = Struct(">H")
_I32 = Struct(">i")


class Request(NamedTuple):
    """A received request; ``fields`` are the header's ``extFields``; an absent body is empty."""

    code: int
    opaque: int
    fields: dict[str, str]
    body: bytes = b""
    flag: int = 0
    version: int = ANNOUNCED_VERSION
    language: str = "JAVA"
    remark: str | None = None

    @property
    def one_way(self) -> bool:
        return bool(self.flag & FLAG_ONE_WAY)


Body = bytes | Sequence[bytes | memoryview]
"""One buffer, or several that are sent back to back."""


@dataclass(slots=True)
class Response:
    """An answer without its opaque. ``fields`` of None and empty fields differ on the wire."""

    code: int = 0
    remark: str | None = None
    fields: dict[str, str] | None = None
    body: Body = b""


class ReceivedResponse(NamedTuple):
    """A received answer."""

    code: int
    opaque: int
    remark: str | None
    fields: dict[str, str]
    body: bytes
    version: int
    language: str


Frame = Request | ReceivedResponse


@dataclass(slots=True)
class _Header:
    code: int = 0
    flag: int = 0
    opaque: int = 0
    version: int = 0
    language: str = "JAVA"
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)


def decode_frame(
    header_type: int,
    header: bytes,
    body: bytes,
    *,
    header_bytes_max: int = HEADER_BYTES_MAX,
    value_bytes_max: int = VALUE_BYTES_MAX,
) -> Frame:
    """The frame with this header and body.

    Raises:
        RemoteProtocolError: the header is of an unknown type or malformed.
    """
    if len(header) > header_bytes_max:
        raise RemoteProtocolError("header_too_long", f"a header of {len(header)} bytes")
    if header_type == TYPE_JSON:
        head = _decode_json(header, value_bytes_max)
    elif header_type == TYPE_BINARY:
        head = _decode_binary(header, value_bytes_max)
    else:
        raise RemoteProtocolError("header_type_unknown", f"header type {header_type} is unknown")
    if head.flag & FLAG_RESPONSE:
        return ReceivedResponse(
            head.code, head.opaque, head.remark, head.fields, body, head.version, head.language
        )
    return Request(
        head.code,
        head.opaque,
        head.fields,
        body,
        head.flag,
        head.version,
        head.language,
        head.remark,
    )


def _decode_json(header: bytes, value_bytes_max: int) -> _Header:
    try:
        document = loads(
            header, bytes_max=len(header), tokens_max=HEADER_TOKENS_MAX, dialect_is_short=True
        )
    except FastJsonError as error:
        raise RemoteProtocolError("header_malformed", f"a header is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RemoteProtocolError("header_malformed", "a header is not a JSON object")
    remark = document.get("remark")
    return _Header(
        code=_number(document, "code"),
        flag=_number(document, "flag"),
        opaque=_number(document, "opaque"),
        version=_number(document, "version"),
        language=_language(document.get("language")),
        remark=None if remark is None else _as_text(remark),
        fields=_fields(document.get("extFields"), value_bytes_max),
    )


def _number(document: dict[str, JsonValue], name: str) -> int:
    value = document.get(name)
    if value is None:
        return 0
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = None
    if not isinstance(value, int) or isinstance(value, bool) or not -(1 << 31) <= value < 1 << 31:
        raise RemoteProtocolError("header_malformed", f"the header's {name} is not an int")
    return value


def _language(value: JsonValue) -> str:
    if value is None:
        return LANGUAGES[0]
    if isinstance(value, int) and 0 <= value < len(LANGUAGES):
        return LANGUAGES[value]
    return value if isinstance(value, str) and value in LANGUAGES else "OTHER"


def _fields(value: JsonValue, value_bytes_max: int) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RemoteProtocolError("header_malformed", "the header's extFields is no object")
    _require_field_count(len(value))
    fields = {}
    for name, item in value.items():
        if item is not None:
            text = _as_text(item)
            _require_field_size(name, text, value_bytes_max)
            fields[name] = text
    return fields


def _as_text(value: JsonValue) -> str:
    """The text of a value: some clients write numbers and booleans where Java writes text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def _require_field_count(count: int) -> None:
    if count > FIELD_COUNT_MAX:
        raise RemoteProtocolError("too_many_fields", f"a header with {count} fields")


def _require_field_size(name: str, value: str, value_bytes_max: int) -> None:
    if len(name) > KEY_BYTES_MAX:
        raise RemoteProtocolError("field_name_too_long", f"a field name of {len(name)} characters")
    if len(value) > value_bytes_max:
        raise RemoteProtocolError(
            "field_too_long", f"field {name[:40]!r} has {len(value)} characters"
        )


def _decode_binary(header: bytes, value_bytes_max: int) -> _Header:
    try:
        code, language, version, opaque, flag, remark_bytes = _BINARY_HEAD.unpack_from(header)
        at = _BINARY_HEAD.size
        remark, at = _take_text(header, at, remark_bytes)
        (fields_bytes,) = _I32.unpack_from(header, at)
    except StructError as error:
        raise RemoteProtocolError("header_malformed", "a binary header is cut short") from error
    return _Header(
        code=code,
        flag=flag,
        opaque=opaque,
        version=version,
        language=LANGUAGES[language] if language < len(LANGUAGES) else "OTHER",
        remark=remark or None,
        fields=_binary_fields(header, at + _I32.size, fields_bytes, value_bytes_max),
    )


def _binary_fields(
    header: bytes, at: int, fields_bytes: int, value_bytes_max: int
) -> dict[str, str]:
    end = at + fields_bytes
    if fields_bytes < 0 or end > len(header):
        raise RemoteProtocolError("header_malformed", "binary fields reach past their header")
    fields: dict[str, str] = {}
    try:
        while at < end:
            name, at = _take_text(header, at + 2, _I16.unpack_from(header, at)[0])
            value, at = _take_text(header, at + 4, _I32.unpack_from(header, at)[0])
            _require_field_size(name, value, value_bytes_max)
            if name and value:
                fields[name] = value
                _require_field_count(len(fields))
    except StructError as error:
        raise RemoteProtocolError("header_malformed", "a binary field is cut short") from error
    return fields


def _take_text(header: bytes, at: int, byte_count: int) -> tuple[str, int]:
    end = at + byte_count
    if byte_count < 0 or end > len(header):
        raise RemoteProtocolError("header_malformed", "a binary text reaches past its header")
    return header[at:end].decode("utf-8", "replace"), end


def encode_request(request: Request) -> bytes:
    """The frame of a request with a JSON header."""
    header = _json_header(
        request.code, request.opaque, request.flag, request.remark, request.fields, request.language
    )
    return frame_prefix(len(header), len(request.body)) + header + request.body


def encode_response(response: Response, opaque: int) -> list[bytes | memoryview]:
    """The frame of a response as parts to be written back to back."""
    header = _json_header(
        response.code, opaque, FLAG_RESPONSE, response.remark, response.fields, "JAVA"
    )
    body = response.body
    parts = [body] if isinstance(body, bytes) else list(body)
    body_bytes = sum(len(part) for part in parts)
    return [frame_prefix(len(header), body_bytes) + header, *parts]


class ReadyAnswer:
    """A response without a body, encoded once for all requests with this answer."""

    __slots__ = ("_after", "_before", "_begins", "code", "response")

    def __init__(self, response: Response) -> None:
        assert not response.body, "only a header is kept ready"
        self.response = response
        self.code = response.code
        whole = _json_header(
            response.code, 0, FLAG_RESPONSE, response.remark, response.fields, "JAVA"
        )
        # The remark comes behind the opaque, so the first match is the opaque.
        before, mark, self._after = whole.partition(b'"language":"JAVA","opaque":0')
        self._before = before + mark[:-1]
        # By the number of digits of the opaque.
        self._begins: dict[int, bytes] = {}

    def frame(self, opaque: int) -> bytes:
        """The answer to the request with this opaque."""
        digits = b"%d" % opaque
        begin = self._begins.get(len(digits))
        if begin is None:
            header_bytes = len(self._before) + len(digits) + len(self._after)
            begin = frame_prefix(header_bytes, 0) + self._before
            self._begins[len(digits)] = begin
        return begin + digits + self._after


def frame_prefix(header_bytes: int, body_bytes: int) -> bytes:
    """The eight bytes before a JSON header.

    Raises:
        LocalProtocolError: the frame would be longer than any peer accepts.
    """
    total = 4 + header_bytes + body_bytes
    if total + 4 > FRAME_BYTES_MAX:
        raise LocalProtocolError(f"a frame of {total + 4} bytes; the limit is {FRAME_BYTES_MAX}")
    return _PREFIX.pack(total, header_bytes)


def _json_header(
    code: int,
    opaque: int,
    flag: int,
    remark: str | None,
    fields: Mapping[str, str] | None,
    language: str,
) -> bytes:
    """Keys sorted and nulls left out, as fastjson writes them; joined by hand for speed."""
    pairs = ""
    if fields is not None:
        quoted = [f"{_quote(name)}:{_quote(value)}" for name, value in fields.items()]
        pairs = f',"extFields":{{{",".join(quoted)}}}'
    said = "" if remark is None else f',"remark":{_quote(remark)}'
    text = (
        f'{{"code":{code:d}{pairs},"flag":{flag:d},"language":"{language}","opaque":{opaque:d}'
        f'{said},"serializeTypeCurrentRPC":"JSON","version":{ANNOUNCED_VERSION}}}'
    )
    return text.encode("utf-8", "replace")


def encode_binary_request(request: Request) -> bytes:
    """The frame of a request with a binary header, which holds codes up to 32,767."""
    if not -(1 << 15) <= request.code < 1 << 15:
        raise LocalProtocolError(f"code {request.code} does not fit a binary header; use JSON")
    remark = (request.remark or "").encode()
    fields = b"".join(
        _I16.pack(len(name)) + name + _I32.pack(len(value)) + value
        for name, value in ((n.encode(), v.encode()) for n, v in request.fields.items())
    )
    language = LANGUAGES.index(request.language)
    head = _BINARY_HEAD.pack(
        request.code, language, request.version, request.opaque, request.flag, len(remark)
    )
    header = head + remark + _I32.pack(len(fields)) + fields
    prefix = frame_prefix(len(header), len(request.body))
    return prefix[:4] + bytes([TYPE_BINARY]) + prefix[5:] + header + request.body
