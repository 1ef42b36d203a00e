"""LIST_FIGURES: with one request, the numbers that a page about all topics and groups shows.

Nothing is read from the log: every number is in memory. The ends of all queues come first, then
the groups' offsets: a group that keeps up meanwhile is shown without lag, never with too much.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, Protocol

from contrail.broker.handlers.consume_progress import GroupsByName
from contrail.broker.state.consumer_offsets import SEPARATOR, UNKNOWN, ConsumerOffsets
from contrail.broker.state.consumers import ConsumerGroup, ConsumerTable
from contrail.clock import Clock
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.figures import Figures, figures_steps
from contrail.protocol.bodies.heartbeat import ConsumeType, MessageModel
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from contrail.wire.peer import Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

# The work of a step: 8 queues are as dear as a row of the other sliced requests.
_QUEUES_PER_STEP = 8
_OFFSETS_PER_STEP = 64
_CONSUME_TYPES = {kind: place for place, kind in enumerate(ConsumeType)}
_MESSAGE_MODELS = {kind: place for place, kind in enumerate(MessageModel)}
_OFFLINE = -1


class WaitingCounts(NamedTuple):
    """How many messages wait for their time, or for the end of their transaction."""

    timers: int
    halves: int


class TopicsByName(Protocol):
    """The topics there are."""

    @property
    def topics(self) -> Mapping[str, TopicConfig]: ...


class QueueEnds(Protocol):
    """Where queues begin and end; asking reads no message."""

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int: ...

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...


class Rates(Protocol):
    """Messages a second, over the last minute."""

    def topic_put_per_second(self, topic: str) -> float: ...

    def group_get_per_second(self, topic: str, group: str) -> float: ...


class FigureHandlers:
    """Answers the figures of all topics and groups."""

    def __init__(
        self,
        *,
        offsets: ConsumerOffsets,
        consumers: ConsumerTable,
        groups: GroupsByName,
        topics: TopicsByName,
        store: QueueEnds,
        rates: Rates,
        waiting: Callable[[], WaitingCounts],
        broker_name: str,
        clock: Clock,
        in_slices: InSlices = in_one_go,
    ) -> None:
        self._handle = in_slices(self.steps)
        self._offsets = offsets
        self._consumers = consumers
        self._groups = groups
        self._topics = topics
        self._store = store
        self._rates = rates
        self._waiting = waiting
        self._broker_name = broker_name
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {RequestCode.LIST_FIGURES: self._handle}

    def steps(self, request: Request, peer: Peer) -> Steps:
        """Topics and groups as they were at the beginning, each queue when it was looked at."""
        waiting = self._waiting()
        figures = Figures(
            broker_name=self._broker_name,
            taken_ms=self._clock.now_ms(),
            timers=waiting.timers,
            halves=waiting.halves,
        )
        look = _Look(figures)
        topics = list(self._topics.topics.values())
        for name in list(self._groups.groups):
            look.groups.place(name)
        figures.settings_count = len(figures.groups)
        for config in topics:
            look.topics.place(config.topic)
        yield
        for config in topics:
            yield from self._topic(config, look)
        yield from self._pairs(look)
        for group in list(self._consumers.groups.values()):
            yield from _members(group, look)
        look.close()
        return Response(body=(yield from figures_steps(figures)))

    def _topic(self, config: TopicConfig, look: _Look) -> Generator[None, None, None]:
        figures, name, key = look.figures, config.topic, config.topic.encode()
        figures.read_queues.append(config.read_queue_count)
        figures.write_queues.append(config.write_queue_count)
        figures.perms.append(int(config.perm))
        figures.put_rates.append(self._rates.topic_put_per_second(name))
        queues = range(max(config.read_queue_count, config.write_queue_count))
        for begin in range(0, len(queues), _QUEUES_PER_STEP):
            for queue_id in queues[begin : begin + _QUEUES_PER_STEP]:
                figures.queue_mins.append(self._store.queue_offset_min(key, queue_id))
                figures.queue_maxs.append(self._store.queue_offset_max(key, queue_id))
            yield

    def _pairs(self, look: _Look) -> Generator[None, None, None]:
        """Every group with offsets on a topic of the table."""
        figures, counts = look.figures, look.figures.queue_counts
        for key in self._offsets.committed_keys():
            topic, found, group = key.partition(SEPARATOR)
            place = look.topics.known(topic)
            if found and SEPARATOR not in group and place is not None:
                offsets = self._offsets.of_group(group, topic)
                figures.pair_groups.append(look.groups.place(group))
                figures.pair_topics.append(place)
                figures.pair_wanted.append(int(self._consumers.subscribes(group, topic)))
                figures.pair_rates.append(self._rates.group_get_per_second(topic, group))
                for begin in range(0, counts[place], _OFFSETS_PER_STEP):
                    piece = range(begin, min(begin + _OFFSETS_PER_STEP, counts[place]))
                    figures.offsets += [offsets.get(queue_id, UNKNOWN) for queue_id in piece]
                    yield
            yield


class _Names:
    """A column of names, and the place of each."""

    def __init__(self, column: list[str]) -> None:
        self._column = column
        self._places: dict[str, int] = {}

    def place(self, name: str) -> int:
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = len(self._column)
            self._column.append(name)
        return found

    def known(self, name: str) -> int | None:
        return self._places.get(name)


class _Online(NamedTuple):
    """A group with members."""

    consume_type: int
    message_model: int
    clients: list[int]


class _Look:
    """Figures that are being filled."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self.topics = _Names(figures.topics)
        self.groups = _Names(figures.groups)
        self.clients = _Names(figures.clients)
        self.online: dict[int, _Online] = {}

    def close(self) -> None:
        """Write the columns about groups, which are all known now."""
        figures, offline = self.figures, _Online(_OFFLINE, _OFFLINE, [])
        for place in range(len(figures.groups)):
            found = self.online.get(place, offline)
            figures.consume_types.append(found.consume_type)
            figures.message_models.append(found.message_model)
            figures.member_counts.append(len(found.clients))
            figures.members += found.clients


def _members(group: ConsumerGroup, look: _Look) -> Generator[None, None, None]:
    place, figures = look.groups.place(group.name), look.figures
    clients = dict.fromkeys(look.clients.place(one) for one in group.client_ids())
    look.online[place] = _Online(
        _CONSUME_TYPES[group.consume_type], _MESSAGE_MODELS[group.message_model], list(clients)
    )
    for topic in list(group.subscriptions):
        figures.subscribers.append(place)
        figures.subscribed.append(look.topics.place(topic))
        yield
    yield
