"""The JSON dialect of RocketMQ's files and bodies, read tolerantly and written strictly.

RocketMQ's serialiser (fastjson) writes map keys that are not text as raw values:
``{0:12}`` and even ``{{"queueId":0}:12}``; strict parsers refuse both. The reader here tries the
standard library first and falls back to a parser of its own, which also accepts words as keys,
single quotes and stray commas. An object that occurs twice is written by fastjson as
``{"$ref":"$.path"}`` the second time; the reader puts the object itself there.

The writer quotes every key, sorts the fields, omits nulls and indents with tabs, which fastjson
reads back into the same objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn, TypeGuard

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

DOCUMENT_BYTES_MAX = 256 << 20
DEPTH_MAX = 32
# Text that is not standard JSON takes thirty times as long: about 10 ms for this many characters.
DIALECT_CHARS_MAX = 64 << 10
DIALECT_TOKENS_MAX = 2000
# This much is parsed in a millisecond; other threads wait until the parser ends.
_LARGE_CHARS = 64 << 10

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1

_SPACE = re.compile(r"[ \t\r\n\f\b]*+")
_DOUBLE_QUOTED = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"', re.DOTALL)
_SINGLE_QUOTED = re.compile(r"'([^'\\]*+(?:\\.[^'\\]*+)*+)'", re.DOTALL)
_NUMBER = re.compile(r"-?[0-9]++(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
_WORD = re.compile(r"[^\W\d][\w$.-]*+|\$[\w$.-]*+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {
    **dict(zip("bfnrtv", "\b\f\n\r\t\v", strict=True)),
    **{character: character for character in "\\\"'/"},
    **{digit: chr(int(digit)) for digit in "01234567"},
}
_SURROGATE = re.compile("[\ud800-\udfff]")
# The end of the text ends a string too: otherwise a search that fails there would start again at
# each of the string's quotes.
_QUOTED_BYTES = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
_quote = json.encoder.encode_basestring
_LITERALS: dict[str, JsonValue] = {"true": True, "false": False, "null": None}
REFERENCE_KEY = "$ref"
_REFERENCE = REFERENCE_KEY
_REFERENCE_COST = 4
_PATH_CHARACTERS_MAX = 1024
_PATH_STEP = re.compile(r"\.((?:[^\\.\[]|\\.)+)|\[([0-9]{1,9})\]", re.DOTALL)


class FastJsonError(ValueError):
    """The document is not JSON of this dialect, or a field has another type than asked for."""


class ObjectKey(str):
    """A key that stood in the document as a raw object: its text, written back without quotes."""

    __slots__ = ()


def loads(
    document: bytes | str,
    *,
    bytes_max: int = DOCUMENT_BYTES_MAX,
    tokens_max: int = DOCUMENT_BYTES_MAX,
    dialect_is_short: bool = False,
) -> JsonValue:
    """The value of ``document``; all keys become text, raw objects an ``ObjectKey``.

    ``tokens_max`` bounds the commas and opening brackets, and with them the memory of the value:
    three bytes of text can become an object of a hundred bytes. ``dialect_is_short`` is for
    requests of peers: a document beyond ``DIALECT_TOKENS_MAX`` must be standard JSON.

    Raises:
        FastJsonError: the document is malformed, nested too deeply or beyond a bound.
    """
    if len(document) > bytes_max:
        raise FastJsonError(f"the document has {len(document)} bytes, at most {bytes_max} are read")
    if len(document) > tokens_max // _REFERENCE_COST:
        _check_tokens(document, tokens_max)
    text = _decode_text(document) if isinstance(document, bytes) else document
    try:
        value: JsonValue = json.loads(
            text,
            strict=False,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
            object_hook=_same if len(text) > _LARGE_CHARS else None,
        )
    except (ValueError, RecursionError) as error:
        if dialect_is_short:
            _check_dialect(text, error)
        value = _Parser(text).document()
    _check_depth(value)
    return _References(value, len(text)).resolved() if _REFERENCE in text else value


def dumps(value: object, *, pretty: bool = True) -> bytes:
    """``value`` as a document in UTF-8: keys quoted and sorted, nulls omitted from objects.

    Raises:
        FastJsonError: something in ``value`` has no JSON form, or it is nested too deeply.
    """
    # An unpaired surrogate cannot be UTF-8; this error handler turns it into its \\uXXXX escape.
    return _render(value, 0 if pretty else None, 0).encode("utf-8", "backslashreplace")


class RawJson:
    """JSON text that was rendered before and is put into a document as it is."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def entry_text(key: str, value: object, *, depth: int) -> str:
    """One field of an object, as ``dumps`` writes it ``depth`` levels deep."""
    return f"{_render_key(key)}:{_render(value, depth, depth)}"


def raw_object(fields: list[str], *, depth: int) -> RawJson:
    """An object of fields from ``entry_text``, itself ``depth`` levels deep."""
    return RawJson(_bracket("{", fields, "}", depth))


def text_bytes(text: str) -> int:
    """How many bytes a text takes in a document, with its quotes."""
    return len(_quote(text).encode("utf-8", "backslashreplace"))


class Fields:
    """Typed access to one object of a document; a null counts as absent, as for fastjson."""

    def __init__(self, value: JsonValue, place: str) -> None:
        if not isinstance(value, dict):
            raise FastJsonError(f"{place} must be an object, it is {_describe(value)}")
        self._values = value
        self._place = place

    def integer(self, name: str, default: int) -> int:
        """A 64-bit whole number, which may also be given as text."""
        value = self._values.get(name)
        return default if value is None else whole_number(value, f"{self._place}.{name}")

    def rate(self, name: str) -> float:
        """A number with or without decimals; 0 when absent."""
        value = self._values.get(name)
        if value is None:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._refuse(name, "a number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        known = {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())
        if value is not None and known is None:
            self._refuse(name, "true or false")
        return default if known is None else known

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        return value if isinstance(value, str) else self._refuse(name, "text")

    def array(self, name: str) -> list[JsonValue]:
        value = self._values.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else self._refuse(name, "an array")

    def child(self, name: str) -> Fields | None:
        value = self._values.get(name)
        return None if value is None else Fields(value, f"{self._place}.{name}")

    def children(self, name: str) -> dict[str, Fields]:
        """An object of objects, by key; null entries are left out."""
        table = self.child(name)
        if table is None:
            return {}
        found = {key: table.child(key) for key in table._values}
        return {key: child for key, child in found.items() if child is not None}

    def texts(self, name: str) -> dict[str, str]:
        """An object of texts; numbers and booleans in it are taken as they would be written."""
        table = self.child(name)
        if table is None:
            return {}
        return {
            key: table.as_text(key) for key, value in table._values.items() if value is not None
        }

    def integers(self, name: str) -> dict[str, int]:
        """An object of whole numbers, by key."""
        table = self.child(name)
        return {} if table is None else table.as_integers()

    def as_integers(self) -> dict[str, int]:
        """This object's fields, all of them whole numbers."""
        # Tables of offsets have many entries: the path of an entry is made only if it is refused.
        return {
            key: value if is_long(value) else whole_number(value, f"{self._place}.{key}")
            for key, value in self._values.items()
            if value is not None
        }

    def unknown(self, known: frozenset[str]) -> dict[str, JsonValue]:
        """The fields that a newer writer added, so that rewriting the document keeps them."""
        return {key: value for key, value in self._values.items() if key not in known}

    def as_text(self, name: str) -> str:
        """A text; a number or a boolean is taken as it would be written."""
        value = self._values[name]
        if isinstance(value, (list, dict)):
            self._refuse(name, "text")
        return value if isinstance(value, str) else _render(value, None, 0)

    def _refuse(self, name: str, wanted: str) -> NoReturn:
        found = _describe(self._values.get(name))
        raise FastJsonError(f"{self._place}.{name} must be {wanted}, it is {found}")


def whole_number(value: JsonValue, place: str) -> int:
    """``value`` as a 64-bit integer; the error for any other value names ``place``."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if not is_long(value):
        raise FastJsonError(f"{place} must be a 64-bit whole number, it is {_describe(value)}")
    return value


def is_long(value: object) -> TypeGuard[int]:
    """Whether ``value`` is a Java ``long``; a boolean is none."""
    return type(value) is int and _LONG_MIN <= value <= _LONG_MAX


def _describe(value: JsonValue) -> str:
    """The beginning of a value, for an error text."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _decode_text(document: bytes) -> str:
    try:
        return document.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FastJsonError(f"byte {error.start} of the document is not UTF-8") from None


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FastJsonError(f"the number {text[:40]} is too large")
    return value


def _same(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Returns ``value``: the call lets other threads run, which the parser itself does not."""
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise FastJsonError(f"{name} is not a JSON value")


def _check_tokens(document: bytes | str, tokens_max: int) -> None:
    data = document if isinstance(document, bytes) else document.encode("utf-8", "replace")
    # References need a table of every object, which takes more memory than the objects.
    if _REFERENCE.encode() in data:
        tokens_max //= _REFERENCE_COST
    count = _tokens_in(data)
    if count > tokens_max:
        count -= sum(_tokens_in(match[0]) for match in _QUOTED_BYTES.finditer(data))
    if count > tokens_max:
        raise FastJsonError(f"the document has {count} commas and brackets: over {tokens_max}")


def _tokens_in(data: bytes) -> int:
    return data.count(b",") + data.count(b"{") + data.count(b"[")


def _check_dialect(text: str, error: Exception) -> None:
    count = text.count(",") + text.count("{") + text.count("[")
    if count > DIALECT_TOKENS_MAX or len(text) > DIALECT_CHARS_MAX:
        raise FastJsonError(
            f"the document is not standard JSON ({error}), of which at most {DIALECT_CHARS_MAX} "
            f"characters and {DIALECT_TOKENS_MAX} commas and brackets are read"
        ) from None


def _check_depth(value: JsonValue) -> None:
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [child for parent in level for child in _contents(parent)]
        if not level:
            return
    raise FastJsonError(f"the document is nested deeper than {DEPTH_MAX} levels")


def _contents(value: JsonValue) -> Iterable[JsonValue]:
    """The values inside an object or array; an empty one still counts as a level."""
    if isinstance(value, dict):
        return value.values() or (None,)
    return value or (None,) if isinstance(value, list) else ()


class _Parser:
    """A recursive-descent parser; its depth is bounded, so the interpreter's stack is too."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0

    def document(self) -> JsonValue:
        value = self._value()
        if self._peek():
            self._fail("something follows the end of the document")
        return value

    def _value(self) -> JsonValue:
        first = self._peek()
        if first == "{":
            return self._object()
        if first == "[":
            return self._array()
        if first in ('"', "'"):
            return self._quoted()
        return self._scalar()

    def _object(self) -> dict[str, JsonValue]:
        fields: dict[str, JsonValue] = {}
        self._enter()
        while self._next_item("}"):
            key = self._key()
            if self._peek() != ":":
                self._fail(f"a colon must follow the key {key[:40]!r}")
            self._position += 1
            fields[key] = self._value()
            self._end_item("}")
        return fields

    def _array(self) -> list[JsonValue]:
        items: list[JsonValue] = []
        self._enter()
        while self._next_item("]"):
            items.append(self._value())
            self._end_item("]")
        return items

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._fail(f"nested deeper than {DEPTH_MAX} levels")
        self._position += 1

    def _next_item(self, close: str) -> bool:
        """Skip stray commas; False once the closing bracket was taken."""
        while (first := self._peek()) == ",":
            self._position += 1
        if first == close:
            self._position += 1
            self._depth -= 1
        return first != close

    def _end_item(self, close: str) -> None:
        if self._peek() not in (",", close):
            self._fail(f"a comma or {close} is missing")

    def _key(self) -> str:
        first = self._peek()
        if first in ('"', "'"):
            return self._quoted()
        if first == "{":
            start = self._position
            self._object()
            return ObjectKey(self._text[start : self._position])
        return self._take(_NUMBER) or self._take(_WORD) or self._fail("a key is missing")

    def _quoted(self) -> str:
        pattern = _DOUBLE_QUOTED if self._text[self._position] == '"' else _SINGLE_QUOTED
        match = pattern.match(self._text, self._position)
        if match is None:
            self._fail("a text has no end")
        self._position = match.end()
        content: str = match[1]
        return _unescape(content) if "\\" in content else content

    def _scalar(self) -> JsonValue:
        start = self._position
        number = self._take(_NUMBER)
        try:
            if number:
                return _finite_float(number) if set(number) & set(".eE") else int(number)
        except ValueError as error:
            self._fail(str(error))
        word = self._take(_WORD)
        if word not in _LITERALS:
            self._position = start
            self._fail("a value is missing")
        return _LITERALS[word]

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            return ""
        self._position = match.end()
        return match[0]

    def _peek(self) -> str:
        """The next character that is no space, or nothing at the end."""
        first = self._text[self._position : self._position + 1]
        if first > " ":
            return first
        self._take(_SPACE)
        return self._text[self._position : self._position + 1]

    def _fail(self, problem: str) -> NoReturn:
        raise FastJsonError(f"at character {self._position}: {problem}")


def _unescape(content: str) -> str:
    text = _ESCAPE.sub(_unescape_one, content)
    if _SURROGATE.search(text) is None:
        return text
    # Two escapes may have made a surrogate pair: join it, and let a single half stand.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _unescape_one(match: re.Match[str]) -> str:
    code: str = match[1]
    if len(code) > 1:
        return chr(int(code[1:], 16))
    if code not in _ESCAPED:
        raise FastJsonError(f"unknown escape \\{code}")
    return _ESCAPED[code]


class _References:
    """Replaces each ``{"$ref":path}`` with the object that it refers to.

    A reference may only lead to an object that is complete before it, as fastjson writes for the
    tables here; the result therefore never contains itself. Nested repetitions still grow fast, so
    ``nodes_max`` bounds the values of the result when written out.
    """

    def __init__(self, root: JsonValue, nodes_max: int) -> None:
        self._root = root
        self._nodes_max = nodes_max
        # The size of each complete object when written out: its values << 8 | its depth.
        self._complete: dict[int, int] = {}

    def resolved(self) -> JsonValue:
        return self._visit(self._root)

    def _visit(self, value: JsonValue) -> JsonValue:
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(path := value.get(_REFERENCE), str):
                return self._target(path)
            for key in value:
                value[key] = self._visit(value[key])
            self._complete[id(value)] = self._measured(value.values())
        elif isinstance(value, list):
            value[:] = [self._visit(item) for item in value]
            self._complete[id(value)] = self._measured(value)
        return value

    def _measured(self, contents: Iterable[JsonValue]) -> int:
        nodes, depth = 1, 0
        for item in contents:
            measure = self._complete.get(id(item), 1 << 8)
            nodes += measure >> 8
            depth = max(depth, measure & 0xFF)
        if nodes > self._nodes_max or depth >= DEPTH_MAX:
            raise FastJsonError("references repeat objects within objects too often")
        return nodes << 8 | depth + 1

    def _target(self, path: str) -> JsonValue:
        value, position = self._root, 1
        while position < len(path) <= _PATH_CHARACTERS_MAX and path[0] == "$":
            step = _PATH_STEP.match(path, position)
            if step is None:
                break
            value, position = self._step(value, step), step.end()
        if position != len(path) or id(value) not in self._complete:
            raise FastJsonError(f"the reference {path[:80]!r} leads to no earlier object")
        return value

    def _step(self, value: JsonValue, step: re.Match[str]) -> JsonValue:
        if isinstance(value, list) and step[2] and int(step[2]) < len(value):
            return value[int(step[2])]
        if isinstance(value, dict) and step[1]:
            return value.get(re.sub(r"\\(.)", r"\1", step[1], flags=re.DOTALL))
        return None


def _render(value: object, indent: int | None, depth: int) -> str:
    """One value as text; ``indent`` is None for the compact form."""
    if isinstance(value, str):
        return _quote(value)
    if is_long(value):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float)):
        return _render_scalar(value)
    if isinstance(value, RawJson):
        return value.text
    if depth >= DEPTH_MAX:
        raise FastJsonError(f"the value is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        return _render_object(value, indent, depth)
    if isinstance(value, (list, tuple)):
        inner = None if indent is None else indent + 1
        return _bracket("[", [_render(item, inner, depth + 1) for item in value], "]", indent)
    raise FastJsonError(f"{type(value).__name__} has no JSON form")


def _render_scalar(value: bool | int | float | None) -> str:
    # Tables consist mostly of scalars, and a broker writes its tables often.
    if value is True or value is False:
        return "true" if value else "false"
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        raise FastJsonError("a number is not finite, or has too many digits") from None


def _render_object(fields: Mapping[object, object], indent: int | None, depth: int) -> str:
    inner = None if indent is None else indent + 1
    items = [
        f"{_render_key(key)}:{_render(fields[key], inner, depth + 1)}"
        for key in _sorted_keys(fields)
        if fields[key] is not None
    ]
    return _bracket("{", items, "}", indent)


def _sorted_keys(fields: Mapping[object, object]) -> list[object]:
    """Numbers first and by size, then text."""
    if {type(key) for key in fields} in ({str}, {int}):
        return sorted(fields)  # type: ignore[type-var]  # They are all of one kind.
    return sorted(fields, key=_key_order)


def _key_order(key: object) -> tuple[bool, int, str]:
    if isinstance(key, str):
        return (True, 0, key)
    if type(key) is int:
        return (False, key, "")
    raise FastJsonError(f"a key must be text or a whole number, not {type(key).__name__}")


def _render_key(key: object) -> str:
    return str(key) if isinstance(key, ObjectKey) else _quote(str(key))


def _bracket(opening: str, items: list[str], closing: str, indent: int | None) -> str:
    if indent is None or not items:
        return opening + ",".join(items) + closing
    line = "\n" + "\t" * indent
    return opening + line + "\t" + f",{line}\t".join(items) + line + closing
