"""Order: a failing message holds up its queue alone, and consumers may come and go."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import count, groupby

import pytest

from tests.interop.clients.driver import Event
from tests.interop.clients.kinds import Kinds
from tests.interop.clients.parties import Party
from tests.interop.clients.registry import clients_of
from tests.interop.clients.session import JavaSession
from tests.interop.clients.topics import create_group, create_topic
from tests.interop.clients.traffic import Queue, numbered, queue_of

COUNT = 12
FAILING = "k-5"
FAILURES = 2


@pytest.mark.proves("kinds.order.fifo", "kinds.shown.java-orderly")
@pytest.mark.parametrize("client", clients_of("orderly with a failing message"), indirect=True)
def test_orderly_with_a_failing_message(party: Party, kinds: Kinds, topic: str) -> None:
    group = f"group_{topic}"
    create_topic(kinds, topic, queue_count=1)
    create_group(kinds, group)
    party.send(topic, COUNT)
    with party.consume(topic, group, fail_times={FAILING: FAILURES}, orderly=True) as consuming:
        kinds.wait_for(lambda: len(consuming.received()) >= COUNT + FAILURES, topic, step_ms=0)
        events = consuming.received()
    assert sorted(consuming.received_keys()) == sorted(numbered(1, COUNT) + [FAILING] * FAILURES)
    for queue_offsets in by_queue(events).values():
        # The same message again and again, then the next one.
        assert [one for one, _ in groupby(queue_offsets)] == list(range(1 + max(queue_offsets)))


def by_queue(events: Iterable[Event]) -> dict[Queue, list[int]]:
    queues: dict[Queue, list[int]] = defaultdict(list)
    for event in events:
        queues[queue_of(event)].append(event["queue_offset"])
    return queues


class OrderedTraffic:
    """Numbered messages of a few keys, and the messages that consumers of one group receive."""

    def __init__(self, session: JavaSession, kinds: Kinds, topic: str, shards: str) -> None:
        self._session = session
        self._kinds = kinds
        self._topic = topic
        self._shards = shards
        self._numbers = count(1)
        self._sent: list[str] = []
        session.do("producer", name=topic, group=f"senders_{topic}")

    def join(self, name: str) -> None:
        self._session.do(
            "consumer", name=name, group=f"group_{self._topic}", topic=self._topic, orderly=True
        )

    def flow_until_owned(self, name: str, queues: set[Queue]) -> None:
        """Send until ``name`` has received messages of all those queues, from now on."""
        mark = len(self._session.of("received", name))
        self._flow(lambda: self._owned(name, mark) == queues, f"{name} to have all queues")

    def flow_until_split(self, name: str, count: int) -> None:
        """Send until ``name``, which has just joined, has received messages of that many queues."""
        self._flow(lambda: len(self._owned(name, 0)) == count, f"{name} to have its share")

    def check(self, *names: str) -> None:
        """All messages were received, each key in its order, by whichever consumer."""
        sent = set(self._sent)
        self._kinds.wait_for(lambda: set(self._seen(names)) == sent, "all of it", step_ms=0)
        # A queue that goes to another consumer may be received again from its last stored offset.
        firsts = list(dict.fromkeys(self._seen(names)))
        for shard in self._shards:
            received = [key for key in firsts if key.startswith(shard)]
            assert received == [key for key in self._sent if key.startswith(shard)]
        self._session.close(self._topic)

    def _flow(self, condition: Callable[[], bool], what: str) -> None:
        def sent_more() -> bool:
            self._send_round()
            return condition()

        self._kinds.wait_for(sent_more, what, step_ms=0)

    def _send_round(self) -> None:
        number = next(self._numbers)
        keys = [f"{shard}#{number}" for shard in self._shards]
        self._session.send(self._topic, self._topic, keys, shard_by="#")
        self._sent += keys

    def _owned(self, name: str, mark: int) -> set[Queue]:
        return {queue_of(event) for event in self._session.of("received", name)[mark:]}

    def _seen(self, names: tuple[str, ...]) -> list[str]:
        """In the order in which the one process of all these consumers saw them."""
        events = self._session.events
        return [e["key"] for e in events if e["event"] == "received" and e["by"] in names]


@pytest.mark.proves("kinds.order.under-rebalancing")
@pytest.mark.parametrize("client", clients_of("order per key"), indirect=True)
def test_order_per_key_while_consumers_join_and_leave(
    session: JavaSession, kinds: Kinds, topic: str
) -> None:
    queues = create_topic(kinds, topic, queue_count=2)
    traffic = OrderedTraffic(session, kinds, topic, shards="abcdefgh")
    one, two, three = (f"{topic}-{number}" for number in range(3))
    traffic.join(one)
    traffic.flow_until_owned(one, queues)
    traffic.join(two)
    traffic.flow_until_split(two, len(queues) // 2)
    session.close(two)
    traffic.flow_until_owned(one, queues)
    traffic.join(three)
    traffic.flow_until_split(three, len(queues) // 2)
    session.close(one)
    traffic.flow_until_owned(three, queues)
    traffic.check(one, two, three)
    session.close(three)


@pytest.mark.proves("kinds.order.under-rebalancing")
@pytest.mark.parametrize("client", clients_of("global order"), indirect=True)
def test_order_of_one_queue_while_consumers_join_and_leave(
    session: JavaSession, kinds: Kinds, topic: str
) -> None:
    """Global order: the one queue has one consumer at a time."""
    queues = create_topic(kinds, topic, queue_count=1, broker_count=1)
    traffic = OrderedTraffic(session, kinds, topic, shards="a")
    one, two = f"{topic}-1", f"{topic}-2"
    traffic.join(one)
    traffic.flow_until_owned(one, queues)
    traffic.join(two)
    session.close(one)
    traffic.flow_until_owned(two, queues)
    traffic.join(one)
    session.close(two)
    traffic.flow_until_owned(one, queues)
    traffic.check(one, two)
    session.close(one)
