"""The body of LIST_FIGURES: what a page about a whole broker shows, as columns.

A JSON object of arrays. Names stand in it once, everything else refers to them by their place.

| array | an entry for each | is |
| --- | --- | --- |
| ``topics`` | topic of the broker, behind them others that are subscribed to | name |
| ``readQueues``, ``writeQueues``, ``perms`` | topic of the broker | its settings |
| ``putRates`` | topic of the broker | messages stored a second, over a minute |
| ``queueMins``, ``queueMaxs`` | queue of these topics, by the larger count | its ends |
| ``groups`` | group with settings, offsets or members | name |
| ``consumeTypes``, ``messageModels`` | group | place in RocketMQ's enum, -1 without members |
| ``memberCounts`` | group | how many entries of ``members`` are its |
| ``clients`` | client of any group | client id |
| ``members`` | member of each group | place in ``clients`` |
| ``subscribers``, ``subscribed`` | subscription of a member's group | places of group, topic |
| ``pairGroups``, ``pairTopics`` | group with offsets on a topic of the broker | places |
| ``pairWanted`` | pair | 1 if its group subscribes to it, or has told no subscriptions |
| ``pairRates`` | pair | messages read a second, over a minute |
| ``offsets`` | queue of each pair's topic | the group's offset, -1 for none |

Beside them stand ``brokerName``, ``takenMs``, ``settingsCount`` (how many groups have settings, the
first of ``groups``), ``timers`` (messages that wait for their time) and ``halves`` (open
transactions).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate, pairwise
from typing import Any, Self

from contrail.model.fastjson import FastJsonError
from contrail.protocol.json_style import body_errors

# A number costs 0.1 µs to write, a name three times as much.
_NUMBERS_PER_STEP = 128
_TEXTS = frozenset({"topics", "groups", "clients"})
_RATES = frozenset({"putRates", "pairRates"})
_SCALARS = frozenset({"takenMs", "settingsCount", "timers", "halves"})

_INTEGER_MAX = (1 << 63) - 1


@dataclass(slots=True, kw_only=True)
class Figures:
    """The columns of one broker; see the table above. Filled by the broker, then only read."""

    broker_name: str = ""
    taken_ms: int = 0
    settings_count: int = 0
    timers: int = 0
    halves: int = 0
    topics: list[str] = field(default_factory=list)
    read_queues: list[int] = field(default_factory=list)
    write_queues: list[int] = field(default_factory=list)
    perms: list[int] = field(default_factory=list)
    put_rates: list[float] = field(default_factory=list)
    queue_mins: list[int] = field(default_factory=list)
    queue_maxs: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    consume_types: list[int] = field(default_factory=list)
    message_models: list[int] = field(default_factory=list)
    member_counts: list[int] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    subscribers: list[int] = field(default_factory=list)
    subscribed: list[int] = field(default_factory=list)
    pair_groups: list[int] = field(default_factory=list)
    pair_topics: list[int] = field(default_factory=list)
    pair_wanted: list[int] = field(default_factory=list)
    pair_rates: list[float] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    @property
    def queue_counts(self) -> list[int]:
        """How many queues each topic has in ``queue_mins``, ``queue_maxs`` and ``offsets``."""
        return [max(both) for both in zip(self.read_queues, self.write_queues, strict=True)]

    def queue_spans(self) -> list[tuple[int, int]]:
        """Where each topic's queues begin and end in ``queue_mins`` and ``queue_maxs``."""
        return _spans(self.queue_counts)

    def member_spans(self) -> list[tuple[int, int]]:
        """Where each group's members begin and end in ``members``."""
        return _spans(self.member_counts)

    def offset_spans(self) -> list[tuple[int, int]]:
        """Where each pair's queues begin and end in ``offsets``."""
        counts = self.queue_counts
        return _spans([counts[topic] for topic in self.pair_topics])

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read the columns, and see to it that they fit to each other.

        Raises:
            RequestRejected: the body is malformed.
        """
        with body_errors("the figures of a broker"):
            document = _document(body)
            found = cls(
                **{name: _column(document, key) for name, key in zip(_NAMES, _KEYS, strict=True)}
            )
            found._check()
            return found

    def _check(self) -> None:
        topic_count, group_count, pair_count = len(self.perms), len(self.groups), len(self.offsets)
        _same("topics", self.perms, self.read_queues, self.write_queues, self.put_rates)
        _same("groups", self.groups, self.consume_types, self.message_models, self.member_counts)
        _same("subscriptions", self.subscribers, self.subscribed)
        _same("pairs", self.pair_groups, self.pair_topics, self.pair_wanted, self.pair_rates)
        _within("topics", self.pair_topics, topic_count)
        _within("topics", self.subscribed, len(self.topics))
        _within("groups", [*self.pair_groups, *self.subscribers], group_count)
        _within("clients", self.members, len(self.clients))
        if not 0 <= self.settings_count <= group_count:
            raise FastJsonError("there are fewer groups than settings")
        if topic_count > len(self.topics):
            raise FastJsonError("there are fewer topics than settings")
        if sum(self.member_counts) != len(self.members):
            raise FastJsonError("the members do not fit to their counts")
        if not sum(self.queue_counts) == len(self.queue_mins) == len(self.queue_maxs):
            raise FastJsonError("the ends do not fit to the counts of queues")
        counts = self.queue_counts
        if sum(counts[topic] for topic in self.pair_topics) != pair_count:
            raise FastJsonError("the offsets do not fit to the counts of queues")


def figures_steps(figures: Figures) -> Generator[None, None, bytes]:
    """The body, with a step for each piece of a column."""
    columns: list[str] = []
    for name, key in zip(_NAMES, _KEYS, strict=True):
        value = getattr(figures, name)
        if isinstance(value, list):
            shown = yield from _array_steps(value)
            columns.append(f'"{key}":[{shown}]')
        else:
            columns.append(f'"{key}":{json.dumps(value)}')
        yield
    return ("{" + ",".join(columns) + "}").encode()


def _array_steps(values: Sequence[object]) -> Generator[None, None, str]:
    pieces = []
    for begin in range(0, len(values), _NUMBERS_PER_STEP):
        shown = json.dumps(values[begin : begin + _NUMBERS_PER_STEP], separators=(",", ":"))
        pieces.append(shown[1:-1])
        yield
    return ",".join(pieces)


def _spans(counts: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(counts, initial=0)))


def _keys() -> Iterator[tuple[str, str]]:
    for one in fields(Figures):
        first, *others = one.name.split("_")
        yield one.name, first + "".join(word.capitalize() for word in others)


_NAMES, _KEYS = zip(*_keys(), strict=True)


def _document(body: bytes) -> dict[str, Any]:
    # The reader of RocketMQ's dialect looks at each value by itself, and here are 100,000.
    try:
        document = json.loads(body)
    except ValueError as error:
        raise FastJsonError(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise FastJsonError("it is no object")
    return document


def _column(document: dict[str, Any], key: str) -> Any:
    value = document.get(key)
    if key == "brokerName":
        _require(key, [value], str)
        return value
    if key in _SCALARS:
        _require(key, [value], int)
        return value
    if not isinstance(value, list):
        raise FastJsonError(f"{key} is no array")
    if key in _RATES:
        return [float(one) for one in _require(key, value, int, float)]
    return _require(key, value, str if key in _TEXTS else int)


def _require(key: str, values: list[Any], *kinds: type) -> list[Any]:
    if not set(map(type, values)) <= set(kinds):
        raise FastJsonError(f"{key} has a value of another type")
    if kinds == (int,) and values and not -1 <= min(values) <= max(values) <= _INTEGER_MAX:
        raise FastJsonError(f"{key} has a number outside its range")
    return values


def _same(what: str, *columns: Sequence[object]) -> None:
    if len({len(one) for one in columns}) > 1:
        raise FastJsonError(f"the columns of {what} are not of one length")


def _within(what: str, places: Sequence[int], count: int) -> None:
    if places and not 0 <= min(places) <= max(places) < count:
        raise FastJsonError(f"a place is outside {what}")
