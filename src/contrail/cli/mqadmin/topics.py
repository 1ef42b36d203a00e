"""Topics: lists, routes, settings, statistics."""

from __future__ import annotations

from contrail.cli.mqadmin.java_text import comma_time, front, map_text
from contrail.cli.mqadmin.options import Call, Command, may, need, switch
from contrail.cli.topic_facts import require_topic
from contrail.client.admin_values import QueueStats, TopicStats
from contrail.client.blocking.admin import Admin
from contrail.client.state.allocation import Averagely
from contrail.errors import ClientError
from contrail.model import fastjson
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.bodies.topics import decode_topic_stats
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import MessageQueue

TOPIC = need("t", "topic", "topic name")
_RULE_WIDTH = 158


def topic_list(call: Call, admin: Admin) -> None:
    names = admin.topics()
    if not call.has("c"):
        for name in names:
            print(name)
        return
    print("{:<20}  {:<48}  {:<48}".format("#Cluster Name", "#Topic", "#Consumer Group"))
    for name in names:
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            _print_consumers(admin, name)


def _print_consumers(admin: Admin, topic: str) -> None:
    try:
        cluster, groups = admin.topic_clusters(topic)[0], admin.topic_consumers(topic)
    except ClientError:
        # The topic was deleted, or its broker is down: Apache prints such a line too.
        cluster, groups = "", []
    for group in groups or [""]:
        print(f"{front(cluster, 20):<20}  {front(topic, 64):<64}  {front(group, 64):<64}")


def topic_route(call: Call, admin: Admin) -> None:
    route = admin.topic_route(call.text("t"))
    if call.has("l"):
        _print_route(route)
    else:
        print(fastjson.dumps(fastjson.loads(route.encode())).decode())


def _print_route(route: TopicRouteData) -> None:
    line = "{:<45} {:<32} {:<50} {:<10} {:<11} {:<5}"
    heads = ("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    print(line.format(*heads))
    queues = {one.broker_name: one for one in route.queues}
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        queue = queues[broker.broker_name]
        places = map_text(dict(sorted(broker.addresses.items())))
        counts = (queue.read_queue_count, queue.write_queue_count, queue.perm)
        print(line.format(broker.cluster, broker.broker_name, places, *counts))
    print("-" * _RULE_WIDTH)
    reads = sum(one.read_queue_count for one in queues.values())
    writes = sum(one.write_queue_count for one in queues.values())
    print(line.format("Total:", len(queues), "", reads, writes, ""))


def topic_status(call: Call, admin: Admin) -> None:
    topic, parent = call.text("t"), call.maybe("c")
    stats = admin.topic_stats(topic) if parent is None else _stats_on(admin, topic, parent)
    line = "{:<32}  {:<4}  {:<20}  {:<20}    {}"
    print(line.format("#Broker Name", "#QID", "#Min Offset", "#Max Offset", "#Last Updated"))
    for one in stats.queues:
        last_ms = one.last_store_timestamp_ms
        cells = (front(one.queue.broker_name, 32), one.queue.queue_id)
        updated = comma_time(last_ms) if last_ms > 0 else ""
        print(line.format(*cells, one.queue_offset_min, one.queue_offset_max, updated))
    print(f"\nTopic Put TPS: {stats.put_per_second}")


def _stats_on(admin: Admin, topic: str, parent: str) -> TopicStats:
    """On the brokers of another topic, for queues that have no route of their own."""
    reaches: dict[MessageQueue, QueueStats] = {}
    for broker in admin.topic_route(parent).brokers:
        address = broker.addresses[min(broker.addresses)]
        answer = admin.ask_broker(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        table, _ = decode_topic_stats(answer.body)
        reaches |= {queue: QueueStats(queue, *reach) for queue, reach in table.items()}
    return TopicStats(topic, tuple(reaches[queue] for queue in sorted(reaches)))


def topic_cluster_list(call: Call, admin: Admin) -> None:
    for cluster in admin.topic_clusters(call.text("t")):
        print(cluster)


def allocate_mq(call: Call, admin: Admin) -> None:
    topic = call.text("t")
    require_topic(admin, topic)
    queues = admin.queues(topic)
    clients = call.text("i").split(",")
    shares = {
        client: [one.to_fields() for one in Averagely().allocate("aa", client, queues, clients)]
        for client in clients
    }
    print(fastjson.dumps({"result": shares}, pretty=False).decode())


COMMANDS = (
    Command(
        "topicList",
        "All topics; with -c the cluster and the consumer groups of each.",
        topic_list,
        (switch("c", "clusterModel", "with clusters and consumer groups"),),
        (206, 105, 300),
    ),
    Command(
        "topicRoute",
        "Where the queues of a topic are.",
        topic_route,
        (TOPIC, switch("l", "list", "as a table instead of JSON")),
        (105,),
    ),
    Command(
        "topicStatus",
        "How far each queue of a topic reaches.",
        topic_status,
        (TOPIC, may("c", "cluster", "cluster, or LMQ parent topic, whose brokers are asked")),
        (105, 202),
    ),
    Command(
        "topicClusterList",
        "The clusters that have a topic.",
        topic_cluster_list,
        (TOPIC,),
        (105,),
    ),
    Command(
        "allocateMQ",
        "How queues would be shared among clients.",
        allocate_mq,
        (TOPIC, need("i", "ipList", "clients, with commas between them")),
        (105,),
    ),
)
