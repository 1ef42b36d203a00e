"""The door: compile the text of a SQL92 filter once, ask it about each message."""

from __future__ import annotations

from contrail.broker.state.sql92.expressions import (
    Decide,
    EvaluationFailed,
    Properties,
    decide_of,
)
from contrail.broker.state.sql92.java_numbers import NumberInvalid
from contrail.broker.state.sql92.parser import parse_selector
from contrail.errors import FilterInvalid
from contrail.kernels.property_sieve import MEMORY_BYTES, NAMES_MAX
from contrail.model.properties import PAIR_END
from contrail.model.property_sieve import PropertySieve

# The compiled form of one character can take three hundred bytes.
EXPRESSION_CHARACTERS_MAX = 16_384

# How many verdicts a filter remembers, and the longest values it remembers one for.
_VERDICTS_MAX = 1024
_VERDICT_KEY_BYTES_MAX = 128

# TRUE, FALSE, unknown, or why there is no answer.
Answer = bool | None | EvaluationFailed | NumberInvalid


class Sql92Filter:
    """A compiled filter; immutable, so it may be shared."""

    __slots__ = ("__weakref__", "_decide", "sieve", "text")

    def __init__(self, text: str, decide: Decide, names: tuple[str, ...]) -> None:
        self.text = text
        self._decide = decide
        self.sieve = _sieve(decide, names)

    def matches(self, properties: Properties) -> bool:
        """Whether the message passes: unknown and failed evaluations keep it back."""
        return _passes(self._decide, properties)

    def evaluate(self, properties: Properties) -> Answer:
        """TRUE, FALSE or None for unknown; an evaluation that fails is returned as its error."""
        try:
            return self._decide(properties)
        except (EvaluationFailed, NumberInvalid) as problem:
            return problem


def compile_sql(text: str) -> Sql92Filter:
    """Compile ``text``.

    Raises:
        FilterInvalid: RocketMQ would not compile it either, and the message is the remark it would
            give; or the text exceeds a limit of ours, and the message names the limit.
    """
    if len(text) > EXPRESSION_CHARACTERS_MAX:
        raise FilterInvalid(
            f"the expression has {len(text)} characters; at most {EXPRESSION_CHARACTERS_MAX} can be"
        )
    expression, names = parse_selector(text)
    return Sql92Filter(text, decide_of(expression), names)


class _Verdicts(dict[bytes, bool]):
    """A filter's verdicts on the stored values of its properties, as far as it was asked lately.

    For the same values it always says the same, and the values of properties repeat.
    """

    __slots__ = ("_decide", "_names")

    def __init__(self, decide: Decide, names: tuple[str, ...]) -> None:
        self._decide = decide
        self._names = names

    def __missing__(self, key: bytes) -> bool:
        names = self._names
        if len(names) == 1:
            # Most filters, and what their values cost when hardly any repeats.
            properties = {names[0]: key.decode("utf-8", "replace")} if key else {}
        else:
            # To a filter without names an empty key is one value, which is not looked at.
            values = zip(names, key.split(PAIR_END), strict=False)
            properties = {name: value.decode("utf-8", "replace") for name, value in values if value}
        verdict = _passes(self._decide, properties)
        if len(key) <= _VERDICT_KEY_BYTES_MAX:
            if len(self) >= _VERDICTS_MAX:
                self.clear()
            self[key] = verdict
        return verdict


def _sieve(decide: Decide, names: tuple[str, ...]) -> PropertySieve | None:
    # Each name is looked for in every message: with this many, messages are better decoded.
    if len(names) > NAMES_MAX:
        return None
    stored_names = tuple(name.encode() for name in names)
    return PropertySieve(stored_names, _Verdicts(decide, names), bytearray(MEMORY_BYTES))


def _passes(decide: Decide, properties: Properties) -> bool:
    try:
        return decide(properties) is True
    except (EvaluationFailed, NumberInvalid):
        return False
