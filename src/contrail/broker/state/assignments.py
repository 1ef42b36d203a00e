"""The queues that a member of a group gets when the broker assigns them.

Two answers are no list. A member keeps its queues when there is none (None), and gives all of them
up when it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contrail.protocol.json_style import MessageQueue

ALL_QUEUES = -1

_Share = Callable[[int, int, Sequence[MessageQueue]], list[MessageQueue]]


def _average(index: int, count: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    """Runs of neighbours; the first members get one more."""
    size, more = divmod(len(queues), count)
    start = index * size + min(index, more)
    return list(queues[start : start + size + (index < more)])


def _by_circle(index: int, count: int, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
    return list(queues[index::count])


_STRATEGIES: dict[str, _Share] = {"AVG": _average, "AVG_BY_CIRCLE": _by_circle}


def pulled_queues(
    client_id: str, members: Sequence[str], queues: Sequence[MessageQueue], strategy: str
) -> list[MessageQueue] | None:
    """The queues that a member pulls; None for a strategy that brokers do not know."""
    share = _STRATEGIES.get(strategy)
    if share is None:
        return None
    return _share_of(client_id, sorted(members), sorted(queues), share)


def popped_queues(
    client_id: str,
    members: Sequence[str],
    queues: Sequence[MessageQueue],
    strategy: str,
    share_count: int,
) -> list[MessageQueue] | None:
    """The queues that a member pops.

    A queue is shared with the ``share_count`` members behind its own in the order of their ids.
    With 0, or when that is all of them, every member pops all queues of every broker.
    """
    share = _STRATEGIES.get(strategy)
    if share is None:
        return None
    members, queues = sorted(members), sorted(queues)
    if share_count <= 0 or share_count >= len(members) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ALL_QUEUES) for queue in queues))
    if client_id not in members:
        return []
    index = members.index(client_id)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    found: list[MessageQueue] = []
    for distance in range(share_count + 1):
        found += share((index + distance) % len(members), len(members), queues)
    return list(dict.fromkeys(found))


def _share_of(
    client_id: str, members: Sequence[str], queues: Sequence[MessageQueue], share: _Share
) -> list[MessageQueue]:
    if client_id not in members or not queues:
        return []
    return share(members.index(client_id), len(members), queues)
