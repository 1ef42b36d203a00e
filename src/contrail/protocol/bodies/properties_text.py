"""Java's properties text, the format of configuration requests and RocketMQ's files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode

# A file with every setting of RocketMQ has 12 KiB.
SETTINGS_BYTES_MAX = 64 << 10

_LINE = re.compile(r"([^\r\n]*+)(\r\n|\n|\r|\Z)")
_SPACE = " \t\f"
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*+)[ \t\f]*+[=:]?[ \t\f]*+", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The settings in ``text``, read as Java reads them; the last of two equal names wins."""
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None  # The pattern also matches an empty text.
        properties[_unescape(match[1])] = _unescape(line[match.end() :])
    return properties


def decode_settings(body: bytes) -> dict[str, str]:
    """The settings in the body of a request that changes settings.

    Raises:
        RequestRejected: the body is too long or not UTF-8.
    """
    if len(body) > SETTINGS_BYTES_MAX:
        problem = f"they have {len(body)} bytes, at most {SETTINGS_BYTES_MAX} are read"
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"the settings are refused: {problem}")
    try:
        return parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"byte {error.start} of the settings is not UTF-8"
        ) from error


def render_properties(properties: Mapping[str, str]) -> str:
    """One ``name=value`` line for each setting, in their order and unescaped, as RocketMQ does."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks; a line that ends in a backslash goes on in the next."""
    held: list[str] = []
    for match in _LINE.finditer(text):
        line = match[1].lstrip(_SPACE)
        if not held and (not line or line[0] in "#!"):
            continue
        backslash_count = len(line) - len(line.rstrip("\\"))
        if backslash_count % 2:
            held.append(line[:-1])
            continue
        yield "".join([*held, line])
        held = []
    if held:
        yield "".join(held)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    code: str = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
