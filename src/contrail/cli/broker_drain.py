"""``contrail broker drain`` and ``undrain``: take a broker out of service without a failed send.

Draining is soft first: the NameServers tell producers not to choose the broker, which still takes
what producers send that have not heard of it yet. Only when nothing comes any more the broker
itself is told, so that its next registration, or a restart, does not bring the producers back.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Annotated, Any

import typer

from contrail.cli.broker_figures import PERMISSION, permission, takes_messages
from contrail.cli.exits import CommandFailed
from contrail.cli.output import AsJson, DryRun, Yes, agree, complain, print_json
from contrail.cli.perms import perm_text
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.times import parse_duration
from contrail.cli.waiting import ticks, wait_until_at_rest
from contrail.client.blocking.admin import Admin
from contrail.model.topic import Perm, TopicConfig

_PUT_TOTAL = "msgPutTotalTodayNow"
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
        bool, typer.Option("--consumed", help="Also wait until all groups have read all of it.")
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
        agree([f"producers are sent away from {broker}", *notes], yes=yes, dry_run=dry_run)
        for note in notes if yes else ():
            complain(note)
        moved = _drained(client, broker, timeout_span, quiet_span, consumed=consumed)
        perm = permission(client, broker) & ~int(Perm.WRITE)
        client.update_broker_config({PERMISSION: str(perm)}, broker=broker)
        _wait_for_routes(client, broker, takes=False)
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
        perm = permission(client, broker) | int(Perm.READ | Perm.WRITE)
        # Also when it has that permission: the broker registers, and tells the topics' own.
        client.update_broker_config({PERMISSION: str(perm)}, broker=broker)
        _wait_for_routes(client, broker, takes=True)
    if as_json:
        print_json({"broker": broker, "drained": False, "perm": perm_text(perm)})
        return
    print(f"{broker} is in service: producers choose it again within half a minute")


class _PutCount:
    """How many messages a broker took, while producers are kept away from it."""

    def __init__(self, client: Admin, broker: str) -> None:
        self._client = client
        self._broker = broker
        self._wiped_s = float("-inf")

    def __call__(self) -> int:
        if time.monotonic() - self._wiped_s >= _WIPE_INTERVAL_S:
            self._client.wipe_write_perm(self._broker)
            self._wiped_s = time.monotonic()
        text = self._client.broker_runtime(self._broker).values.get(_PUT_TOTAL, "")
        if not text.isdecimal():
            raise CommandFailed(f"broker {self._broker} does not tell {_PUT_TOTAL}: {text!r}")
        return int(text)


def _drained(
    client: Admin, broker: str, timeout: timedelta, quiet: timedelta, *, consumed: bool
) -> int:
    return wait_until_at_rest(
        _PutCount(client, broker),
        lambda: _unread(client, broker) if consumed else [],
        timeout=timeout,
        quiet=quiet,
        late=(
            f"Producers are still kept away from {broker}: run the same command again to wait on, "
            f"or `contrail broker undrain {broker}`"
        ),
    )


def _unread(client: Admin, broker: str) -> list[str]:
    """What groups have to read on a broker yet."""
    found = []
    for group, lag in client.lags().items():
        left = sum(one.lag for one in lag.queues if one.queue.broker_name == broker)
        if left:
            found.append(f"group {group} has {left:,} messages to read on {broker}")
    return found


def _wait_for_routes(client: Admin, broker: str, *, takes: bool) -> None:
    """Until a NameServer says what the broker was told."""
    for _ in ticks(timedelta(seconds=15), _POLL_S):
        if takes_messages(client, broker) in (takes, None):
            return
    raise CommandFailed(
        f"{broker} took its new permission, but a NameServer does not know of it yet: check the "
        "broker's namesrvAddr"
    )


def _notes(client: Admin, broker: str) -> list[str]:
    """Whose sends will fail, or not go elsewhere."""
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
    """Topics that nobody else takes messages of, and those whose queues are fixed to the broker."""
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
    """Whether NameServers give producers a fixed list of queues, whatever may be written."""
    pieces = (client.topic_route(topic).order_config or "").split(";")
    return broker in {piece.partition(":")[0].strip() for piece in pieces}


def _writable(client: Admin, broker: str) -> dict[str, TopicConfig]:
    return {topic: one for topic, one in client.topic_configs(broker).items() if one.writable}


def _is_writable(client: Admin, broker: str) -> bool:
    return bool(permission(client, broker) & Perm.WRITE)


def _names(topics: list[str]) -> str:
    more = f" and {len(topics) - _NAMES_SHOWN_MAX} more" if len(topics) > _NAMES_SHOWN_MAX else ""
    return ", ".join(topics[:_NAMES_SHOWN_MAX]) + more
