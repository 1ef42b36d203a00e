"""The remark on a token that cannot stand where it stands: the token, its place, the kinds allowed.

RocketMQ lists the kinds that its parser tried at the token, in their order, and then those that its
lookaheads tried, token sequences included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contrail.broker.state.sql92.lexer import KIND_TEXTS, Kind, Tokens, escaped
from contrail.broker.state.sql92.lookahead import Listener, signed_operand_end
from contrail.errors import FilterInvalid

PARSE_EXCEPTION = "org.apache.rocketmq.filter.parser.ParseException: "

_SEQUENCE_TOKENS_MAX = 100


@dataclass(frozen=True, slots=True)
class PairAhead:
    """A lookahead over two tokens from ``index`` on."""

    index: int
    first: Kind
    second: Kind

    def report(self, tokens: Tokens, listener: Listener) -> None:
        """Tell ``listener`` which kinds were tried where."""
        listener(self.first, self.index)
        if tokens[self.index].kind is self.first:
            listener(self.second, self.index + 1)


@dataclass(frozen=True, slots=True)
class SignedOperandAhead:
    """A lookahead over a plus and its operand from ``index`` on."""

    index: int

    def report(self, tokens: Tokens, listener: Listener) -> None:
        """Tell ``listener`` which kinds were tried where."""
        signed_operand_end(tokens, self.index, listener)


def syntax_error(
    tokens: Tokens,
    index: int,
    wanted: Iterable[Kind],
    lookaheads: Iterable[PairAhead | SignedOperandAhead],
) -> FilterInvalid:
    """The refusal of the token at ``index``."""
    sequences = _Sequences(index, wanted)
    for lookahead in lookaheads:
        lookahead.report(tokens, sequences.listen)
    entries = sequences.finish()
    shown = _encountered(tokens, index, max(map(len, entries)))
    line, column = tokens.place(tokens[index])
    heading = "Was expecting:" if len(entries) == 1 else "Was expecting one of:"
    expected = "".join(map(_entry_text, entries))
    return FilterInvalid(
        f'{PARSE_EXCEPTION}Encountered "{shown}" at line {line}, column {column}.\n'
        f"{heading}\n    {expected}"
    )


class _Sequences:
    """Token sequences that were tried, collected from single attempts."""

    def __init__(self, index: int, wanted: Iterable[Kind]) -> None:
        self._index = index
        self._entries: list[tuple[Kind, ...]] = [(kind,) for kind in sorted(wanted)]
        self._path: list[Kind] = []

    def listen(self, kind: Kind, index: int) -> None:
        """``kind`` was tried at ``index``, after the tokens tried before it."""
        distance = index - self._index + 1
        if not 0 <= distance < _SEQUENCE_TOKENS_MAX:
            return
        if distance == len(self._path) + 1:
            self._path.append(kind)
        elif self._path:
            self._keep(tuple(self._path))
            if distance > 0:
                self._path[distance - 1 :] = [kind]

    def finish(self) -> list[tuple[Kind, ...]]:
        """All entries, the one under way included."""
        if self._path:
            self._keep(tuple(self._path))
        return self._entries

    def _keep(self, path: tuple[Kind, ...]) -> None:
        # RocketMQ takes a path to be listed already when the last entry has another length.
        known = any(entry == path for entry in self._entries)
        if not known and (not self._entries or len(self._entries[-1]) == len(path)):
            self._entries.append(path)


def _encountered(tokens: Tokens, index: int, count: int) -> str:
    shown = []
    for token in (tokens[place] for place in range(index, index + count)):
        if token.kind is Kind.END:
            shown.append(KIND_TEXTS[Kind.END])
            break
        shown.append(f' {KIND_TEXTS[token.kind]} "{escaped(token.image)} "')
    return " ".join(shown)


def _entry_text(entry: tuple[Kind, ...]) -> str:
    return "".join(f"{KIND_TEXTS[kind]} " for kind in entry) + "...\n    "
