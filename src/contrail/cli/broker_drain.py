"""``contrail broker drain`` and ``undrain``: take a broker out of service without a failed send.

Draining is soft first: the NameServers' routes keep producers from choosing the broker, which still
takes sends of producers with an older route. Only when no message comes any more the broker's own
permission is changed, so that its next registration, or a restart, does not bring the producers
back.

Delayed, timed and half messages are stored in topics of the broker's own, which its count of
messages leaves out: they are counted where they are stored. The broker's own writes for them, a
delivery or a check, count as arrivals too: draining waits rather too long than too short.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from contrail.cli.exits import CommandFailed
from contrail.cli.output import AsJson, DryRun, Yes, agree, complain, print_json
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.times import parse_duration
from contrail.cli.waiting import ticks, wait_until_at_rest
from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused
from contrail.insight.brokers import PERMISSION, permission, takes_messages
from contrail.insight.words import perm_text
from contrail.model.topic import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    SINK_TOPIC,
    TIMER_TOPIC,
    Perm,
    TopicConfig,
)
from contrail.protocol.bodies.topics import QueueReach, decode_topic_stats
from contrail.protocol.codes import RequestCode, ResponseCode

_PUT_TOTAL = "msgPutTotalTodayNow"
# Topics of producers' messages that the total leaves out.
_STORED_APART = (SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, SINK_TOPIC)
_DELAY_FIGURE = "scheduleMessageOffset_"
# Members of such a group keep their offsets locally.
_BROADCASTING = "BROADCASTING"
# A broker that registers anew during the wait gets its permission back: it is taken again.
_WIPE_INTERVAL_S = 5.0
_POLL_S = 0.2
_NAMES_SHOWN_MAX = 5

BrokerName = Annotated[str, typer.Argument(metavar="NAME", help="The broker's name.")]


def drain(
    name: BrokerName,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="How long to wait: 90s, 15m, 2h.")
    ] = "5m",
    quiet: Annotated[
        str,
        typer.Option("--quiet", metavar="TIME", help="For how long no message must come."),
    ] = "30s",
    consumed: Annotated[
        bool,
        typer.Option("--consumed", help="Also wait until nothing is left there, read or pending."),
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Send producers elsewhere, and wait until no message comes to the broker any more."""
    timeout_span, quiet_span = (
        parse_duration("--timeout", timeout),
        parse_duration("--quiet", quiet),
    )
    begun_s = time.monotonic()
    with open_admin(namesrv, ctx) as client:
        broker = client.broker_runtime(name).broker.broker_name
        notes = _notes(client, broker)
        agree(
            [f"producers are sent away from {broker}", *notes],
            yes=yes,
            dry_run=dry_run,
            as_json=as_json,
        )
        for note in notes if yes else ():
            complain(note)
        try:
            moved = _drained(client, broker, timeout_span, quiet_span, consumed=consumed)
        except KeyboardInterrupt:
            complain(
                f"interrupted: producers are still kept away from {broker}; run it again, or "
                f"take it back by `contrail broker undrain {broker}`"
            )
            raise
        perm = client.run(permission, broker) & ~int(Perm.WRITE)
        client.update_broker_config({PERMISSION: str(perm)}, broker=broker)
        _wait_for_routes(client, broker, takes=False)
        for line in _pending(client, broker):
            complain(f"a note: {line}: nothing becomes of them while it is stopped")
    told: dict[str, Any] = {
        "broker": broker,
        "drained": True,
        "perm": perm_text(perm),
        "messages_while_waiting": moved,
        "waited_ms": int((time.monotonic() - begun_s) * 1000),
    }
    if as_json:
        print_json(told)
        return
    print(
        f"{broker} is drained: no message came for {quiet_span.total_seconds():.0f} s "
        f"({moved:,} while producers took notice); it may be stopped now"
    )
    print(f"take it back into service by `contrail broker undrain {broker}`")


def undrain(
    name: BrokerName,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Take a drained broker back into service: producers choose it again."""
    with open_admin(namesrv, ctx) as client:
        broker = client.broker_runtime(name).broker.broker_name
        perm = client.run(permission, broker) | int(Perm.READ | Perm.WRITE)
        # Also when it has that permission: the broker then registers its topics' permissions.
        client.update_broker_config({PERMISSION: str(perm)}, broker=broker)
        _wait_for_routes(client, broker, takes=True)
    if as_json:
        print_json({"broker": broker, "drained": False, "perm": perm_text(perm)})
        return
    print(f"{broker} is in service: producers choose it again within half a minute")


class _Arrivals:
    """How many messages a broker took since the first call; producers are kept away from it."""

    def __init__(self, client: Admin, broker: str) -> None:
        self._client = client
        self._broker = broker
        self._wiped_s = float("-inf")
        self._seen: dict[str, int] | None = None
        self._total = 0

    def __call__(self) -> int:
        if time.monotonic() - self._wiped_s >= _WIPE_INTERVAL_S:
            self._client.wipe_write_perm(self._broker)
            self._wiped_s = time.monotonic()
        counts = self._counts()
        for name, before in (self._seen or counts).items():
            # A restarted broker counts from 0.
            self._total += counts[name] - (before if counts[name] >= before else 0)
        self._seen = counts
        return self._total

    def _counts(self) -> dict[str, int]:
        apart = {
            topic: sum(one.queue_offset_max for one in _reaches(self._client, self._broker, topic))
            for topic in _STORED_APART
        }
        return {_PUT_TOTAL: self._put_total(), **apart}

    def _put_total(self) -> int:
        text = self._client.broker_runtime(self._broker).values.get(_PUT_TOTAL, "")
        if not text.isdecimal():
            raise CommandFailed(f"broker {self._broker} does not tell {_PUT_TOTAL}: {text!r}")
        return int(text)


def _reaches(client: Admin, broker: str, topic: str) -> list[QueueReach]:
    """How far the queues of a topic reach on a broker, by queue id; empty without the topic."""
    try:
        answer = client.ask_broker(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        return []
    reaches, _ = decode_topic_stats(answer.body)
    return [reaches[queue] for queue in sorted(reaches)]


def _drained(
    client: Admin, broker: str, timeout: timedelta, quiet: timedelta, *, consumed: bool
) -> int:
    try:
        return wait_until_at_rest(
            _Arrivals(client, broker),
            lambda: [*_unread(client, broker), *_pending(client, broker)] if consumed else [],
            timeout=timeout,
            quiet=quiet,
            late=(
                f"Producers are still kept away from {broker}: run the same command again to wait "
                f"on, or `contrail broker undrain {broker}`"
            ),
        )
    except CommandFailed as late:
        pending = [] if consumed else _pending(client, broker)
        if not pending:
            raise
        told = ", ".join(pending)
        raise CommandFailed(f"{late}. Deliveries of its own count as well: {told}") from late


def _unread(client: Admin, broker: str) -> list[str]:
    """The messages that groups have yet to read on a broker.

    Each group is requested separately: the answer for all groups leaves out read-only queues.
    """
    found = []
    topics = frozenset(client.topic_configs(broker))
    for group in client.groups():
        left = sum(_left(client, group, broker, topics))
        if left:
            found.append(f"group {group} has {left:,} messages to read on {broker}")
    return found


def _left(client: Admin, group: str, broker: str, topics: frozenset[str]) -> Iterator[int]:
    """The messages a group has to read, by queue; all of a topic without an offset of the group."""
    queues = [one for one in client.lag(group).queues if one.queue.broker_name == broker]
    yield from (one.lag for one in queues)
    members = client.group_connections(group)
    if members.is_online and members.message_model != _BROADCASTING:
        known = {one.queue.topic for one in queues}
        for topic in (members.subscriptions.keys() & topics) - known:
            for reach in _reaches(client, broker, topic):
                yield reach.queue_offset_max - reach.queue_offset_min


def _pending(client: Admin, broker: str) -> list[str]:
    """The messages a broker has yet to deliver, which no group can read."""
    counts = {
        "delayed messages are not due yet": _delayed(client, broker),
        "timed messages are not due yet": _timed(client, broker),
        "transactions are open": _open_transactions(client, broker),
    }
    return [f"{count:,} {what} on {broker}" for what, count in counts.items() if count]


def _delayed(client: Admin, broker: str) -> int:
    values = client.broker_runtime(broker).values
    left = 0
    for level, reach in enumerate(_reaches(client, broker, SCHEDULE_TOPIC), 1):
        # The level's next offset, and its end; a level without deliveries may be missing.
        text = values.get(f"{_DELAY_FIGURE}{level}", "").partition(",")[0]
        begin = int(text) if text.isdecimal() else 0
        left += max(0, reach.queue_offset_max - max(begin, reach.queue_offset_min))
    return left


def _timed(client: Admin, broker: str) -> int:
    try:
        counts = client.timer_counts(allow_partial=True).get(broker)
    except BrokerRefused:
        # Brokers without a timer refuse: old ones, and those with the timer off.
        return 0
    return 0 if counts is None else sum(counts.by_topic.values())


def _open_transactions(client: Admin, broker: str) -> int:
    try:
        return client.transactions(broker, count_max=1).total
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        # Apache's brokers do not report them.
        return 0


def _wait_for_routes(client: Admin, broker: str, *, takes: bool) -> None:
    """Wait until a NameServer has the broker's new permission."""
    for _ in ticks(timedelta(seconds=15), _POLL_S):
        if client.run(takes_messages, broker) in (takes, None):
            return
    raise CommandFailed(
        f"{broker} took its new permission, but a NameServer does not know of it yet: check the "
        "broker's namesrvAddr"
    )


def _notes(client: Admin, broker: str) -> list[str]:
    """Warn of topics whose sends will fail, or stay on this broker."""
    lines = []
    alone, ordered = _troubled(client, broker)
    if alone:
        lines.append(
            f"no other broker takes messages of {_names(alone)}: sends to them will fail; "
            "create them on other brokers first"
        )
    if ordered:
        lines.append(
            f"the order of {_names(ordered)} is bound to {broker}: their producers go on "
            "sending to it"
        )
    return lines


def _troubled(client: Admin, broker: str) -> tuple[list[str], list[str]]:
    """Topics that no other broker takes messages of, and topics with queues fixed to the broker."""
    plain = frozenset(client.topics(internal=False))
    own = _writable(client, broker)
    masters = [one.broker_name for one in client.brokers() if one.is_master]
    others = [name for name in masters if name != broker and _is_writable(client, name)]
    elsewhere = {topic for name in others for topic in _writable(client, name)}
    alone = sorted(topic for topic in own if topic in plain and topic not in elsewhere)
    ordered = sorted(
        topic
        for topic, one in own.items()
        if topic in plain and one.order and _is_fixed(client, topic, broker)
    )
    return alone, ordered


def _is_fixed(client: Admin, topic: str, broker: str) -> bool:
    """Whether NameServers give producers a fixed list of queues, whatever the permissions."""
    pieces = (client.topic_route(topic).order_config or "").split(";")
    return broker in {piece.partition(":")[0].strip() for piece in pieces}


def _writable(client: Admin, broker: str) -> dict[str, TopicConfig]:
    return {topic: one for topic, one in client.topic_configs(broker).items() if one.writable}


def _is_writable(client: Admin, broker: str) -> bool:
    return bool(client.run(permission, broker) & Perm.WRITE)


def _names(topics: list[str]) -> str:
    more = f" and {len(topics) - _NAMES_SHOWN_MAX} more" if len(topics) > _NAMES_SHOWN_MAX else ""
    return ", ".join(topics[:_NAMES_SHOWN_MAX]) + more
