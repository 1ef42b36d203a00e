"""Findings about failover groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import BrokerFacts, ClusterFacts
from contrail.insight.findings.finding import Finding, Severity
from contrail.protocol.bodies.ha_status import GROUP_ROLES, LEADER_ROLE, HaStatus

_AWAY = "away"
_LAG_BYTES_MAX = 16 << 20
_SKEW_MS_MAX = 1_000


def group_without_leader(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """No member of a failover group leads: a majority is away, or cannot be reached."""
    groups: dict[str, list[tuple[BrokerFacts, HaStatus]]] = defaultdict(list)
    for one, found in _members(facts):
        groups[one.broker.broker_name].append((one, found))
    for name, members in groups.items():
        if any(found.role == LEADER_ROLE for _, found in members):
            continue
        yield Finding(
            "group-without-leader",
            Severity.ERROR,
            f"broker {name}",
            f"No member of failover group {name} leads: sends are answered 14.",
            "Fewer than a majority of its voters run or reach each other at the ports of "
            "dLegerPeers, or an election is under way. Start the members that are away; what is "
            "committed can be read meanwhile.",
            commands.replication_status(),
            tuple(
                f"{_named(one)}: {found.role}{': ' if found.master.problem else ''}"
                f"{found.master.problem}"
                for one, found in members
            ),
        )


def member_away(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A leader does not reach a voter of its group."""
    for one, found in _leaders(facts):
        away = [link.address for link in found.slaves if link.state == _AWAY]
        if away:
            spare = found.in_sync_slaves + 1 - found.required_replicas
            yield Finding(
                "member-away",
                Severity.WARNING if spare > 0 else Severity.ERROR,
                f"broker {_named(one)}",
                f"{len(away)} of {found.total_replicas} members of failover group "
                f"{one.broker.broker_name} are away"
                + (
                    "."
                    if spare > 0
                    else ", and no further one may be lost: without a majority no send succeeds."
                ),
                "Start the member, or give its disk up: a member that starts with an empty folder "
                "takes the place of the old one.",
                commands.replication_status(),
                tuple(away),
            )


def member_slow(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A member receives the log and is far behind its leader."""
    for one, found in _leaders(facts):
        for link in found.slaves:
            if link.state != _AWAY and link.lag_bytes > _LAG_BYTES_MAX:
                yield Finding(
                    "member-slow",
                    Severity.WARNING,
                    f"broker {_named(one)}",
                    f"Member {link.address} of failover group {one.broker.broker_name} is "
                    f"{link.lag_bytes} bytes behind its leader.",
                    "It was away and catches up, or its disk or the link is slower than the sends. "
                    "It cannot lead before it has the log, and its copy counts for nothing.",
                    commands.replication_status(),
                    (f"state: {link.state}",),
                )


def member_clocks_differ(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """Clocks of a group's hosts are apart: delays and retention go by the leader's."""
    for one, found in _leaders(facts):
        skews = {name: ms for name, ms in found.clock_skews_ms.items() if abs(ms) > _SKEW_MS_MAX}
        if skews:
            yield Finding(
                "member-clocks-differ",
                Severity.WARNING,
                f"broker {_named(one)}",
                f"Clocks of the members of failover group {one.broker.broker_name} differ by more "
                "than a second.",
                "Delayed messages come and old ones go by the clock of whichever member leads. "
                "Set the clocks by NTP.",
                commands.replication_status(),
                tuple(f"{name} is {ms} ms ahead of the leader" for name, ms in skews.items()),
            )


def _members(facts: ClusterFacts) -> Iterator[tuple[BrokerFacts, HaStatus]]:
    for one in facts.brokers:
        if one.replication is not None and one.replication.role in GROUP_ROLES:
            yield one, one.replication


def _leaders(facts: ClusterFacts) -> Iterator[tuple[BrokerFacts, HaStatus]]:
    for one, found in _members(facts):
        if found.role == LEADER_ROLE:
            yield one, found


def _named(one: BrokerFacts) -> str:
    return f"{one.broker.broker_name}:{one.broker.broker_id}"
