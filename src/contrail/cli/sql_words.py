"""Errors of an SQL92 expression, in the words of the command line.

Brokers answer with the remarks of RocketMQ's parser, which name its classes and list its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from contrail.broker.state.sql92 import compile_sql, unread_rest
from contrail.errors import FilterInvalid

_JAVA_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+: ")
_UNEXPECTED = re.compile(r'^Encountered "(.*?)" at line (\d+), column (\d+)\.', re.DOTALL)
_TOKEN = re.compile(r'"?(?:<\w+>|\S+?)"? "(.*) "$', re.DOTALL)
_LEXICAL = re.compile(
    r"^Lexical error at line (\d+), column (\d+)\. +Encountered: (?:\"(.*)\" \(\d+\), |<EOF> )"
    r"after : \"(.*)\"$",
    re.DOTALL,
)
_END = "<EOF>"
_VALUE = "a property, a number, a text in single quotes or a parenthesis"
_LONG = (1 << 63) - 1

# Refusals behind the grammar, by the pattern of the parser's remark.
_REFUSALS: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
    (
        re.compile(r"^Expression will not result in a boolean value: (.*)$", re.DOTALL),
        lambda found: f"{found[1]} is no condition: compare it with something",
    ),
    (
        re.compile(r"^'NULL' cannot be compared\.$"),
        lambda found: "nothing is equal to NULL: write IS NULL or IS NOT NULL",
    ),
    (
        re.compile(r"^Value '(.*)' cannot be compared\.$", re.DOTALL),
        lambda found: (
            f"{found[1]} is no number: <, <=, >, >= and BETWEEN compare numbers; = and <> also "
            "compare texts"
        ),
    ),
    (
        re.compile(r"^'(.*)' cannot be compared with '(.*)'$", re.DOTALL),
        lambda found: f"{found[1]} cannot be compared with {found[2]}",
    ),
    (
        re.compile(r"^Expected a property for In expression, got: (.*)$", re.DOTALL),
        lambda found: f"IN needs a property on its left, not {found[1]}",
    ),
    (
        re.compile(r"^Illegal values of between, left value\((.*)\) must .* value\((.*)\)$"),
        lambda found: f"BETWEEN {found[1]} AND {found[2]}: the lower number comes first",
    ),
    (
        re.compile(r"^Illegal values of between, values can not be null!$"),
        lambda found: "BETWEEN needs two numbers, not NULL",
    ),
    (
        re.compile(r'^For input string: "(.*)"$'),
        lambda found: f"{found[1]} is too large: whole numbers go up to {_LONG}",
    ),
    (
        re.compile(r"^(\S+) is greater than \S+$"),
        lambda found: f"{found[1]} is too large a number",
    ),
    (
        re.compile(r"^(\S+) is less than \S+$"),
        lambda found: f"{found[1]} is too small a number: write 0",
    ),
]
_INSTEAD = {
    "!": "write <> for unequal and NOT for the opposite",
    '"': "texts stand in single quotes",
    "&": "write AND",
    "|": "write OR",
    ".": "names of properties hold letters, digits, _ and $ only",
    "`": "names of properties stand without quotes",
}


def sql_problem(expression: str) -> str | None:
    """The part that a broker would refuse or misread; None if there is none."""
    try:
        compile_sql(expression)
        rest = unread_rest(expression)
    except FilterInvalid as error:
        return in_plain_words(str(error))
    if not rest:
        return None
    return f"brokers read no further than to {rest!r}: {_why_unread(rest)}"


def in_plain_words(remark: str) -> str:
    """A parser's remark without its class and its list of tokens."""
    text = _JAVA_CLASS.sub("", remark.strip())
    lexical, unexpected = _LEXICAL.match(text), _UNEXPECTED.match(text)
    if lexical is not None:
        return _unreadable(lexical)
    if unexpected is not None:
        return _unfit(unexpected, text)
    for pattern, words in _REFUSALS:
        if found := pattern.match(text):
            return words(found)
    return text.partition("\n")[0]


def _unreadable(found: re.Match[str]) -> str:
    character, before = found[3], found[4]
    if character is None:
        quoted = before.startswith(("'", "\\'"))
        return "a text has no closing quote" if quoted else "its last sign means nothing there"
    character = character.removeprefix("\\")
    sign = before or character
    instead = _INSTEAD.get(sign[:1])
    return f"{_place(found[1], found[2])}: {sign!r} means nothing here" + (
        f"; {instead}" if instead else ""
    )


def _unfit(found: re.Match[str], text: str) -> str:
    wanted = _wanted(text)
    if found[1] == _END:
        return f"it ends too soon: {wanted} is missing"
    token = _TOKEN.match(found[1].strip())
    shown = (token[1] if token else found[1]).replace("\\'", "'")
    return f"{_place(found[2], found[3])}: {wanted} must stand there, not {shown}"


def _wanted(text: str) -> str:
    """The parser's list of tokens by their purpose."""
    tokens = {line.strip().removesuffix("...").strip() for line in text.splitlines()[2:]}
    tokens.discard("")
    if "<ID>" in tokens:
        return _VALUE
    if tokens == {"<STRING_LITERAL>"}:
        return "a text in single quotes"
    if tokens == {'"NOT"', '"NULL"'}:
        return "NULL or NOT NULL"
    if '")"' in tokens:
        return "a closing parenthesis" if len(tokens) > 2 else "a comma or a closing parenthesis"
    names = sorted(token.strip('"') for token in tokens)
    return " or ".join(names) if len(names) <= 3 else "a comparison"


def _place(line: str, column: str) -> str:
    return f"column {column}" if line in ("0", "1") else f"line {line}, column {column}"


def _why_unread(rest: str) -> str:
    if rest[:4].upper() == "LIKE":
        return "there is no LIKE; CONTAINS, STARTSWITH and ENDSWITH compare parts of texts"
    if rest.startswith(")"):
        return "no parenthesis was opened"
    if rest[0] in "+-":
        return "there is no arithmetic"
    return "join conditions by AND or OR; a quote inside a text is written twice"
