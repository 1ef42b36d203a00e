"""Consumer groups: their progress, their members, their producers' connections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from contrail.cli.exits import NotFound
from contrail.cli.group_facts import require_group
from contrail.cli.mqadmin.java_text import front, second_time
from contrail.cli.mqadmin.options import Call, Command, may, need, switch
from contrail.cli.mqadmin.running_info import is_push, running_text, stuck_lines
from contrail.client.admin_values import ClientConnection, GroupConnections, GroupLag, QueueLag
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.errors import ClientError
from contrail.insight.groups import queue_owners, running_infos
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.connections import (
    decode_consumer_connection,
    decode_producer_table,
)
from contrail.protocol.bodies.running_info import ConsumerRunningInfo
from contrail.protocol.client_versions import client_version_name
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import MessageQueue

_GROUP = need("g", "consumerGroup", "consumer group name")
_BROKER = may("b", "brokerAddr", "ask this broker only")
_LINE = "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20} {:<20}{}"
_LINE_WITH_CLIENT = "{:<64}  {:<32}  {:<4}  {:<20}  {:<20}  {:<20} {:<20} {:<20}{}"
_OVERVIEW = "{:<64}  {:<6}  {:<24} {:<5}  {:<14}  {:<7}  {}"
# Members need a while to agree on queues; before that subscriptions are not compared.
_SETTLED_MS = 120_000
_PULL_TYPE = "CONSUME_ACTIVELY"


def consumer_progress(call: Call, admin: Admin) -> None:
    group = call.maybe("g")
    if group is None:
        _print_all_groups(admin)
        return
    require_group(admin, group, may_be_made=False)
    lag = admin.lag(group, call.maybe("t"))
    clients = _clients_by_queue(admin, group) if call.truth("s") else None
    _print_progress(lag, clients)


def _print_progress(lag: GroupLag, clients: Mapping[MessageQueue, str] | None) -> None:
    line = _LINE if clients is None else _LINE_WITH_CLIENT
    heads = ["#Topic", "#Broker Name", "#QID", "#Broker Offset", "#Consumer Offset"]
    heads += [] if clients is None else ["#Client IP"]
    print(line.format(*heads, "#Diff", "#Inflight", "#LastTime"))
    for one in lag.queues:
        client = [] if clients is None else [clients.get(one.queue, "N/A")]
        last = second_time(one.last_timestamp_ms) if one.last_timestamp_ms else "N/A"
        place = (front(one.queue.topic, 64), front(one.queue.broker_name, 32), one.queue.queue_id)
        offsets = (one.broker_offset, one.consumer_offset)
        print(line.format(*place, *offsets, *client, _diff(one), one.in_flight, f" {last}"))
    print(f"\nConsume TPS: {lag.consumed_per_second:.2f}")
    print(f"Consume Diff Total: {sum(map(_diff, lag.queues))}")
    print(f"Consume Inflight Total: {sum(one.in_flight for one in lag.queues)}")


def _diff(one: QueueLag) -> int:
    return one.broker_offset - one.consumer_offset


def _clients_by_queue(admin: Admin, group: str) -> dict[MessageQueue, str]:
    owners = queue_owners(admin.run(running_infos, admin.group_connections(group)))
    return {queue: client_id.partition("@")[0] for queue, client_id in owners.items()}


def _print_all_groups(admin: Admin) -> None:
    """All groups that ever had a member: those with a retry topic."""
    heads = ("#Group", "#Count", "#Version", "#Type", "#Model", "#TPS", "#Diff Total")
    print(_OVERVIEW.format(*heads))
    retries = [name for name in admin.topics() if name.startswith(RETRY_PREFIX)]
    # The retry topics of pops end in `+topic`; their group is in the list too.
    for group in sorted({name[len(RETRY_PREFIX) :].partition("+")[0] for name in retries}):
        _print_group(admin, group)


def _print_group(admin: Admin, group: str) -> None:
    try:
        lag = admin.lag(group)
    except ClientError:
        # Known by its retry topic alone: its settings and offsets are gone.
        lag = GroupLag(group, (), 0)
    members = admin.group_connections(group, allow_partial=True)
    count = len(members.connections)
    version = min((one.version for one in members.connections), default=0)
    is_pull = members.consume_type == _PULL_TYPE
    kind = "" if not count else "PULL" if is_pull else "PUSH"
    model = members.message_model if count and not is_pull else ""
    shown = client_version_name(version) if count else "OFFLINE"
    rate, behind = int(lag.consumed_per_second), sum(map(_diff, lag.queues))
    print(_OVERVIEW.format(front(group, 64), count, shown, kind, model, rate, behind))


def consumer_connection(call: Call, admin: Admin) -> None:
    members = _members(call, admin)
    line = "{:<36} {:<22} {:<10} {}"
    print(line.format("#ClientId", "#ClientAddr", "#Language", "#Version"))
    for one in members.connections:
        version = client_version_name(one.version)
        print(line.format(one.client_id, one.address, one.language, version))
    print("\nBelow is subscription:")
    print(f"{'#Topic':<20} #SubExpression")
    for subscription in members.subscriptions.values():
        print(f"{subscription.topic:<20} {subscription.sub_string}")
    print(f"\nConsumeType: {members.consume_type}")
    print(f"MessageModel: {members.message_model}")
    print(f"ConsumeFromWhere: {members.consume_from_where}")


def _members(call: Call, admin: Admin) -> GroupConnections:
    """Raises ``NotFound`` for a group without connected consumers."""
    group, broker = call.text("g"), call.maybe("b")
    found = admin.group_connections(group) if broker is None else _on(admin, group, broker)
    if not found.is_online:
        raise NotFound(f"consumer group {group!r} is not online: nobody consumes for it now")
    return found


def _on(admin: Admin, group: str, broker: str) -> GroupConnections:
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    told = decode_consumer_connection(admin.ask_broker(broker, code, {"consumerGroup": group}).body)
    return GroupConnections(
        group,
        tuple(
            ClientConnection(one.client_id, one.address, one.language, one.version)
            for one in told.connections
        ),
        consume_type=told.consume_type,
        message_model=told.message_model,
        consume_from_where=told.consume_from_where,
        subscriptions=told.subscriptions,
    )


def consumer_status(call: Call, admin: Admin) -> None:
    group, with_jstack = call.text("g"), call.has("s")
    client_id = call.maybe("i")
    if client_id is not None:
        print(running_text(admin.running_info(group, client_id, jstack=with_jstack)), end="")
        return
    members = _members(call, admin).connections
    folder = Path(str(_now_ms()))
    line = "{:<10} {:<40} {:<20} {}"
    print(line.format("#Index", "#ClientId", "#Version", "#ConsumerRunningInfoFile"))
    infos: dict[str, ConsumerRunningInfo] = {}
    for index, one in enumerate(members, 1):
        info = infos[one.client_id] = admin.running_info(group, one.client_id, jstack=with_jstack)
        folder.mkdir(exist_ok=True)
        path = folder / one.client_id.replace("/", "_")
        path.write_text(running_text(info), encoding="utf-8")
        print(line.format(index, one.client_id, client_version_name(one.version), path))
    _print_verdict(infos)


def _print_verdict(infos: Mapping[str, ConsumerRunningInfo]) -> None:
    if not _subscribe_alike(infos.values()):
        print("\n\nWARN: Different subscription in the same group of consumer!!!")
        return
    print("\n\nSame subscription in the same group of consumer")
    print("\n\nRebalance OK")
    for client_id, info in infos.items():
        for text in stuck_lines(client_id, info, _now_ms()):
            print(text)


def _subscribe_alike(infos: Iterable[ConsumerRunningInfo]) -> bool:
    settled = [
        {(one.topic, one.sub_string) for one in info.subscriptions}
        for info in infos
        if is_push(info)
        and _now_ms() - int(info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "0")) > _SETTLED_MS
    ]
    return all(one == settled[0] for one in settled)


def _now_ms() -> int:
    return SystemClock().now_ms()


def producer_connection(call: Call, admin: Admin) -> None:
    group, topic = call.text("g"), call.text("t")
    members = admin.producer_connections(group, topic).connections
    if not members:
        raise NotFound(f"producer group {group!r} is not online on the brokers of {topic!r}")
    for index, one in enumerate(members, 1):
        print(
            f"{index:04d}  {one.client_id:<32} {one.address:<22} {one.language:<8} "
            f"{client_version_name(one.version)}"
        )


def producer(call: Call, admin: Admin) -> None:
    answer = admin.ask_broker(call.text("b"), RequestCode.GET_ALL_PRODUCER_INFO)
    for group, members in sorted(decode_producer_table(answer.body).items()):
        if not members:
            print(f"producer group ({group}) instances are empty")
        for one in members:
            print(
                f"producer group ({group}) instance : clientId={one.client_id},"
                f"remoteIP=/{one.address}, language={one.language}, version={one.version}, "
                f"lastUpdateTimestamp={one.last_update_ms}"
            )


COMMANDS = (
    Command(
        "consumerProgress",
        "How far a group is on each queue; without -g an overview of all groups.",
        consumer_progress,
        (
            may("g", "groupName", "consumer group name"),
            may("t", "topicName", "this topic only"),
            may("s", "showClientIP", "true to show the owner of each queue (false)"),
            may("c", "cluster", "cluster, or LMQ parent topic; brokers are found without it"),
        ),
        (206, 106, 208, 203, 307),
    ),
    Command(
        "consumerStatus",
        "The members of a group; a file about each, or with -i one of them.",
        consumer_status,
        (
            _GROUP,
            may("i", "clientId", "this member only"),
            _BROKER,
            switch("s", "jstack", "with the threads of Java clients"),
        ),
        (106, 203, 307),
    ),
    Command(
        "consumerConnection",
        "The connected consumers of a group, and their subscriptions.",
        consumer_connection,
        (_GROUP, _BROKER),
        (106, 203),
    ),
    Command(
        "producerConnection",
        "The connected producers of a group.",
        producer_connection,
        (need("g", "producerGroup", "producer group name"), need("t", "topic", "topic name")),
        (105, 204),
    ),
    Command(
        "producer",
        "Every producer that a broker knows.",
        producer,
        (need("b", "broker", "broker address"),),
        (106, 328),
    ),
)
