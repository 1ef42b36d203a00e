"""Consumers of a group join and leave: every queue has an owner again, and no message is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from contrail.testing import eventually
from tests.interop.clients.driver import Driver, RunningDriver
from tests.interop.clients.registry import clients_of
from tests.interop.clients.steady import SteadySender
from tests.interop.clients.target import Cluster
from tests.interop.clients.topics import create_topic
from tests.interop.clients.traffic import Queue, consumer, queue_of
from tests.interop.peers import PeerFailed

REBALANCE_TIMEOUT_S = 120.0
POLL_S = 0.2
# How many messages of each queue the second receives before it leaves. The C++ client comes to a
# stop for good when a queue is taken from it and given back while its old pull of it still waits:
# each broker's notice occupies one of its threads, and none is left to read the pull's answer.
SETTLED_COUNT = 3


@pytest.mark.proves("apache.clients.rebalancing")
@pytest.mark.proves("broker.running.clients-spread", case="java5")
@pytest.mark.parametrize("client", clients_of("rebalancing"), indirect=True)
def test_rebalancing(client: Driver, cluster: Cluster, topic: str) -> None:
    queues = create_topic(cluster, topic)
    sender = SteadySender(client, cluster, topic)
    with sender, member(client, cluster, topic, "one") as one:
        wait_until(lambda: owned_since(one, 0) == queues, sender, one)
        with member(client, cluster, topic, "two") as two:
            wait_until(lambda: has_split(queues, one, two), sender, one, two)
        # The second has left, and said so.
        mark = len(one.events)
        wait_until(lambda: owned_since(one, mark) == queues, sender, one)
        sender.stop()
        sent = {event["key"] for event in sender.acknowledged()}
        wait_until(lambda: sent <= received_keys(one, two), None, one)


def member(client: Driver, cluster: Cluster, topic: str, instance: str) -> RunningDriver:
    """A consumer with the client's own rebalance interval: the broker notifies it of changes."""
    return consumer(client, cluster, topic, instance=instance, rebalance_ms=20_000, timeout_s=300)


def has_split(queues: set[Queue], one: RunningDriver, two: RunningDriver) -> bool:
    """Whether both have queues, no queue has two owners, and none has no owner.

    Looked at from the last message that the first received of a queue now with the second, which
    has received some of each of its queues.
    """
    counts = Counter(queue_of(event) for event in two.of("received"))
    theirs = set(counts)
    events = one.events
    handed_over = [
        position
        for position, event in enumerate(events)
        if event["event"] == "received" and queue_of(event) in theirs
    ]
    mine = owned_since(one, 1 + max(handed_over, default=-1))
    settled = min(counts.values(), default=0) >= SETTLED_COUNT
    return bool(mine) and settled and mine | theirs == queues


def owned_since(running: RunningDriver, mark: int) -> set[Queue]:
    """The queues whose messages it received after the event at ``mark``."""
    return {queue_of(event) for event in running.events[mark:] if event["event"] == "received"}


def received_keys(*members: RunningDriver) -> set[str]:
    return {event["key"] for running in members for event in running.of("received")}


def wait_until(
    condition: Callable[[], bool], sender: SteadySender | None, *members: RunningDriver
) -> None:
    """Poll, with messages flowing; on a timeout the error has all consumers' events."""

    def holds() -> bool:
        if condition():
            return True
        if sender is not None:
            sender.keep_going()
        if not all(one.running for one in members):
            raise PeerFailed(_told(members))
        return False

    eventually(holds, lambda: _told(members), timeout_s=REBALANCE_TIMEOUT_S, pause_s=POLL_S)


def _told(members: Sequence[RunningDriver]) -> str:
    owned = [sorted(owned_since(one, 0)) for one in members]
    return f"not in {REBALANCE_TIMEOUT_S} s; seen so far: {owned}\n" + "\n".join(map(str, members))
