"""Routes of topics: queues that may be written and read, and brokers' addresses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from contrail.model.topic import Perm
from contrail.protocol.bodies.routes import QueueData, TopicRouteData
from contrail.protocol.json_style import MessageQueue

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """One topic's route, and the queues it gives to producers and to consumers."""

    topic: str
    data: TopicRouteData
    write_queues: tuple[MessageQueue, ...]
    read_queues: tuple[MessageQueue, ...]
    # The topic does not exist yet: a broker creates it from its template with the first send.
    is_template: bool = False

    @classmethod
    def of(cls, topic: str, data: TopicRouteData, *, is_template: bool = False) -> TopicRoute:
        return cls(
            topic,
            data,
            write_queues=tuple(_write_queues(topic, data)),
            read_queues=tuple(_read_queues(topic, data)),
            is_template=is_template,
        )

    @classmethod
    def from_template(cls, topic: str, data: TopicRouteData, queue_count_max: int) -> TopicRoute:
        """The route that ``topic`` will have once a broker has made it from the template topic."""
        queues = tuple(_at_most(queue, queue_count_max) for queue in data.queues)
        return cls.of(topic, replace(data, queues=queues), is_template=True)

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(queue.broker_name for queue in self.write_queues))

    @property
    def awaits_master(self) -> bool:
        """Whether queues may be written once one of their brokers leads: none does now."""
        without = {one.broker_name for one in self.data.brokers if _has_no_master(one.addresses)}
        return any(
            queue.perm & Perm.WRITE and queue.broker_name in without for queue in self.data.queues
        )


def _has_no_master(addresses: Mapping[int, str]) -> bool:
    return bool(addresses) and MASTER_ID not in addresses


def _at_most(queue: QueueData, count: int) -> QueueData:
    least = min(count, queue.read_queue_count)
    return replace(queue, read_queue_count=least, write_queue_count=least)


def _write_queues(topic: str, data: TopicRouteData) -> Iterator[MessageQueue]:
    if data.order_config:
        yield from _ordered_queues(topic, data.order_config)
        return
    masters = {broker.broker_name for broker in data.brokers if MASTER_ID in broker.addresses}
    for queue in sorted(data.queues, key=lambda queue: queue.broker_name):
        if queue.perm & Perm.WRITE and queue.broker_name in masters:
            for queue_id in range(queue.write_queue_count):
                yield MessageQueue(topic, queue.broker_name, queue_id)


def _ordered_queues(topic: str, order_config: str) -> Iterator[MessageQueue]:
    """``broker-a:4;broker-b:4``: the queues of an ordered topic, whichever brokers are up."""
    for piece in order_config.split(";"):
        name, _, count = piece.partition(":")
        if count.strip().isdecimal():
            for queue_id in range(int(count)):
                yield MessageQueue(topic, name.strip(), queue_id)


def _read_queues(topic: str, data: TopicRouteData) -> Iterator[MessageQueue]:
    for queue in data.queues:
        if queue.perm & Perm.READ:
            for queue_id in range(queue.read_queue_count):
                yield MessageQueue(topic, queue.broker_name, queue_id)


@dataclass(slots=True)
class RouteTable:
    """Every route this client has asked for, and the addresses they name."""

    routes: dict[str, TopicRoute] = field(default_factory=dict)
    # Addresses by broker name and id; an address in one topic's route counts for all.
    addresses: dict[str, dict[int, str]] = field(default_factory=dict)
    # Names with other brokers than a master.
    replicated: set[str] = field(default_factory=set)

    def put(self, route: TopicRoute) -> bool:
        """Take a route as the newest; whether it differs from the former one."""
        known = self.routes.get(route.topic)
        self.routes[route.topic] = route
        for broker in route.data.brokers:
            self.addresses[broker.broker_name] = dict(broker.addresses)
            if broker.addresses.keys() <= {MASTER_ID}:
                self.replicated.discard(broker.broker_name)
            else:
                self.replicated.add(broker.broker_name)
        return known is None or known.data != route.data or known.is_template != route.is_template

    def drop_unused_brokers(self) -> None:
        """Forget the addresses of brokers that no route names any more."""
        named = {
            broker.broker_name for route in self.routes.values() for broker in route.data.brokers
        }
        for name in [name for name in self.addresses if name not in named]:
            del self.addresses[name]
            self.replicated.discard(name)

    def believe_leader(self, broker_name: str, address: str) -> bool:
        """Take a broker's word for the master, until the next route; whether it is now.

        Only an address that a route gave for the same name is believed.
        """
        known = self.addresses.get(broker_name, {})
        for broker_id, own in known.items():
            if own == address:
                former = known.pop(MASTER_ID, None)
                known[MASTER_ID] = address
                if broker_id != MASTER_ID:
                    del known[broker_id]
                    if former is not None:
                        known[broker_id] = former
                return True
        return False

    def master_of(self, broker_name: str) -> str | None:
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def address_of(self, broker_name: str, broker_id: int) -> str | None:
        """The address to pull from: the broker with that id, else the master, else any replica."""
        known = self.addresses.get(broker_name, {})
        return known.get(broker_id) or known.get(MASTER_ID) or next(iter(known.values()), None)

    def all_addresses(self) -> Iterator[tuple[str, int, str]]:
        """Broker name, id and address of every known broker."""
        for name, by_id in self.addresses.items():
            for broker_id, address in by_id.items():
                yield name, broker_id, address
