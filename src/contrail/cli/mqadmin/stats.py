"""Rates of topics and of the groups that consume them."""

from __future__ import annotations

from contrail.cli.mqadmin.java_text import front
from contrail.cli.mqadmin.options import Call, Command, may, switch
from contrail.cli.topic_facts import require_topic
from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused, ClientError, RouteMissing
from contrail.model.topic import DLQ_PREFIX, RETRY_PREFIX
from contrail.protocol.bodies.stats import StatItem

_HEADS = (
    *("#Topic", "#Consumer Group", "#Accumulation", "#InTPS"),
    *("#OutTPS", "#InMsg24Hour", "#OutMsg24Hour"),
)


def stats_all(call: Call, admin: Admin) -> None:
    wanted = call.maybe("t")
    if wanted:
        require_topic(admin, wanted)
    print("{:<64}  {:<64} {:>12} {:>11} {:>11} {:>14} {:>14}".format(*_HEADS))
    for topic in [wanted] if wanted else admin.topics():
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            _print_topic(admin, topic, active_only=call.has("a"))


def _print_topic(admin: Admin, topic: str, *, active_only: bool) -> None:
    try:
        brokers = [one.broker_name for one in admin.topic_route(topic).brokers]
        groups = admin.topic_consumers(topic)
    except RouteMissing:
        # The topic was deleted since the list was made.
        return
    in_rate, in_count = _rate(admin, brokers, "TOPIC_PUT_NUMS", topic)
    before = f"{front(topic, 64):<64}  "
    if not groups and (in_count or not active_only):
        print(
            f"{before}{'':<64} {0:>12} {in_rate:>11.2f} {'':>11} {in_count:>14} {'NO_CONSUMER':>14}"
        )
    for group in groups:
        out_rate, out_count = _rate(admin, brokers, "GROUP_GET_NUMS", f"{topic}@{group}")
        if in_count or out_count or not active_only:
            print(
                f"{before}{front(group, 64):<64} {_behind(admin, group, topic):>12} "
                f"{in_rate:>11.2f} {out_rate:>11.2f} {in_count:>14} {out_count:>14}"
            )


def _rate(admin: Admin, brokers: list[str], stat: str, key: str) -> tuple[float, int]:
    """Messages a second in the last minute, and the count of the longest window with messages."""
    items = [one for broker in brokers if (one := stat_item(admin, broker, stat, key)) is not None]
    return sum(one.minute.per_second for one in items), sum(map(day_count, items))


def stat_item(admin: Admin, broker: str, stat: str, key: str) -> StatItem | None:
    """None without traffic."""
    try:
        return admin.broker_stats(broker, stat, key)
    except BrokerRefused:
        return None


def day_count(item: StatItem) -> int:
    """The count of the last day; of a shorter time from a broker that runs for less."""
    return item.day.total or item.hour.total or item.minute.total


def _behind(admin: Admin, group: str, topic: str) -> int:
    try:
        return admin.lag(group, topic).total
    except ClientError:
        # The group was deleted since the list was made.
        return 0


COMMANDS = (
    Command(
        "statsAll",
        "Rates of every topic and of the groups that consume it.",
        stats_all,
        (
            switch("a", "activeTopic", "only topics with traffic"),
            may("t", "topic", "this topic only"),
        ),
        (206, 105, 300, 315, 208),
    ),
)
