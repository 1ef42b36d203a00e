"""Turn the text of a filter into tokens, one at a time and only when asked.

Text behind a complete expression is never looked at, so a token must not be read before
the parser wants it: its lexical error would refuse an expression that RocketMQ takes.

| token | how it is written |
| --- | --- |
| blank | space, tab, newline, carriage return, form feed |
| comment | ``-- …`` with its line end, or ``/* … */`` |
| keyword | ``NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH``, in any case |
| integer | ``0``, or a nonzero digit and digits and perhaps ``l`` or ``L`` |
| float | ``5.`` ``5.5`` ``.5`` ``5E3`` ``5.5e-3`` |
| string | single quotes around it, ``''`` for a quote inside |
| name | ``[A-Za-z_$][A-Za-z0-9_$]*`` |
| symbol | ``= <> > >= < <= ( ) , + -`` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from contrail.errors import FilterInvalid

_TAB_COLUMNS = 8


class Kind(IntEnum):
    """The kinds of token, in the order in which remarks list them."""

    END = 0
    NOT = 8
    AND = 9
    OR = 10
    BETWEEN = 11
    IN = 12
    TRUE = 13
    FALSE = 14
    NULL = 15
    IS = 16
    CONTAINS = 17
    STARTSWITH = 18
    ENDSWITH = 19
    INTEGER = 20
    FLOAT = 21
    STRING = 23
    NAME = 24
    EQUAL = 25
    NOT_EQUAL = 26
    GREATER = 27
    GREATER_EQUAL = 28
    LESS = 29
    LESS_EQUAL = 30
    OPEN = 31
    COMMA = 32
    CLOSE = 33
    PLUS = 34
    MINUS = 35


_SYMBOLS = {
    "=": Kind.EQUAL,
    "<>": Kind.NOT_EQUAL,
    ">": Kind.GREATER,
    ">=": Kind.GREATER_EQUAL,
    "<": Kind.LESS,
    "<=": Kind.LESS_EQUAL,
    "(": Kind.OPEN,
    ",": Kind.COMMA,
    ")": Kind.CLOSE,
    "+": Kind.PLUS,
    "-": Kind.MINUS,
}
_KEYWORDS = {kind.name: kind for kind in Kind if Kind.NOT <= kind <= Kind.ENDSWITH}
_CLASSES = {
    Kind.END: "<EOF>",
    Kind.INTEGER: "<DECIMAL_LITERAL>",
    Kind.FLOAT: "<FLOATING_POINT_LITERAL>",
    Kind.STRING: "<STRING_LITERAL>",
    Kind.NAME: "<ID>",
}
# How a remark names each kind.
KIND_TEXTS = (
    _CLASSES
    | {kind: f'"{word}"' for word, kind in _KEYWORDS.items()}
    | {kind: f'"{symbol}"' for symbol, kind in _SYMBOLS.items()}
)

_BLANK = re.compile(r"[ \t\n\r\f]*")
_LINE_COMMENT = re.compile(r"--[^\n\r]*(?:\r\n|\n|\r)")
_TOKEN = re.compile(
    r"(?P<FLOAT>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<INTEGER>0|[1-9][0-9]*[lL]?)"
    r"|(?P<STRING>'(?:''|[^'])*')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SYMBOL><>|<=|>=|[=<>(),+-])"
)
_ESCAPES = {
    "\0": "",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "'": "\\'",
    "\\": "\\\\",
}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind, the text it was written as, and where that starts."""

    kind: Kind
    image: str
    start: int


class Tokens:
    """The tokens of one filter, read as far as somebody asked."""

    def __init__(self, text: str) -> None:
        self._text = utf16_units(text)
        self._last_line_end = max(self._text.rfind("\n"), self._text.rfind("\r"))
        self._position = 0
        self._read: list[Token] = []

    def __getitem__(self, index: int) -> Token:
        """The token at ``index``, counted from 0; the end follows the last one."""
        read = self._read
        while len(read) <= index:
            read.append(self._next())
        return read[index]

    def place(self, token: Token) -> tuple[int, int]:
        """The line and column of ``token`` as remarks count them."""
        return _place(self._text, token.start)

    def _next(self) -> Token:
        start = self._skip_blanks()
        if start == len(self._text):
            # The end is said to be where the last character was.
            return Token(Kind.END, "", start - 1)
        found = _TOKEN.match(self._text, start)
        if found is None:
            raise FilterInvalid(_lexical_remark(self._text, start))
        self._position = found.end()
        return Token(_kind(found), found[0], start)

    def _skip_blanks(self) -> int:
        position = self._position
        while True:
            found = _BLANK.match(self._text, position)
            assert found is not None
            position = found.end()
            comment_end = self._comment_end(position)
            if comment_end < 0:
                return position
            position = comment_end

    def _comment_end(self, start: int) -> int:
        """Where the comment at ``start`` ends, or -1 if there is none."""
        if self._text.startswith("/*", start):
            closing = self._text.find("*/", start + 2)
            return -1 if closing < 0 else closing + 2
        # A line comment needs its line end: without one, "--" is two minus signs. A filter may be
        # all minus signs, so none is looked for where none can be.
        found = _LINE_COMMENT.match(self._text, start) if start < self._last_line_end else None
        return -1 if found is None else found.end()


def utf16_units(text: str) -> str:
    """``text`` with each character outside the basic plane as its two surrogates, as in Java."""
    if text.isascii() or max(text) <= "\uffff":
        return text
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(chr(units[place] << 8 | units[place + 1]) for place in range(0, len(units), 2))


def utf16_text(units: str) -> str:
    """The inverse of :func:`utf16_units`."""
    if units.isascii():
        return units
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def escaped(image: str) -> str:
    """``image`` as a remark prints it."""
    return "".join(map(_escape, image))


def _escape(character: str) -> str:
    if (escape := _ESCAPES.get(character)) is not None:
        return escape
    return character if " " <= character <= "~" else f"\\u{ord(character):04x}"


def _kind(found: re.Match[str]) -> Kind:
    image, group = found[0], found.lastgroup
    if group == "SYMBOL":
        return _SYMBOLS[image]
    if group == "NAME":
        return _KEYWORDS.get(image.upper(), Kind.NAME)
    assert group is not None
    return Kind[group]


def _place(text: str, index: int) -> tuple[int, int]:
    """Lines end with LF, CR or CR LF, and a tab goes to the next multiple of 8 columns."""
    if index < 0:
        return 0, 0
    before = text[: index + 1]
    lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", before)
    if not lines[-1]:
        lines.pop()
    column = 0
    for character in lines[-1]:
        column += _TAB_COLUMNS - column % _TAB_COLUMNS if character == "\t" else 1
    return len(lines), column


def _lexical_remark(text: str, start: int) -> str:
    """RocketMQ's remark on characters that start no token.

    It names the character that it could not go on with, unless nothing follows that one: then
    it says that the text ended, even for a character that can be nowhere.
    """
    consumed = _consumed(text, start)
    last = start + consumed - 1
    line, column = _place(text, last)
    if last + 1 < len(text):
        after = text[start:last] if consumed > 1 else ""
        met = f'"{escaped(text[last])}" ({ord(text[last])}), '
    else:
        after = text[start:] if consumed > 1 else ""
        met = "<EOF> "
        line, column = (line + 1, 0) if text[last] in "\r\n" else (line, column + 1)
    return (
        "org.apache.rocketmq.filter.parser.TokenMgrError: "
        f"Lexical error at line {line}, column {column}.  Encountered: {met}"
        f'after : "{escaped(after)}"'
    )


def _consumed(text: str, start: int) -> int:
    """How many characters are read before it is clear that they are no token."""
    if text[start] == "'" or text.startswith("/*", start):
        return len(text) - start
    if text[start] in "/.":
        return min(2, len(text) - start)
    return 1
