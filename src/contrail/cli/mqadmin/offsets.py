"""A group's offsets: reset, skip, clone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contrail.cli.exits import NotFound
from contrail.cli.group_facts import require_group
from contrail.cli.mqadmin.java_text import front, read_time, truth
from contrail.cli.mqadmin.options import Call, Command, may, need, switch
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.protocol.json_style import MessageQueue

_GROUP = need("g", "group", "consumer group name")
_TOPIC = need("t", "topic", "topic name")
_TIME = need("s", "timestamp", "now, milliseconds, or yyyy-MM-dd#HH:mm:ss:SSS in local time")
_FORCE = may("f", "force", "false to leave queues that are before that time already (true)")
_CLUSTER = may("c", "cluster", "cluster, or LMQ parent topic; brokers are found without it")
_TO_END = -1


def reset_offset_by_time(call: Call, admin: Admin) -> None:
    group, topic, text = call.text("g"), call.text("t"), call.text("s")
    moment_ms = SystemClock().now_ms() if text == "now" else read_time("-s", text)
    force = call.truth("f", True)
    times = f"timestamp(string)[{text}], timestamp(long)[{moment_ms}]"
    if call.has("b") and call.number("q", -1) >= 0:
        print(
            f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
            f"queueId[{call.number('q')}], broker[{call.text('b')}], {times}"
        )
        _reset_queue(call, admin, group, topic, moment_ms)
        return
    placed = admin.reset_to_time(group, topic, moment_ms, force=force)
    print(
        f"start reset consumer offset by specified, group[{group}], topic[{topic}], "
        f"force[{truth(force)}], {times}"
    )
    _print_places(placed)


def _reset_queue(call: Call, admin: Admin, group: str, topic: str, moment_ms: int) -> None:
    address = call.text("b")
    names = [
        one.broker_name for one in admin.brokers() if address in (one.address, one.broker_name)
    ]
    if not names:
        raise NotFound(f"no broker at {address!r} is registered with the NameServer")
    queue = MessageQueue(topic, names[0], call.number("q"))
    if call.has("o"):
        place = call.number("o")
    elif moment_ms == _TO_END:
        place = admin.queue_offset_max(queue)
    else:
        place = max(0, admin.search_offset(queue, moment_ms))
    admin.reset_to_offset(group, queue, place)
    print(f"reset consumer offset to {place}")


def _print_places(placed: Mapping[MessageQueue, int]) -> None:
    print(f"{'#brokerName':<40}  {'#queueId':<40}  {'#offset':<40}")
    for queue, place in placed.items():
        print(f"{front(queue.broker_name, 32):<40}  {queue.queue_id:<40}  {place:<40}")


@dataclass(frozen=True, slots=True)
class _Reach:
    """A queue's end, and the group's offset in it."""

    queue: MessageQueue
    queue_offset_max: int
    consumer_offset: int


def reset_offset_by_time_old(call: Call, admin: Admin) -> None:
    """Writes the offsets itself; members that are online overwrite them."""
    group, topic, text = call.text("g"), call.text("t"), call.text("s")
    moment_ms, force = read_time("-s", text), call.truth("f", True)
    reaches = _reaches(admin, group, topic)
    print(
        f"reset consumer offset by specified consumerGroup[{group}], topic[{topic}], "
        f"force[{truth(force)}], timestamp(string)[{text}], timestamp(long)[{moment_ms}]"
    )
    line = "{:<20}  {:<20}  {:<20}  {:<20}  {:<20}  {:<20}"
    heads = ("#brokerName", "#queueId", "#brokerOffset", "#consumerOffset", "#timestampOffset")
    print(line.format(*heads, "#resetOffset"))
    for one in reaches:
        found = _place(admin, one.queue, moment_ms)
        place = found if force or found <= one.consumer_offset else one.consumer_offset
        if place == found:
            admin.commit_offset(group, one.queue, place)
        name = front(one.queue.broker_name, 32)
        offsets = (one.queue_offset_max, one.consumer_offset, found, place)
        print(line.format(name, one.queue.queue_id, *offsets))


def _reaches(admin: Admin, group: str, topic: str) -> list[_Reach]:
    require_group(admin, group, may_be_made=False)
    consumed = [
        _Reach(one.queue, one.broker_offset, one.consumer_offset)
        for one in admin.lag(group, topic).queues
        if one.queue.topic == topic
    ]
    stats = admin.topic_stats(topic).queues if not consumed else ()
    return consumed or [
        _Reach(one.queue, one.queue_offset_max, one.queue_offset_min) for one in stats
    ]


def _place(admin: Admin, queue: MessageQueue, moment_ms: int) -> int:
    if moment_ms == _TO_END:
        return admin.queue_offset_max(queue)
    return max(0, admin.search_offset(queue, moment_ms))


def skip_accumulated_message(call: Call, admin: Admin) -> None:
    _print_places(admin.skip_to_end(call.text("g"), call.text("t")))


def clone_group_offset(call: Call, admin: Admin) -> None:
    source, destination, topic = call.text("s"), call.text("d"), call.text("t")
    require_group(admin, source, may_be_made=False)
    admin.clone_offsets(source, destination, topic, offline=call.truth("o", True))
    print(
        f"clone group offset success. srcGroup[{source}], destGroup=[{destination}], topic[{topic}]"
    )


COMMANDS = (
    Command(
        "resetOffsetByTime",
        "Move a group to a time, on all queues or on one.",
        reset_offset_by_time,
        (
            _GROUP,
            _TOPIC,
            _TIME,
            _FORCE,
            switch(None, "cplus", "for groups of C++ clients; nothing differs"),
            may("b", "broker", "with -q: broker address"),
            may("q", "queue", "with -b: this queue only"),
            may("o", "offset", "with -b and -q: this offset instead of a time"),
            _CLUSTER,
        ),
        (105, 222, 29, 15),
    ),
    Command(
        "resetOffsetByTimeOld",
        "Move a group to a time by writing its offsets; its members must be restarted.",
        reset_offset_by_time_old,
        (_GROUP, _TOPIC, _TIME, _FORCE, _CLUSTER),
        (105, 208, 29, 15),
    ),
    Command(
        "skipAccumulatedMessage",
        "Have a group skip everything that is there now.",
        skip_accumulated_message,
        (_GROUP, _TOPIC, _FORCE, _CLUSTER),
        (105, 222),
    ),
    Command(
        "cloneGroupOffset",
        "Copy a group's offsets on a topic to another group.",
        clone_group_offset,
        (
            need("s", "srcGroup", "group to copy from"),
            need("d", "destGroup", "group to copy to"),
            _TOPIC,
            may("o", "offline", "false for topics subscribed to now only (true)"),
        ),
        (106, 105, 314, 14),
    ),
)
