"""The queues that a route gives to producers and consumers."""

from __future__ import annotations

from contrail.client.message import MessageQueue
from contrail.client.state.routes import RouteTable, TopicRoute
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData


def queue_data(name: str, *, read: int = 4, write: int = 4, perm: int = 6) -> QueueData:
    return QueueData(name, read, write, perm)


def broker(name: str, **addresses: str) -> BrokerData:
    by_id = {int(key.removeprefix("id")): value for key, value in addresses.items()}
    return BrokerData(name, "c", by_id or {0: f"{name}:10911"})


def route(*queues: QueueData, brokers: tuple[BrokerData, ...] = (), **more: str) -> TopicRoute:
    named = brokers or tuple(broker(queue.broker_name) for queue in queues)
    return TopicRoute.of("orders", TopicRouteData(queues, named, **more))  # type: ignore[arg-type]


def test_write_queues_are_ordered_by_broker_name_and_number() -> None:
    found = route(queue_data("b", write=2), queue_data("a", write=1)).write_queues
    assert found == (
        MessageQueue("orders", "a", 0),
        MessageQueue("orders", "b", 0),
        MessageQueue("orders", "b", 1),
    )


def test_a_broker_that_may_not_be_written_gives_no_write_queues() -> None:
    found = route(queue_data("a", perm=4), queue_data("b", write=1))
    assert {queue.broker_name for queue in found.write_queues} == {"b"}
    assert {queue.broker_name for queue in found.read_queues} == {"a", "b"}


def test_a_broker_without_a_master_gives_no_write_queues() -> None:
    found = route(queue_data("a"), brokers=(broker("a", id1="a:2"),))
    assert not found.write_queues
    assert len(found.read_queues) == 4


def test_read_queues_follow_their_own_count() -> None:
    found = route(queue_data("a", read=3, write=1))
    assert [queue.queue_id for queue in found.read_queues] == [0, 1, 2]
    assert [queue.queue_id for queue in found.write_queues] == [0]


def test_an_ordered_topic_keeps_the_queues_of_its_configuration() -> None:
    found = route(queue_data("a", write=8), order_config="a:2;b:1")
    assert [(queue.broker_name, queue.queue_id) for queue in found.write_queues] == [
        ("a", 0),
        ("a", 1),
        ("b", 0),
    ]


def test_a_template_gives_no_more_queues_than_asked_for() -> None:
    data = TopicRouteData((queue_data("a", read=8, write=8),), (broker("a"),))
    found = TopicRoute.from_template("new", data, 4)
    assert found.is_template
    assert found.write_queues == tuple(MessageQueue("new", "a", number) for number in range(4))


def test_a_table_returns_whether_a_route_changed() -> None:
    table = RouteTable()
    assert table.put(route(queue_data("a")))
    assert not table.put(route(queue_data("a")))
    assert table.put(route(queue_data("a", read=5)))


def test_a_table_has_masters_and_other_brokers_to_read_from() -> None:
    table = RouteTable()
    table.put(route(queue_data("a"), brokers=(broker("a", id0="a:1", id1="a:2"),)))
    assert table.master_of("a") == "a:1"
    assert table.address_of("a", 1) == "a:2"
    assert table.address_of("a", 7) == "a:1"
    assert table.master_of("b") is None
    assert table.address_of("b", 0) is None


def test_a_broker_that_no_route_names_any_more_is_forgotten() -> None:
    table = RouteTable()
    table.put(route(queue_data("a")))
    table.put(route(queue_data("b")))
    table.drop_unused_brokers()
    assert list(table.addresses) == ["b"]
