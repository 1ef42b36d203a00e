"""The rows of the lists of topics and groups, from one look at the cluster. No request of its own.

Their cost grows with the columns of the look: 2,300 groups on 10,000 queues are a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from contrail.insight.looks import UNKNOWN, ClusterLook
from contrail.model.group import PREDEFINED_GROUPS, is_system_group
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from contrail.protocol.bodies.figures import Figures
from contrail.protocol.bodies.heartbeat import ConsumeType, MessageModel

_CONSUME_TYPES = [one.value for one in ConsumeType]
N = TypeVar("N", int, float)
_MESSAGE_MODELS = [one.value for one in MessageModel]


@dataclass(slots=True)
class GroupRow:
    """A group on all brokers; ``members`` is None where brokers do not tell it in a list."""

    group: str
    is_internal: bool = False
    has_settings: bool = False
    members: int | None = 0
    model: str | None = None
    consume_type: str | None = None
    topics: list[str] = field(default_factory=list)
    lag: int = 0
    consumed_per_second: float = 0.0


@dataclass(slots=True)
class TopicRow:
    """A topic on all brokers; ``messages`` and the rate are None where a broker does not tell."""

    topic: str
    kind: str
    brokers: list[str] = field(default_factory=list)
    queues: int = 0
    messages: int | None = 0
    put_per_second: float | None = 0.0
    groups: int = 0
    lag: int = 0


@dataclass(slots=True)
class _Found:
    """A group while its row is made."""

    row: GroupRow
    clients: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)


def group_rows(look: ClusterLook) -> list[GroupRow]:
    """Every group by name, the system's too; its lag is counted as brokers do (317)."""
    found: dict[str, _Found] = {}
    for figures in look.figures.values():
        here = [found.setdefault(name, _Found(_new_group(name))) for name in figures.groups]
        for one in here[: figures.settings_count]:
            one.row.has_settings = True
        _take_members(figures, here)
        for group, topic, lag, rate in _lags(figures):
            one = here[group]
            one.row.lag += lag
            one.row.consumed_per_second += rate
            one.topics.add(figures.topics[topic])
    for one in found.values():
        one.row.members = len(one.clients) if look.knows_members else None
        one.row.topics = sorted(name for name in one.topics if not name.startswith(RETRY_PREFIX))
    return [found[name].row for name in sorted(found)]


def _new_group(name: str) -> GroupRow:
    return GroupRow(name, is_internal=name in PREDEFINED_GROUPS or is_system_group(name))


def _take_members(figures: Figures, here: list[_Found]) -> None:
    for place, (begin, end) in enumerate(figures.member_spans()):
        one = here[place]
        one.clients.update(figures.clients[client] for client in figures.members[begin:end])
        # The first broker that has members tells how the group consumes.
        if figures.consume_types[place] != UNKNOWN and one.row.model is None:
            one.row.model = _MESSAGE_MODELS[figures.message_models[place]]
            one.row.consume_type = _CONSUME_TYPES[figures.consume_types[place]]
    for group, topic in zip(figures.subscribers, figures.subscribed, strict=True):
        here[group].topics.add(figures.topics[topic])


def _lags(figures: Figures) -> Iterator[tuple[int, int, int, float]]:
    """Group, topic, lag and rate of each pair that counts: wanted, and with write queues."""
    ends, maxs, offsets = figures.queue_spans(), figures.queue_maxs, figures.offsets
    for pair, (begin, _) in enumerate(figures.offset_spans()):
        topic = figures.pair_topics[pair]
        count = figures.write_queues[topic]
        if not (figures.pair_wanted[pair] and count):
            continue
        first = ends[topic][0]
        reached = maxs[first : first + count]
        places = offsets[begin : begin + count]
        lag = sum(
            [
                end - max(place, 0)
                for end, place in zip(reached, places, strict=True)
                # A topic that was made again may be shorter than its groups' offsets.
                if end > place
            ]
        )
        yield figures.pair_groups[pair], topic, lag, figures.pair_rates[pair]


def queue_lags(look: ClusterLook, groups: Collection[str]) -> dict[tuple[str, str, str, int], int]:
    """The lag of some groups on each queue, by group, topic, broker and queue id."""
    found: dict[tuple[str, str, str, int], int] = {}
    for broker, figures in look.figures.items():
        ends, maxs = figures.queue_spans(), figures.queue_maxs
        for pair, (begin, _) in enumerate(figures.offset_spans()):
            group = figures.groups[figures.pair_groups[pair]]
            topic = figures.pair_topics[pair]
            count = figures.write_queues[topic]
            if group not in groups or not (figures.pair_wanted[pair] and count):
                continue
            first = ends[topic][0]
            places = figures.offsets[begin : begin + count]
            reached = maxs[first : first + count]
            for queue_id, (end, place) in enumerate(zip(reached, places, strict=True)):
                key = (group, figures.topics[topic], broker, queue_id)
                found[key] = max(0, end - max(place, 0))
    return found


def topic_rows(look: ClusterLook, clusters: frozenset[str]) -> list[TopicRow]:
    """Every topic by name; ``clusters`` have topics of their own names, as brokers have."""
    own = {*clusters, *look.figures, *(f"{one}_REPLY_TOPIC" for one in clusters)}
    rows: dict[str, TopicRow] = {}
    groups: dict[str, set[str]] = {}
    for broker, figures in look.figures.items():
        for place, (begin, end) in enumerate(figures.queue_spans()):
            name = figures.topics[place]
            row = rows.setdefault(name, TopicRow(name, topic_kind(name, own)))
            row.brokers.append(broker)
            row.queues += end - begin
            row.messages = _plus(row.messages, _held(figures, begin, end))
            rate = figures.put_rates[place]
            row.put_per_second = _plus(row.put_per_second, None if rate < 0 else rate)
        for group, topic, lag, _ in _lags(figures):
            name = figures.topics[topic]
            rows[name].lag += lag
            groups.setdefault(name, set()).add(figures.groups[group])
    for name, consuming in groups.items():
        rows[name].groups = len(consuming)
    return [rows[name] for name in sorted(rows)]


def topic_ends(look: ClusterLook) -> dict[str, int | None]:
    """How many messages each topic has ever had; None where a broker does not tell."""
    ends: dict[str, int | None] = {}
    for figures in look.figures.values():
        for place, (begin, end) in enumerate(figures.queue_spans()):
            maxs = figures.queue_maxs[begin:end]
            name = figures.topics[place]
            ends[name] = _plus(ends.get(name, 0), None if UNKNOWN in maxs else sum(maxs))
    return ends


def topic_kind(topic: str, own: set[str] | frozenset[str] = frozenset()) -> str:
    """``normal``, ``retry``, ``dlq`` or ``system``; ``own`` are names of clusters and brokers."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    return "system" if topic in own or is_system_topic(topic) else "normal"


def _held(figures: Figures, begin: int, end: int) -> int | None:
    mins, maxs = figures.queue_mins[begin:end], figures.queue_maxs[begin:end]
    if UNKNOWN in mins or UNKNOWN in maxs:
        return None
    return sum(maxs) - sum(mins)


def _plus(known: N | None, more: N | None) -> N | None:
    return None if known is None or more is None else known + more
