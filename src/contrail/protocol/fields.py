"""Typed reading of a request's header fields, which are all text on the wire."""

from __future__ import annotations

import re
from typing import NoReturn

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode, describe_code
from contrail.protocol.command import Request

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
# As Java reads it: RocketMQ's broker does not read the C++ client's 1 as true either.
_TRUE = "true"
_INT_BITS = 32
# A number with this many digits always fits the bits.
_SHORT_DIGITS = 9
_LONG_BITS = 64


class FieldInvalid(RequestRejected):
    """A header field is missing or malformed."""


class HeaderFields:
    """The header fields of one request.

    Every reader raises ``FieldInvalid`` with ``SYSTEM_ERROR`` for a field that is missing
    without a default, or that does not parse; the remark names the request code and the field.
    """

    __slots__ = ("_code", "_fields")

    def __init__(self, request: Request) -> None:
        self._code = request.code
        self._fields = request.fields

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name, default)
        return self._refuse_missing(name) if value is None else value

    def optional_text(self, name: str) -> str | None:
        return self._fields.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A 32-bit number."""
        value = self._number(name, _INT_BITS, default)
        return self._refuse_missing(name) if value is None else value

    def optional_integer(self, name: str) -> int | None:
        return self._number(name, _INT_BITS, None)

    def long(self, name: str, default: int | None = None) -> int:
        """A 64-bit number."""
        value = self._number(name, _LONG_BITS, default)
        return self._refuse_missing(name) if value is None else value

    def optional_long(self, name: str) -> int | None:
        return self._number(name, _LONG_BITS, None)

    def boolean(self, name: str, default: bool = False) -> bool:
        """True for ``true`` in any case; every other text is false."""
        value = self._fields.get(name)
        return default if value is None else value.lower() == _TRUE

    def optional_boolean(self, name: str) -> bool | None:
        return None if name not in self._fields else self.boolean(name)

    def _number(self, name: str, bits: int, default: int | None) -> int | None:
        text = self._fields.get(name)
        if text is None:
            return default
        if len(text) <= _SHORT_DIGITS and text.isascii() and text.isdecimal():
            return int(text)
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            self._refuse(f"field {name}={text[:40]!r} must be a {bits}-bit number")
        return value

    def _refuse_missing(self, name: str) -> NoReturn:
        self._refuse(f"the required field {name} is missing")

    def _refuse(self, problem: str) -> NoReturn:
        remark = f"request {describe_code(self._code)}: {problem}"
        raise FieldInvalid(ResponseCode.SYSTEM_ERROR, remark)
