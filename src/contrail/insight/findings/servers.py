"""Findings about NameServers and brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import BrokerFacts, ClusterFacts, Reach
from contrail.insight.findings.finding import Finding, Severity, few
from contrail.model.topic import Perm
from contrail.wire.addresses import is_loopback, split_address

# Brokers begin to delete early at three quarters, and refuse messages at nine tenths.
DISK_WARNING_RATIO = 0.75
DISK_FULL_RATIO = 0.90
# The time a broker tells is cut to seconds.
SKEW_MAX_MS = 5_000
# The checks of a half message come once a minute, fifteen times.
TRANSACTION_AGE_MAX_MS = 15 * 60_000

_DISK_RETENTION_HOURS = 24
_RUNTIME = re.compile(r"([\d,]+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


def name_server_away(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """Some NameServers answer, and this one does not."""
    answering = [name for name, brokers in facts.known_by.items() if brokers is not None]
    for address, brokers in facts.known_by.items():
        if brokers is None and answering:
            yield Finding(
                "nameserver-away",
                Severity.WARNING,
                f"NameServer {address}",
                f"NameServer {address} does not answer; {few(answering)} do.",
                "It is not running, or this machine has no way to it. Clients go on with the "
                "others, and have none left when those fail too.",
                commands.start_name_server(split_address(address)[1]),
            )


def name_servers_disagree(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker is registered with some NameServers and not with others."""
    told = {name: brokers for name, brokers in facts.known_by.items() if brokers is not None}
    everyone = sorted(frozenset().union(*told.values()))
    for address, brokers in told.items():
        missing = [name for name in everyone if name not in brokers]
        if missing:
            yield Finding(
                "nameservers-disagree",
                Severity.ERROR,
                f"NameServer {address}",
                f"NameServer {address} does not know {few(missing)}, which others know.",
                f"{few(missing)} did not register there: its namesrvAddr leaves that NameServer "
                "out, or it has no way to it. Clients that ask there see fewer queues. Start "
                "it again with all NameServers.",
                commands.start_broker("--namesrv", ";".join(facts.namesrv)),
                tuple(f"{name} knows {few(sorted(known))}" for name, known in told.items()),
            )


def broker_away(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A NameServer has a broker registered, and nothing listens at its address."""
    for one in facts.brokers:
        if one.reach is Reach.REFUSED and not _is_misled(facts, one):
            yield Finding(
                "broker-away",
                Severity.ERROR,
                f"broker {one.broker.broker_name}",
                f"Broker {one.broker.broker_name} is registered at {one.broker.address}, and "
                "nothing listens there.",
                "It ended without unregistering, and the NameServer forgets it only after two "
                "minutes; its queues cannot be read until it is back.",
                commands.start_broker(),
                (one.error,),
            )


def address_unreachable(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker advertises an address that this machine cannot reach."""
    for one in facts.brokers:
        if one.reach is Reach.NOWHERE:
            yield Finding(
                "address-unreachable",
                Severity.ERROR,
                f"broker {one.broker.broker_name}",
                f"Broker {one.broker.broker_name} tells clients to come to {one.broker.address}, "
                "and this machine cannot connect to that address.",
                "brokerIP1 in its broker.conf names an address of another network, such as one "
                "inside a container or behind NAT, or a firewall is in between. Start it again "
                "with an address that clients reach, and let them through to port "
                f"{split_address(one.broker.address)[1]}.",
                commands.start_broker("--set", "brokerIP1=ADDRESS"),
                (one.error,),
            )


def address_loopback(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker advertises loopback although its NameServer is another machine's."""
    for one in facts.brokers:
        if one.reach is Reach.REFUSED and _is_misled(facts, one):
            yield Finding(
                "address-loopback",
                Severity.ERROR,
                f"broker {one.broker.broker_name}",
                f"Broker {one.broker.broker_name} tells clients to come to {one.broker.address}: "
                "every client looks for it on its own machine.",
                "brokerIP1 in its broker.conf is a loopback address, while the NameServer is on "
                "another machine. Start it again with its own address in the network.",
                commands.start_broker("--set", "brokerIP1=ADDRESS"),
                (one.error, f"NameServer: {few(list(facts.namesrv))}"),
            )


def broker_open(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker off loopback has neither TLS nor access control."""
    for one in facts.brokers:
        if one.takes_unsigned and not is_loopback(split_address(one.broker.address)[0]):
            yield Finding(
                "broker-open",
                Severity.WARNING,
                f"broker {one.broker.broker_name}",
                f"Broker {one.broker.broker_name} at {one.broker.address} serves requests that "
                "nobody signed, over an open wire.",
                "Every host that reaches this address may send and read messages, and read them on "
                "the way. Switch access control on with the settings that the command prints, and "
                "TLS with tls.server.certPath and tls.server.mode=enforcing.",
                "contrail acl init",
            )


def broker_silent(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """The address accepts the connection and sends no answer."""
    for one in facts.brokers:
        if one.reach is Reach.OPEN and one.runtime is None:
            yield Finding(
                "broker-silent",
                Severity.ERROR,
                f"broker {one.broker.broker_name}",
                f"{one.broker.address} takes connections for broker {one.broker.broker_name}, "
                "and does not answer requests.",
                "The process hangs or is overloaded, or something else listens at that "
                "address: a proxy without its broker, another service, or TLS where none is "
                "spoken.",
                commands.start_broker(),
                (one.error,),
            )


def disk_full(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker's disk is almost full."""
    for one in facts.brokers:
        ratio = 0.0 if one.runtime is None else one.runtime.disk_used_ratio
        if ratio < DISK_WARNING_RATIO:
            continue
        is_full = ratio >= DISK_FULL_RATIO
        yield Finding(
            "disk-nearly-full",
            Severity.ERROR if is_full else Severity.WARNING,
            f"broker {one.broker.broker_name}",
            f"The disk of broker {one.broker.broker_name} is {ratio:.0%} full.",
            ("It refuses messages now. " if is_full else "From 90% on it refuses messages. ")
            + "It keeps messages longer than the disk is large, or something else fills the disk. "
            "Give it more room, or start it again and let it keep messages for a shorter time.",
            commands.start_broker("--set", f"fileReservedTime={_DISK_RETENTION_HOURS}"),
            (f"commitLogDiskRatio={ratio:.3f}",),
        )


def log_damaged(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker found damaged records in its log; consumers do not get those messages."""
    for one in facts.brokers:
        values = {} if one.runtime is None else one.runtime.values
        count = values.get("contrailDamagedRecords", "")
        if not count.isdecimal() or not int(count):
            continue
        name = one.broker.broker_name
        yield Finding(
            "log-damaged",
            Severity.ERROR,
            f"broker {name}",
            f"Broker {name} has {count} damaged records in its log; consumers pass over them.",
            "The disk changed bytes after they were written. Restore the segments from a copy; or "
            "stop the broker and replace the damaged records, on its machine: records behind them "
            "stay, and their bytes are kept. Then check the disk.",
            commands.replace_damaged(values.get("contrailStoreFolder", "DIR")),
            tuple(filter(None, values.get("contrailDamaged", "").split("; "))),
        )


def clock_skew(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A broker's clock is not this machine's."""
    for one in facts.brokers:
        skew_ms = _skew_ms(one)
        if skew_ms is not None and abs(skew_ms) > SKEW_MAX_MS:
            direction = "ahead of" if skew_ms > 0 else "behind"
            yield Finding(
                "clock-skew",
                Severity.WARNING,
                f"broker {one.broker.broker_name}",
                f"The clock of broker {one.broker.broker_name} is {abs(skew_ms) // 1000:,} s "
                f"{direction} this machine's.",
                "One of the two is not kept by NTP. Delays, retention and searches by time are "
                "off by as much. Set the clocks right, then look again.",
                commands.broker_status(one.broker.broker_name),
            )


def write_drained(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """Producers are kept away from a broker whose topics may be written."""
    for one in facts.brokers:
        if one.routed_perm is None or one.routed_perm & Perm.WRITE:
            continue
        name, permission = one.broker.broker_name, one.broker_permission
        yield Finding(
            "write-drained",
            Severity.WARNING,
            f"broker {name}",
            f"Producers do not send to broker {name}: NameServers say that it may not be written "
            "to.",
            "An operator drained it, or wiped its write permission, and did not take that back.",
            commands.undrain(name),
            (
                f"its topics: {one.own_perm} on the broker, {one.routed_perm} in the route",
                f"brokerPermission={'unknown' if permission is None else permission}",
            ),
        )


def transactions_stuck(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """Half messages that no producer decides."""
    for one in facts.brokers:
        old = [each for each in one.transactions if each.age_ms > TRANSACTION_AGE_MAX_MS]
        if old:
            oldest = max(old, key=lambda each: each.age_ms)
            yield Finding(
                "transactions-stuck",
                Severity.WARNING,
                f"broker {one.broker.broker_name}",
                f"{len(old)} transactions on broker {one.broker.broker_name} are open for more "
                f"than {TRANSACTION_AGE_MAX_MS // 60_000} minutes; consumers do not see their "
                "messages.",
                f"No producer of group {oldest.producer_group} that is online decides them when "
                "it is asked.",
                commands.roll_back(oldest.transaction_id),
                tuple(
                    f"{each.transaction_id} for topic {each.topic} of group "
                    f"{each.producer_group}: open for {each.age_ms // 60_000} minutes, asked "
                    f"{each.check_count} times"
                    for each in old[:5]
                ),
            )


def _is_misled(facts: ClusterFacts, one: BrokerFacts) -> bool:
    hosts = [split_address(address)[0] for address in facts.namesrv]
    return is_loopback(split_address(one.broker.address)[0]) and not any(map(is_loopback, hosts))


def _skew_ms(one: BrokerFacts) -> int | None:
    """The broker's clock, by its start time and its uptime, which is cut to seconds."""
    values = {} if one.runtime is None else one.runtime.values
    up = _RUNTIME.search(values.get("runtime", ""))
    started = values.get("bootTimestamp", "")
    if up is None or not started.isdecimal():
        return None
    days, hours, minutes, seconds = (int(piece.replace(",", "")) for piece in up.groups())
    up_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return int(started) + up_s * 1000 - one.asked_at_ms
