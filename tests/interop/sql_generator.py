"""A seeded stream of SQL92 expressions and of messages to ask them about.

Expressions are made as lists of tokens, by the grammar; then some are damaged, as tokens or as
characters, and all are written with blanks, comments and letter cases of chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import zip_longest
from typing import TypeVar

NAMES = ("a", "b", "c", "d", "missing", "A", "TAGS", "_x", "$y", "not_a", "e1", "L", "nulls")
STRINGS = (
    "", "x", "abc", "it's", "''", "5", "05", "+5", "-5", " 5", "5 ", "5.0", "7.5", "true", "TRUE",
    "tRuE", "false", "NaN", "Infinity", "é", "日本", "\U0001f600", "x\ny", "\t", "--", "/*", "null",
    "\uff15", "\u0665", "-0.0", "0", "2147483648", "a\\b", '"', "\x00", "\x7f",
)  # fmt: skip
NUMBERS_OF_STRINGS = (
    "0", "-0", "00", "+0", "1", "5", "-5", "+5", "5L", "5l", "2147483647", "2147483648",
    "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "0000000000000000000000005", "5_0", "5,0",
    "0x5", "1e3", "1E+3", "1e-3", "1d", "1D", "1f", "5.0F", "5.", ".5", ".", "", " ", "+", "-",
    "--5", "+-5", "e5", "5e", "5e+", "NaN", "+NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf",
    "0.0", "-0.0", "-0", "0e999", "1e308", "1.8e308", "1e400", "-1e400", "1e-400", "4.9E-324",
    "2.4e-324", "2.5e-324", "0x1p3", "0X1.8P1", "0x.8p1", "0x8.p1d", "0xp1", "0x1p", "0x1",
    "-0x1p-1074", "0x1p-1075", "0x1.8p-1075", "0x1p1024", "0x1p99999999999", "0x1p-99999999999",
    "0x0p99999999999", "0x1.fffffffffffff8p1023", "0x1.fffffffffffff7fp1023", "\t5\n", "\x005\x1f",
    "\x7f5", "\xa05", "\u20035", "\uff15", "\u0665\u0660", "\U0001d7d3", "5\u0665", "-\u0665",
    "\uff15.5", "1.2.3", "..", "1..", "5.5.", "9007199254740993", "9007199254740993.0",
    "0.1", "0.10000000000000001", "2.2250738585072012e-308", "1" * 400, "0." + "0" * 400 + "1e400",
    "0." + "0" * 320 + "1e322", "1" + "0" * 400 + "e-400", "0" * 5000 + "5", "1e99999999999",
    "1e-99999999999", "0e99999999999", "1e0000000000000000003", "5dd", "5df", "5 d", "5e3.0",
    "179769313486231580793728971405301e276", "Infinityd", "NaNf", "0x1p3f", "true",
)  # fmt: skip
INTEGERS = (
    "0", "1", "5", "7", "50", "5L", "5l", "2147483647", "2147483648", "2147483647L", "4294967296",
    "9007199254740993", "9223372036854775807", "9223372036854775807L",
)  # fmt: skip
FLOATS = (
    "5.", "5.0", "5.5", ".5", "5E0", "5e3", "5.5e-3", "1e-5", "00.5", "007.", "1E+2", "1.e2",
    "4.9E-324", "1.7976931348623157E308", "9007199254740993.0", "123456789.125", "0.001", "1e7",
    "9999999.5", "1.0E10", "50.0",
)  # fmt: skip
BAD_NUMBERS = (
    "9223372036854775808", "99999999999999999999L", "0.0", "0.", ".0", "0e5", "1e400", "1e-400",
    "2.4E-324", "0.0e-5",
)  # fmt: skip
ODD_TOKENS = (
    "0L", "007", "5x", "5e", "1.2.3", "!=", "==", "#", "@", ";", "&&", "||", "*", "/", ".", "a.b",
    "a-b", "%", "[", "]", "{", "?", "!", "~", "^", "\\", '"x"', "`", "'", "'open", "/*", "/* *",
    "/x", "--", "-- end", "é", "日", "\U0001f600", "\x00", "\x7f", "\xa0", "\u2028", "\u212a", "ſ",
    "LIKE", "ESCAPE", "NOT", "IS", "IN", "BETWEEN", "AND", "OR", "(", ")", ",", "+", "-", "=",
    "<>", "<", ">=", "NULL", "TRUE", "''", "''''", "0x10", "1e+", "\ud83d",
)  # fmt: skip
BLANKS = (" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\r", "\f", "/* c */", "-- c\n", "/***/")
KEYWORDS = (
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH",
    "ENDSWITH",
)  # fmt: skip
ORDERS = (">", ">=", "<", "<=")

Tokens = list[str]
T = TypeVar("T")


def quoted(text: str) -> str:
    """``text`` as a literal."""
    return "'" + text.replace("'", "''") + "'"


class SqlGenerator:
    """Expressions and messages; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def message(self) -> dict[str, str]:
        """Some of the properties, most of them numbers or nearly so."""
        values = (NUMBERS_OF_STRINGS, STRINGS, ("5", "7", "50", "5.5", "abc", "true"))
        return {
            name: self._pick(self._pick(values))
            for name in NAMES
            if name != "missing" and self._random.random() < 0.7
        }

    def expression(self) -> str:
        """One expression: valid in syntax, nearly valid, or neither."""
        tokens = self._or(self._random.choice((0, 1, 1, 2, 2, 3)))
        chance = self._random.random()
        if chance < 0.25:
            tokens = self._damaged(tokens)
        elif chance < 0.35:
            tokens = [*tokens, *self._tail()]
        text = self._written(tokens)
        return self._cut(text) if self._random.random() < 0.06 else text

    def literal(self) -> str:
        """A literal of any type."""
        chance = self._random.random()
        if chance < 0.03:
            return self._pick(BAD_NUMBERS)
        if chance < 0.13:
            return self._pick(("TRUE", "FALSE", "NULL"))
        return self._pick(
            (self._pick(INTEGERS), self._pick(FLOATS), self._string(), self._string())
        )

    def _pick(self, choices: tuple[T, ...]) -> T:
        return self._random.choice(choices)

    def _string(self) -> str:
        return quoted(self._pick(STRINGS))

    def _or(self, depth: int) -> Tokens:
        return self._chain("OR", self._and, depth)

    def _and(self, depth: int) -> Tokens:
        return self._chain("AND", self._equality, depth)

    def _chain(self, word: str, operand: Callable[[int], Tokens], depth: int) -> Tokens:
        tokens = operand(depth)
        while self._random.random() < 0.25:
            tokens = [*tokens, word, *operand(depth)]
        return tokens

    def _equality(self, depth: int) -> Tokens:
        if self._random.random() < 0.6:
            return self._predicate(depth)
        tokens = self._comparison(depth)
        while self._random.random() < (0.4 if len(tokens) == 1 else 0.1):
            tokens += self._pick(
                (
                    ["=", *self._comparison(depth)],
                    ["=", self.literal()],
                    ["<>", *self._comparison(depth)],
                    ["IS", "NULL"],
                    ["IS", "NOT", "NULL"],
                )
            )
        return tokens

    def _predicate(self, depth: int) -> Tokens:
        """Usual expressions: a property, an operator and literals, perhaps in parentheses."""
        if depth > 0 and self._random.random() < 0.3:
            return [*self._pick((["NOT"], [])), "(", *self._or(depth - 1), ")"]
        name, number = self._pick(NAMES), self._pick((*INTEGERS, *FLOATS))
        return self._pick(
            (
                [name, self._pick(ORDERS), number],
                [number, self._pick(ORDERS), name],
                [name, self._pick(ORDERS), self._pick(NAMES)],
                [name, self._pick(("=", "<>")), self._pick((number, self._string(), "TRUE"))],
                [name, self._pick(("=", "<>")), self._pick(NAMES)],
                [name, "IS", *self._pick((["NOT"], [])), "NULL"],
                [name, "BETWEEN", "-", number, "AND", self._pick(INTEGERS)],
                [name, *self._comparison_tail(0)],
                [name, "NOT", "IN", "(", self._string(), ",", self._string(), ")"],
            )
        )

    def _comparison(self, depth: int) -> Tokens:
        tokens = self._unary(depth)
        while self._random.random() < (0.5 if len(tokens) == 1 else 0.08):
            tokens += self._comparison_tail(depth)
        return tokens

    def _comparison_tail(self, depth: int) -> Tokens:
        negated = ["NOT"] if self._random.random() < 0.4 else []
        test = self._pick(("CONTAINS", "STARTSWITH", "ENDSWITH"))
        strings = [self._string()]
        while self._random.random() < 0.6:
            strings += [",", self._string()]
        return self._pick(
            (
                [self._pick(ORDERS), *self._unary(depth)],
                [self._pick(ORDERS), self._pick((*INTEGERS, *FLOATS))],
                [*negated, test, self._string()],
                [*negated, "BETWEEN", *self._bound(depth), "AND", *self._bound(depth)],
                [*negated, "IN", "(", *strings, ")"],
            )
        )

    def _bound(self, depth: int) -> Tokens:
        chance = self._random.random()
        if chance < 0.5:
            return [self._pick((*INTEGERS, *FLOATS))]
        return [self.literal()] if chance < 0.7 else self._unary(depth)

    def _unary(self, depth: int) -> Tokens:
        chance = self._random.random()
        if chance < 0.16:
            return [self._pick(("+", "-", "NOT", "-")), *self._unary(depth)]
        if chance < 0.45 and depth > 0:
            return ["(", *self._or(depth - 1), ")"]
        return [self._pick(NAMES) if chance < 0.8 else self.literal()]

    def _damaged(self, tokens: Tokens) -> Tokens:
        tokens = list(tokens)
        for _ in range(self._pick((1, 1, 1, 2, 3))):
            place = self._random.randrange(len(tokens) + 1)
            choice = self._random.random()
            if choice < 0.4:
                tokens.insert(place, self._pick(ODD_TOKENS))
            elif choice < 0.7:
                del tokens[place : place + 1]
            elif choice < 0.85:
                tokens[place : place + 1] = [self._pick(ODD_TOKENS)]
            else:
                tokens = tokens[:place]
        return tokens

    def _tail(self) -> Tokens:
        return [self._pick((*ODD_TOKENS, *NAMES)) for _ in range(self._pick((1, 1, 2, 3)))]

    def _cut(self, text: str) -> str:
        place = self._random.randrange(len(text) + 1)
        return text[:place] if self._random.random() < 0.6 else text[:place] + text[place + 1 :]

    def _written(self, tokens: Tokens) -> str:
        parts = [self._blank(0.1)]
        for token, following in zip_longest(tokens, tokens[1:], fillvalue=""):
            parts.append(self._cased(token))
            glued = not (_is_word(token[-1:]) and _is_word(following[:1]))
            parts.append("" if glued and self._random.random() < 0.5 else self._blank(1.0))
        return "".join(parts)

    def _blank(self, likelihood: float) -> str:
        if self._random.random() >= likelihood:
            return ""
        return self._pick(BLANKS) + (self._pick(BLANKS) if self._random.random() < 0.1 else "")

    def _cased(self, token: str) -> str:
        if token not in KEYWORDS or self._random.random() < 0.7:
            return token
        return "".join(self._pick((letter.lower(), letter)) for letter in token)


def _is_word(character: str) -> bool:
    return character.isalnum() or character in ("_", "$", ".")
