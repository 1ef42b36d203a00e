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

# The compiled form of one character can take three hundred bytes.
EXPRESSION_CHARACTERS_MAX = 16_384

# TRUE, FALSE, unknown, or why there is no answer.
Answer = bool | None | EvaluationFailed | NumberInvalid


class Sql92Filter:
    """A compiled filter; immutable, so it may be shared."""

    __slots__ = ("_decide", "text")

    def __init__(self, text: str, decide: Decide) -> None:
        self.text = text
        self._decide = decide

    def matches(self, properties: Properties) -> bool:
        """Whether the message passes: unknown and failed evaluations keep it back."""
        try:
            return self._decide(properties) is True
        except (EvaluationFailed, NumberInvalid):
            return False

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
    return Sql92Filter(text, decide_of(parse_selector(text)))
