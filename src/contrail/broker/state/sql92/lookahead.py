"""Look ahead over tokens without building anything, as RocketMQ's parser does.

It looks ahead over a whole operand before it takes a leading ``+``, so an error behind a plus
is reported at the plus. The same walk, done again with a listener, tells a remark what could have
stood there; the order of attempts is the order of the remark.

The grammar is compiled once to a program for a small machine with a stack of its own, because a
filter may nest deeper than Python may recurse. A stack entry is either where to return to from a
rule, with index -1, or where and at which token to go on when an attempt fails.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from contrail.broker.state.sql92.lexer import Kind, Tokens

Listener = Callable[[Kind, int], None]


class _Op(Enum):
    TOKEN = auto()  # the token must be of the kind
    TRY = auto()  # if what follows fails, go on at the distance instead
    DONE = auto()  # what was tried fits: forget the alternative and go on at the distance
    CALL = auto()  # follow the rule
    RETURN = auto()


_Argument = Kind | int | str
_Code = list[tuple[_Op, _Argument]]


def _code(part: Kind | str | _Code) -> _Code:
    """One step: a token, the name of a rule, or code already made."""
    if isinstance(part, Kind):
        return [(_Op.TOKEN, part)]
    return [(_Op.CALL, part)] if isinstance(part, str) else part


def _sequence(*parts: Kind | str | _Code) -> _Code:
    return [instruction for part in parts for instruction in _code(part)]


def _first_of(*parts: Kind | str | _Code) -> _Code:
    code = _code(parts[-1])
    for part in reversed(parts[:-1]):
        tried = _code(part)
        code = [(_Op.TRY, len(tried) + 2), *tried, (_Op.DONE, len(code) + 1), *code]
    return code


def _repeated(*parts: Kind | str | _Code) -> _Code:
    tried = _first_of(*parts)
    return [(_Op.TRY, len(tried) + 2), *tried, (_Op.DONE, -len(tried) - 1)]


_STRINGS = _sequence(
    Kind.OPEN, Kind.STRING, _repeated(_sequence(Kind.COMMA, Kind.STRING)), Kind.CLOSE
)
_BOUNDS = _sequence(Kind.BETWEEN, "unary", Kind.AND, "unary")
_COMPARISONS = (
    _sequence(Kind.GREATER, "unary"),
    _sequence(Kind.GREATER_EQUAL, "unary"),
    _sequence(Kind.LESS, "unary"),
    _sequence(Kind.LESS_EQUAL, "unary"),
    _sequence(Kind.CONTAINS, Kind.STRING),
    _sequence(Kind.NOT, Kind.CONTAINS, Kind.STRING),
    _sequence(Kind.STARTSWITH, Kind.STRING),
    _sequence(Kind.NOT, Kind.STARTSWITH, Kind.STRING),
    _sequence(Kind.ENDSWITH, Kind.STRING),
    _sequence(Kind.NOT, Kind.ENDSWITH, Kind.STRING),
    _BOUNDS,
    _sequence(Kind.NOT, _BOUNDS),
    _sequence(Kind.IN, _STRINGS),
    _sequence(Kind.NOT, Kind.IN, _STRINGS),
)
_EQUALITIES = (
    _sequence(Kind.EQUAL, "comparison"),
    _sequence(Kind.NOT_EQUAL, "comparison"),
    _sequence(Kind.IS, Kind.NULL),
    _sequence(Kind.IS, Kind.NOT, Kind.NULL),
)
_LITERALS = (Kind.STRING, Kind.INTEGER, Kind.FLOAT, Kind.TRUE, Kind.FALSE, Kind.NULL)
_RULES = {
    "signed": _sequence(Kind.PLUS, "unary"),
    "or": _sequence("and", _repeated(_sequence(Kind.OR, "and"))),
    "and": _sequence("equality", _repeated(_sequence(Kind.AND, "equality"))),
    "equality": _sequence("comparison", _repeated(*_EQUALITIES)),
    "comparison": _sequence("unary", _repeated(*_COMPARISONS)),
    "unary": _first_of(
        _sequence(Kind.PLUS, "unary"),
        _sequence(Kind.MINUS, "unary"),
        _sequence(Kind.NOT, "unary"),
        *_LITERALS,
        Kind.NAME,
        _sequence(Kind.OPEN, "or", Kind.CLOSE),
    ),
}


def _link() -> tuple[list[tuple[_Op, Kind, int]], dict[str, int]]:
    """All rules in one program, with places for distances and names; and where each starts."""
    starts: dict[str, int] = {}
    length = 0
    for name, code in _RULES.items():
        starts[name] = length
        length += len(code) + 1
    whole = [line for code in _RULES.values() for line in (*code, (_Op.RETURN, 0))]
    program = []
    for place, (operation, argument) in enumerate(whole):
        kind = argument if isinstance(argument, Kind) else Kind.END
        target = starts[argument] if isinstance(argument, str) else place + argument
        program.append((operation, kind, target))
    return program, starts


_PROGRAM, _STARTS = _link()


def signed_operand_end(tokens: Tokens, index: int, listener: Listener | None = None) -> int:
    """The index behind the plus and its operand at ``index``, or -1 if they are not there."""
    return _Walk(tokens, index, listener).follow("signed")


class _Walk:
    """One attempt to fit a rule to the tokens from an index on."""

    def __init__(self, tokens: Tokens, index: int, listener: Listener | None) -> None:
        self._tokens = tokens
        self._index = index
        self._listener = listener
        self._stack: list[tuple[int, int]] = []

    def follow(self, rule: str) -> int:
        """Return the index behind the tokens that fit, or -1."""
        finished, stack = len(_PROGRAM), self._stack
        stack.append((finished, -1))
        position = _STARTS[rule]
        while 0 <= position < finished:
            operation, kind, target = _PROGRAM[position]
            if operation is _Op.TOKEN:
                position = position + 1 if self._takes(kind) else self._retreat()
            elif operation is _Op.TRY:
                stack.append((target, self._index))
                position += 1
            elif operation is _Op.CALL:
                stack.append((position + 1, -1))
                position = target
            else:
                returned_to, _ = stack.pop()
                position = target if operation is _Op.DONE else returned_to
        return self._index if position == finished else -1

    def _takes(self, kind: Kind) -> bool:
        if self._listener is not None:
            self._listener(kind, self._index)
        if self._tokens[self._index].kind is not kind:
            return False
        self._index += 1
        return True

    def _retreat(self) -> int:
        """Go back to the nearest alternative, or report -1 when none is left."""
        while self._stack:
            position, index = self._stack.pop()
            if index >= 0:
                self._index = index
                return position
        return -1
