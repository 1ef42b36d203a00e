"""Findings about masters and slaves."""

from __future__ import annotations

from collections.abc import Iterator

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import BrokerFacts, ClusterFacts
from contrail.insight.findings.finding import Finding, Severity
from contrail.protocol.bodies.ha_status import GROUP_ROLES, HaStatus, MasterLink

_DIVERGED = "DIVERGED"
_RECEIVING = "receiving"
# A master's and a slave's word for a handshake that failed because their secrets differ.
_OTHER_SECRET = "secret"
_LAG_MS_MAX = 10_000
# A slave that is refused comes again every five seconds.
_REFUSAL_MS_MAX = 60_000


def slave_diverged(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A slave's log is not a part of its master's, so the slave writes nothing any more."""
    for one, status in _slaves(facts):
        if status.state == _DIVERGED:
            yield Finding(
                "slave-diverged",
                Severity.ERROR,
                f"broker {_named(one)}",
                f"Slave {_named(one)} has diverged from its master {status.master_address} and "
                "writes nothing any more.",
                "Its log has records that its master does not have, or it was away for longer than "
                "the master keeps messages. Stop it, move its folder aside on its host by the "
                "command, and start it again: it copies what the master has.",
                status.rebuild_command or commands.start_broker(),
                (status.problem,),
            )


def secrets_differ(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """Master and slave have different cluster secrets; either of them may be the one that tells."""
    told = [
        (one, status.problem)
        for one, status in _slaves(facts)
        if status.problem_reason == _OTHER_SECRET
    ]
    names = {one.broker.broker_name for one, _ in told}
    for one, found in _masters(facts):
        last = found.last_refusal
        is_new = last is not None and last.ago_ms <= _REFUSAL_MS_MAX
        if last and is_new and last.reason == _OTHER_SECRET and one.broker.broker_name not in names:
            told.append((one, last.text))
    for one, problem in told:
        yield Finding(
            "secrets-differ",
            Severity.ERROR,
            f"broker {_named(one)}",
            f"Master and slave of {one.broker.broker_name} have different cluster secrets: "
            "nothing is replicated.",
            "Copy the master's file of contrailClusterSecretFile to the slave, with mode 0600, and "
            "start the slave again. On each host the command shows the fingerprint.",
            commands.secret_fingerprint(),
            (problem,),
        )


def slave_absent(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A slave does not receive the log, or a master has fewer slaves than it was told of."""
    for one, status in _slaves(facts):
        is_told = status.state == _DIVERGED or status.problem_reason == _OTHER_SECRET
        if not status.is_active and not is_told:
            yield Finding(
                "slave-absent",
                Severity.WARNING,
                f"broker {_named(one)}",
                f"Slave {_named(one)} does not receive the log of its master.",
                "The master is away or refuses it, or no way leads to the master's HA port. "
                "Messages sent meanwhile are on one disk alone.",
                commands.replication_status(),
                (status.problem or f"master: {status.master_address or 'unknown'}",),
            )
    for one, found in _masters(facts):
        receiving = sum(slave.state == _RECEIVING for slave in found.slaves)
        if receiving + 1 < found.total_replicas:
            yield Finding(
                "slave-absent",
                Severity.WARNING,
                f"broker {_named(one)}",
                f"Master {_named(one)} should have {_slave_count(found.total_replicas - 1)} and "
                f"sends its log to {receiving}.",
                "By totalReplicas more brokers belong to it. A slave is down, or cannot reach the "
                "HA port, or is refused.",
                commands.replication_status(),
                _last_refusal(found),
            )


def too_few_in_sync(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A synchronous master has fewer slaves in sync than its answers wait for."""
    for one, found in _masters(facts):
        if found.in_sync_slaves + 1 < found.required_replicas:
            yield Finding(
                "too-few-in-sync",
                Severity.ERROR,
                f"broker {_named(one)}",
                f"Master {_named(one)} waits for {_slave_count(found.required_replicas - 1)}, and "
                f"{found.in_sync_slaves} are in sync: sends are answered 11 or 12.",
                "Its slaves are away or far behind. Start them, or lower inSyncReplicas.",
                commands.replication_status(),
                _last_refusal(found),
            )


def slave_lagging(facts: ClusterFacts, commands: Commands) -> Iterator[Finding]:
    """A slave receives the log and is far behind its end."""
    for one, found in _masters(facts):
        for slave in found.slaves:
            if slave.state == _RECEIVING and (slave.lag_ms > _LAG_MS_MAX or not slave.in_sync):
                named = slave.address if slave.broker_id is None else str(slave.broker_id)
                yield Finding(
                    "slave-lagging",
                    Severity.WARNING,
                    f"broker {_named(one)}",
                    f"Slave {named} of {one.broker.broker_name} is {slave.lag_bytes} bytes and "
                    f"{slave.lag_ms / 1000:.0f} s behind its master.",
                    "The slave was away and catches up, or its disk or the link is slower than the "
                    "sends. The messages that it lacks are on the master's disk alone.",
                    commands.replication_status(),
                    (f"sent lately: {slave.bytes_per_second} bytes a second",),
                )


def _slaves(facts: ClusterFacts) -> Iterator[tuple[BrokerFacts, MasterLink]]:
    """Slaves of Contrail; those of Apache do not tell the state of their link."""
    for one in facts.brokers:
        found = one.replication
        if found is None or found.role in GROUP_ROLES:
            continue
        if not found.is_master and found.master.state:
            yield one, found.master


def _masters(facts: ClusterFacts) -> Iterator[tuple[BrokerFacts, HaStatus]]:
    for one in facts.brokers:
        found = one.replication
        if found is not None and found.is_master and found.role not in GROUP_ROLES:
            yield one, found


def _last_refusal(found: HaStatus) -> tuple[str, ...]:
    """The reason why a slave was sent away lately; nothing if none was."""
    last = found.last_refusal
    return (last.text,) if last is not None and last.ago_ms <= _REFUSAL_MS_MAX else ()


def _slave_count(count: int) -> str:
    return "1 slave" if count == 1 else f"{count} slaves"


def _named(one: BrokerFacts) -> str:
    return f"{one.broker.broker_name}:{one.broker.broker_id}"
