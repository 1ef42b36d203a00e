"""Java's properties text, which configuration requests and RocketMQ's files are written in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_LINE_END = re.compile(r"\r\n|\n|\r")
_SPACE = " \t\f"
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*+)[ \t\f]*+[=:]?[ \t\f]*+", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def parse_properties(text: str) -> dict[str, str]:
    """The settings in ``text``, read as Java reads them; the last of two equal names wins."""
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.match(line)
        assert match is not None  # The pattern also matches nothing at all.
        properties[_unescape(match[1])] = _unescape(line[match.end() :])
    return properties


def render_properties(properties: Mapping[str, str]) -> str:
    """One ``name=value`` line for each setting, in their order and unescaped, as RocketMQ does."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments and blanks; one that ends in a backslash goes on in the next."""
    held = ""
    for raw in _LINE_END.split(text):
        line = raw.lstrip(_SPACE)
        if not held and (not line or line[0] in "#!"):
            continue
        held += line
        if _CONTINUED.search(held):
            held = held[:-1]
            continue
        yield held
        held = ""
    if held:
        yield held


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    code: str = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)
