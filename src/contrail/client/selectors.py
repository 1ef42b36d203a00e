"""Queue selectors: which queue of a topic a message goes to, by an argument of the application.

Any function of the topic's queues, the message and the argument is a selector; RocketMQ's own
selectors are here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence

from contrail.client.message import Message, MessageQueue
from contrail.errors import MessageInvalid
from contrail.kernels.java_hash import java_hash
from contrail.model.shown import shown

Selector = Callable[[Sequence[MessageQueue], Message, object], MessageQueue]

_ROOM_SEPARATOR = "@"


def java_hash_of(argument: object) -> int:
    """Java's ``hashCode`` of a text or a number, so that all clients choose the same queue.

    Raises:
        MessageInvalid: the argument is neither.
    """
    if isinstance(argument, str):
        return java_hash(argument.encode("utf-8", "surrogatepass"))
    if isinstance(argument, bool):
        return 1231 if argument else 1237
    if isinstance(argument, int) and -(1 << 63) <= argument < 1 << 63:
        if -(1 << 31) <= argument < 1 << 31:
            return argument
        folded = (argument ^ ((argument & (1 << 64) - 1) >> 32)) & 0xFFFFFFFF
        return folded - (1 << 32) if folded >= 1 << 31 else folded
    raise MessageInvalid(
        f"selector_arg is {shown(argument)}: the hash selector takes a str or an int of 64 bits"
    )


class HashSelector:
    """``SelectMessageQueueByHash``: equal arguments, equal queue, while the queues are the same."""

    def __call__(
        self, queues: Sequence[MessageQueue], message: Message, argument: object
    ) -> MessageQueue:
        return queues[abs(java_hash_of(argument)) % len(queues)]


class RandomSelector:
    """``SelectMessageQueueByRandom``: any queue; the argument is ignored."""

    def __init__(self, choose: Callable[[int], int] = random.randrange) -> None:
        self._choose = choose

    def __call__(
        self, queues: Sequence[MessageQueue], message: Message, argument: object
    ) -> MessageQueue:
        return queues[self._choose(len(queues))]


class MachineRoomSelector:
    """``SelectMessageQueueByMachineRoom``: only queues of brokers in the given rooms.

    A broker's name gives its room: ``room@broker``. With an argument the queue is chosen by its
    hash, without one at random.
    """

    def __init__(
        self, rooms: Collection[str], choose: Callable[[int], int] = random.randrange
    ) -> None:
        self._rooms = frozenset(rooms)
        self._choose = choose

    def __call__(
        self, queues: Sequence[MessageQueue], message: Message, argument: object
    ) -> MessageQueue:
        near = [queue for queue in queues if self._is_near(queue)]
        if not near:
            names = sorted({queue.broker_name for queue in queues})
            raise MessageInvalid(
                f"topic {message.topic!r} has no queue in the machine rooms "
                f"{', '.join(sorted(self._rooms))}: its brokers are {', '.join(names)}, and a "
                "broker's name must be room@name"
            )
        if argument is None:
            return near[self._choose(len(near))]
        return near[abs(java_hash_of(argument)) % len(near)]

    def _is_near(self, queue: MessageQueue) -> bool:
        room, separator, _ = queue.broker_name.partition(_ROOM_SEPARATOR)
        return bool(separator) and room in self._rooms
