"""Brokers: status, settings, upkeep, groups' lag on them."""

from __future__ import annotations

from collections.abc import Callable

from contrail.cli.mqadmin.choosing import masters_of, on_each
from contrail.cli.mqadmin.java_text import front, second_time, truth
from contrail.cli.mqadmin.options import Call, Command, may, need
from contrail.client.admin_values import BrokerAddress
from contrail.client.blocking.admin import Admin
from contrail.client.state.lag import group_lag
from contrail.protocol.bodies.consume_stats import decode_consume_stats_list
from contrail.protocol.codes import RequestCode

_BROKER = may("b", "brokerAddr", "broker address")
_CLUSTER = may("c", "clusterName", "all brokers of this cluster")
_UPKEEP_CLUSTER = may("c", "cluster", "all masters of this cluster")
_STATS_TIMEOUT_MS = 50_000


def broker_status(call: Call, admin: Admin) -> None:
    address = call.maybe("b")
    if address is not None:
        _print_status(admin, address, "")
        return
    for broker in admin.brokers(cluster=call.text("c")):
        _print_status(admin, broker.address, f"{broker.address:<24} ")


def _print_status(admin: Admin, address: str, before: str) -> None:
    for name, value in sorted(admin.broker_runtime(address).values.items()):
        print(f"{before}{name:<32}: {value}")


def get_broker_config(call: Call, admin: Admin) -> None:
    address = call.maybe("b")
    if address is not None:
        _print_config(admin, address, f"============{address}============")
        return
    brokers = admin.brokers(cluster=call.text("c"))
    masters = {one.broker_name: one.address for one in brokers if one.is_master}
    for one in brokers:
        _print_config(admin, one.address, _heading(one, masters.get(one.broker_name, "NO_MASTER")))


def _heading(broker: BrokerAddress, master: str) -> str:
    if broker.is_master:
        return f"============Master: {broker.address}============"
    return f"============My Master: {master}=====Slave: {broker.address}============"


def _print_config(admin: Admin, address: str, heading: str) -> None:
    settings = admin.broker_config(address)
    print(heading)
    for name, value in sorted(settings.items()):
        print(f"{name:<50}=  {value}")
    print()


def update_broker_config(call: Call, admin: Admin) -> None:
    settings = {call.text("k"): call.text("v")}
    if call.has("b"):
        addresses = [call.text("b")]
    else:
        cluster = call.text("c")
        brokers = admin.brokers(cluster=cluster) if call.has("a") else masters_of(admin, cluster)
        addresses = [one.address for one in brokers]

    def update(address: str) -> None:
        admin.update_broker_config(settings, broker=address)
        print(f"update broker config success, {address}")

    on_each(addresses, update)


def broker_consume_stats(call: Call, admin: Admin) -> None:
    address, level = call.text("b"), call.number("l")
    timeout_ms = call.number("t", _STATS_TIMEOUT_MS)
    with call.target.admin(timeout_ms=timeout_ms) as patient:
        fields = {"isOrder": truth(call.truth("o"))}
        answer = patient.ask_broker(address, RequestCode.GET_BROKER_CONSUME_STATS, fields)
    line = "{:<64}  {:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20}  {}"
    heads = ("#Topic", "#Group", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset")
    print(line.format(*heads, "#Diff", "#LastTime"))
    total = 0
    for group, stats in sorted(decode_consume_stats_list(answer.body).items()):
        for one in group_lag(group, stats).queues:
            diff = one.broker_offset - one.consumer_offset
            total += diff
            # Apache shows only queues with a consumed message.
            if diff >= level and one.last_timestamp_ms > 0:
                broker = (front(one.queue.broker_name, 32), one.queue.queue_id)
                offsets = (one.broker_offset, one.consumer_offset, diff)
                last = second_time(one.last_timestamp_ms)
                print(line.format(front(one.queue.topic, 64), group, *broker, *offsets, last))
    print(f"\nDiff Total: {total}")


def _upkeep(work: Callable[..., list[str]]) -> Callable[[Call, Admin], None]:
    """A command that starts a cleanup: on one broker, on those of a cluster, or on all."""

    def run(call: Call, admin: Admin) -> None:
        broker = call.maybe("b")
        cluster = None if broker is not None else call.maybe("c")
        work(admin, cluster=cluster, broker=broker)
        print("success")

    return run


COMMANDS = (
    Command(
        "brokerStatus",
        "The runtime info of a broker, or of all of a cluster.",
        broker_status,
        (_BROKER, _CLUSTER),
        (106, 28),
        one_of=("b", "c"),
    ),
    Command(
        "getBrokerConfig",
        "The settings of a broker, or of all of a cluster.",
        get_broker_config,
        (_BROKER, _CLUSTER),
        (106, 26),
        any_of=("b", "c"),
    ),
    Command(
        "updateBrokerConfig",
        "Change a setting of a broker, or of all masters of a cluster.",
        update_broker_config,
        (
            _BROKER,
            may("c", "clusterName", "all masters of this cluster"),
            may("a", "updateAllBroker", "with -c: replicas too"),
            need("k", "key", "the setting's name"),
            need("v", "value", "its value"),
        ),
        (106, 25),
        any_of=("b", "c"),
    ),
    Command(
        "brokerConsumeStats",
        "How far every group is on the queues of a broker.",
        broker_consume_stats,
        (
            need("b", "brokerAddr", "broker address"),
            may("t", "timeoutMillis", "how long the broker has to answer, in ms (50000)"),
            may("l", "level", "only queues with at least this many messages left (0)"),
            may("o", "order", "true for topics in order only (false)"),
        ),
        (106, 317),
    ),
    Command(
        "cleanExpiredCQ",
        "Have queue files removed whose messages are gone.",
        _upkeep(Admin.clean_expired_queues),
        (_BROKER, _UPKEEP_CLUSTER),
        (106, 306),
    ),
    Command(
        "cleanUnusedTopic",
        "Have the data of topics removed that have no settings any more.",
        _upkeep(Admin.clean_unused_topics),
        (_BROKER, _UPKEEP_CLUSTER),
        (106, 316),
    ),
    Command(
        "deleteExpiredCommitLog",
        "Have messages past their age removed now.",
        _upkeep(Admin.delete_expired_segments),
        (_BROKER, _UPKEEP_CLUSTER),
        (106, 329),
    ),
)
