"""Allocates a topic's queues to a group's members: RocketMQ's six strategies.

Every member of a group, in whatever language, computes its share from the same two sorted lists.
Unless all compute the same, a queue is read twice, or by no member.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from contrail.client.state.consistent_hash import HashRing
from contrail.errors import ClientError, ConfigError
from contrail.protocol.json_style import MessageQueue

T = TypeVar("T")

VIRTUAL_NODES = 10


class AllocationStrategy(Protocol):
    """How queues are shared. Both lists must be sorted, as ``sorted_*`` sort them."""

    @property
    def name(self) -> str: ...

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        """The queues of ``client_id``; none for a client that is not in ``client_ids``.

        Raises:
            ClientError: a list is empty.
        """
        ...


def java_order(text: str) -> bytes:
    """A sort key by UTF-16 units, as Java compares text; code points sort otherwise."""
    return text.encode("utf-16-be", "surrogatepass")


def sorted_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    return sorted(
        queues, key=lambda q: (java_order(q.topic), java_order(q.broker_name), q.queue_id)
    )


def sorted_client_ids(client_ids: Iterable[str]) -> list[str]:
    return sorted(client_ids, key=java_order)


class _Part(NamedTuple):
    """A member, and the queues and members it shares with."""

    group: str
    client_id: str
    queues: Sequence[MessageQueue]
    client_ids: Sequence[str]

    @property
    def place(self) -> int:
        return self.client_ids.index(self.client_id)


class _Sharing(ABC):
    """A strategy whose members share all queues; ``_share`` is called for those that take part."""

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        for given, what in ((client_id, "client id"), (queues, "queue"), (client_ids, "member")):
            if not given:
                raise ClientError(f"queues of group {group!r} cannot be shared: there is no {what}")
        part = _Part(group, client_id, queues, client_ids)
        return self._share(part) if client_id in client_ids else []

    @abstractmethod
    def _share(self, part: _Part) -> list[MessageQueue]: ...


class Averagely(_Sharing):
    """Each member gets a run of neighbouring queues; the first members get one queue more."""

    name = "AVG"

    def _share(self, part: _Part) -> list[MessageQueue]:
        index = part.place
        least, left_over = divmod(len(part.queues), len(part.client_ids))
        start = index * least + min(index, left_over)
        return list(part.queues[start : start + least + (index < left_over)])


class AveragelyByCircle(_Sharing):
    """Queues dealt out like cards."""

    name = "AVG_BY_CIRCLE"

    def _share(self, part: _Part) -> list[MessageQueue]:
        return list(part.queues[part.place :: len(part.client_ids)])


class ConsistentHash(_Sharing):
    """Members on a hash ring: a member that joins or leaves moves few queues."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_node_count: int = VIRTUAL_NODES) -> None:
        if virtual_node_count < 0:
            raise ConfigError(f"virtual_node_count must be 0 or more, it is {virtual_node_count}")
        self._virtual_node_count = virtual_node_count

    def _share(self, part: _Part) -> list[MessageQueue]:
        ring = HashRing(part.client_ids, self._virtual_node_count)
        own = part.client_id
        return [queue for queue in part.queues if ring.client_for(queue_text(queue)) == own]


class ByMachineRoom(_Sharing):
    """Only queues of brokers named ``room@broker``, for the rooms given, shared evenly."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def _share(self, part: _Part) -> list[MessageQueue]:
        near = [queue for queue in part.queues if self._is_near(queue.broker_name)]
        index, count = part.place, len(part.client_ids)
        least, left_over = divmod(len(near), count)
        share = near[index * least : (index + 1) * least]
        if index < left_over:
            share.append(near[index + least * count])
        return share

    def _is_near(self, broker_name: str) -> bool:
        # Java's split forgets empty pieces at the end: "room@broker@" still has two.
        pieces = broker_name.rstrip("@").split("@")
        return len(pieces) == 2 and pieces[0] in self._rooms


class MachineRoomNearby(_Sharing):
    """Queues go to members in their own machine room; queues of a room without members go to all.

    ``queue_room`` and ``client_room`` return the room of a queue's broker and of a client id.
    """

    def __init__(
        self,
        inner: AllocationStrategy,
        *,
        queue_room: Callable[[MessageQueue], str],
        client_room: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._queue_room = queue_room
        self._client_room = client_room
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def _share(self, part: _Part) -> list[MessageQueue]:
        group, client_id, queues, client_ids = part
        queues_by_room = _by_room(queues, self._queue_room, "queue")
        clients_by_room = _by_room(client_ids, self._client_room, "client")
        here = self._client_room(client_id)
        share: list[MessageQueue] = []
        if here in queues_by_room:
            near = queues_by_room.pop(here)
            share += self._inner.allocate(group, client_id, near, clients_by_room[here])
        for room in sorted(queues_by_room.keys() - clients_by_room.keys(), key=java_order):
            share += self._inner.allocate(group, client_id, queues_by_room[room], client_ids)
        return share


class ByConfig:
    """The given queues, whichever members there are: the queues are shared by hand."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = tuple(queues)

    def allocate(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        client_ids: Sequence[str],
    ) -> list[MessageQueue]:
        return list(self._queues)


_BY_NAME: dict[str, Callable[[], AllocationStrategy]] = {
    Averagely.name: Averagely,
    AveragelyByCircle.name: AveragelyByCircle,
    ConsistentHash.name: ConsistentHash,
}
_NEED_MORE = {
    ByMachineRoom.name: "ByMachineRoom(rooms)",
    "MACHINE_ROOM_NEARBY": "MachineRoomNearby(inner, queue_room=..., client_room=...)",
    ByConfig.name: "ByConfig(queues)",
}


def strategy_named(name: str) -> AllocationStrategy:
    """A strategy by its name, if it has no other arguments.

    Raises:
        ConfigError: no strategy has that name, or it needs more; the message says what to write.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]()
    if name in _NEED_MORE:
        raise ConfigError(f"strategy {name} needs to be told more: pass {_NEED_MORE[name]}")
    raise ConfigError(
        f"no allocation strategy is named {name!r}: use one of {', '.join(_BY_NAME)}, "
        f"or pass {', '.join(_NEED_MORE.values())}"
    )


def queue_text(queue: MessageQueue) -> str:
    """A queue as Java prints it: its position on the ring is the hash of this text."""
    topic, broker_name, queue_id = queue
    return f"MessageQueue [topic={topic}, brokerName={broker_name}, queueId={queue_id}]"


def _by_room(things: Iterable[T], room_of: Callable[[T], str], what: str) -> dict[str, list[T]]:
    by_room = defaultdict[str, list[T]](list)
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ClientError(f"{what} {thing!r} has no machine room: {what}_room must name one")
        by_room[room].append(thing)
    return by_room
