"""Findings from facts: each fault is found, unknown facts are not, each fix is a valid command."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer

from contrail.cli.root import LazyGroup, app
from contrail.client.admin_values import (
    BrokerAddress,
    BrokerRuntime,
    ClientConnection,
    GroupConnections,
    GroupLag,
    OpenTransaction,
    QueueLag,
    QueueStats,
    TopicStats,
)
from contrail.insight.findings import FINDINGS, Commands, Finding, findings_of, servers
from contrail.insight.findings.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    MemberFacts,
    Reach,
    RetriedMessage,
    TopicFacts,
)
from contrail.insight.findings.finding import Severity
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.ha_status import HaStatus, LastRefusal, MasterLink, SlaveLink
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.bodies.running_info import ConsumerRunningInfo, ProcessQueue
from contrail.protocol.json_style import MessageQueue

NOW_MS = 1_763_280_000_000
COMMANDS = Commands(["-n", "name-server:9876"])
BROKER = BrokerAddress("main", "broker-a", 0, "10.0.0.5:10911")
OTHER = BrokerAddress("main", "broker-b", 0, "10.0.0.6:10911")
QUEUE = MessageQueue("orders", "broker-a", 0)

POPPED = InFlight(
    topic="orders",
    real_topic="%RETRY%billing_orders",
    queue_id=0,
    queue_offset=7,
    message_id="ID",
    pop_time_ms=NOW_MS,
    visible_ms=NOW_MS + 60_000,
    attempts=5,
    holder="10.0.0.9:5000",
    client_id="member-1",
    in_order=False,
    handle="orders/7/1/60000/0/1/broker-a/0/7",
)


def broker(started_ago_ms: int = 60_000, **facts: Any) -> BrokerFacts:
    values = {
        "bootTimestamp": str(NOW_MS - started_ago_ms),
        "runtime": "[ 0 days, 0 hours, 1 minutes, 0 seconds ]",
        "commitLogDiskRatio": "0.5",
    }
    runtime = BrokerRuntime(BROKER, values)
    return replace(BrokerFacts(BROKER, Reach.OPEN, "", runtime, NOW_MS, 6, 6, 6), **facts)


def cluster(*brokers: BrokerFacts, **facts: Any) -> ClusterFacts:
    return replace(ClusterFacts(("name-server:9876",), brokers), **facts)


def topic(**facts: Any) -> TopicFacts:
    route = TopicRouteData(
        queues=(QueueData("broker-a", 1, 1, 6),),
        brokers=(BrokerData("broker-a", "main", {0: BROKER.address}),),
    )
    stats = TopicStats("orders", (QueueStats(QUEUE, 0, 10, NOW_MS),))
    return replace(TopicFacts("orders", route, (BROKER,), stats=stats), **facts)


def member(client_id: str, *, wants: str = "*", **queue: Any) -> MemberFacts:
    info = ConsumerRunningInfo(
        properties={"PROP_CONSUMEORDERLY": "false", "messageModel": "CLUSTERING"},
        subscriptions=(
            SubscriptionData("orders", wants, frozenset() if wants == "*" else frozenset({wants})),
        ),
        queues={QUEUE: ProcessQueue(**queue)} if queue else {},
    )
    return MemberFacts(ClientConnection(client_id, "10.0.0.9:5", "JAVA", 400), info, info)


def group(*members: MemberFacts, lag: int = 0, **facts: Any) -> GroupFacts:
    told = GroupLag("billing", (QueueLag(QUEUE, 10, 10 - lag, lag, NOW_MS),), lag)
    connections = GroupConnections(
        "billing",
        tuple(one.connection for one in members),
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        subscriptions={"orders": SubscriptionData("orders")} if members else {},
    )
    configs = {"broker-a": SubscriptionGroupConfig("billing")}
    made = GroupFacts("billing", False, NOW_MS, 2_000, configs, connections, told, told, members)
    return replace(made, **{"topics": {"orders": topic()}, **facts})


def owner(**queue: Any) -> MemberFacts:
    return member("one", **{"consumer_offset": 10, "is_locked": True, **queue})


def altered(one: MemberFacts, **info: Any) -> MemberFacts:
    assert one.after is not None
    told = replace(one.after, **info)
    return replace(one, before=told, after=told)


def found(facts: Any) -> list[Finding]:
    """The findings of a cluster, a topic or a group."""
    if isinstance(facts, ClusterFacts):
        return findings_of(facts, [], [], COMMANDS)
    if isinstance(facts, TopicFacts):
        return findings_of(cluster(), [facts], [], COMMANDS)
    return findings_of(cluster(), [], [facts], COMMANDS)


def slave_status(state: str, reason: str = "unreachable") -> HaStatus:
    link = MasterLink(
        master_address="10.0.0.1:10912", state=state, problem="no way", problem_reason=reason
    )
    return HaStatus(is_master=False, physical_end=5, master=link, role="SLAVE")


def master_status(*slaves: SlaveLink, **figures: Any) -> HaStatus:
    made = HaStatus(is_master=True, physical_end=5, role="SYNC_MASTER", slaves=slaves)
    return replace(made, **figures)


def group_leader(*members: SlaveLink) -> HaStatus:
    """The leader of a group of three of which the other two are in sync."""
    return master_status(
        *members, role="LEADER", required_replicas=2, total_replicas=3, in_sync_slaves=2
    )


def slave_link(**figures: Any) -> SlaveLink:
    made = SlaveLink(
        address="10.0.0.6:4000",
        acknowledged_end=4,
        lag_bytes=1,
        in_sync=True,
        broker_id=1,
        lag_ms=5,
        state="receiving",
    )
    return replace(made, **figures)


SILENT = MemberFacts(ClientConnection("one", "10.0.0.9:5", "GO", 0))
STUCK = {"consumer_offset": 4, "cached_count": 3, "cached_offset_min": 4}
ORDERLY = {"PROP_CONSUMEORDERLY": "true"}
TRANSACTION = OpenTransaction("broker-a", "TX1", "paid", "payers", "ID", NOW_MS, 3_600_000, 15, -1)
DEAD = TopicStats(
    "%DLQ%billing", (QueueStats(MessageQueue("%DLQ%billing", "broker-a", 0), 0, 2, NOW_MS),)
)
# One set of facts with each fault, by the id of its finding.
FAULTS: dict[str, Any] = {
    "nameserver-away": cluster(known_by={"one:9876": frozenset("a"), "two:9876": None}),
    "nameservers-disagree": cluster(
        known_by={"one:9876": frozenset("ab"), "two:9876": frozenset("a")}
    ),
    "broker-away": cluster(broker(reach=Reach.REFUSED, runtime=None, error="refused")),
    "broker-silent": cluster(broker(runtime=None, error="did not answer")),
    "address-unreachable": cluster(broker(reach=Reach.NOWHERE, runtime=None, error="no answer")),
    "address-loopback": cluster(
        broker(broker=replace(BROKER, address="127.0.0.1:10911"), reach=Reach.REFUSED, runtime=None)
    ),
    "broker-open": cluster(broker(takes_unsigned=True)),
    "disk-nearly-full": cluster(
        broker(runtime=BrokerRuntime(BROKER, {"commitLogDiskRatio": "0.92"}))
    ),
    "log-damaged": cluster(
        broker(
            runtime=BrokerRuntime(
                BROKER,
                {
                    "contrailDamagedRecords": "1",
                    "contrailDamaged": "message 7 of queue 0 of orders, bytes 10 to 90 of the log",
                    "contrailStoreFolder": "/var/store",
                },
            )
        )
    ),
    "clock-skew": cluster(broker(started_ago_ms=40_000)),
    "write-drained": cluster(broker(routed_perm=4)),
    "transactions-stuck": cluster(broker(transactions=(TRANSACTION,))),
    "slave-diverged": cluster(broker(replication=slave_status("DIVERGED"))),
    "slave-absent": cluster(broker(replication=slave_status("READY"))),
    "secrets-differ": cluster(broker(replication=slave_status("READY", "secret"))),
    "too-few-in-sync": cluster(broker(replication=master_status(required_replicas=2))),
    "slave-lagging": cluster(
        broker(replication=master_status(slave_link(lag_ms=60_000), in_sync_slaves=1))
    ),
    "group-without-leader": cluster(
        broker(replication=replace(slave_status("voter"), role="CANDIDATE"))
    ),
    "member-away": cluster(broker(replication=group_leader(slave_link(state="away")))),
    "member-slow": cluster(broker(replication=group_leader(slave_link(lag_bytes=1 << 30)))),
    "member-clocks-differ": cluster(
        broker(replication=replace(group_leader(), clock_skews_ms={"n1": -3_000}))
    ),
    "topic-missing": topic(route=None),
    "topic-unreadable": topic(configs={"broker-a": TopicConfig("orders", perm=2)}),
    "topic-unwritable": topic(configs={"broker-a": TopicConfig("orders", perm=4)}),
    "topic-on-some-brokers": topic(masters=(BROKER, OTHER)),
    "group-offline": group(lag=3),
    "not-subscribed": group(owner(), unwanted={"old-orders": 7}),
    "consume-disabled": group(
        owner(), configs={"broker-a": SubscriptionGroupConfig("billing", consume_enable=False)}
    ),
    "offset-beyond-end": group(owner(), lag=-5),
    "offset-expired": group(
        SILENT,
        lag=8,
        topics={"orders": topic(stats=TopicStats("orders", (QueueStats(QUEUE, 5, 10, NOW_MS),)))},
    ),
    "dlq-growing": group(owner(), dead_letters=DEAD),
    "never-acknowledged": group(owner(), in_flight=(POPPED,)),
    "poison-message": group(owner(), retried=(RetriedMessage("orders", "ID", 5, NOW_MS),)),
    "models-disagree": group(
        owner(), altered(member("two"), properties={"messageModel": "BROADCASTING"})
    ),
    "subscriptions-disagree": group(owner(), member("two", wants="paid")),
    "members-idle": group(owner(), member("two")),
    "queue-without-owner": group(member("one")),
    "consumer-blocked": group(owner(**STUCK)),
    "member-not-pulling": group(owner(consumer_offset=4, last_pull_ms=1), lag=6),
    "queue-not-locked": group(altered(member("one"), properties=ORDERLY)),
    "filter-matches-nothing": group(
        owner(),
        connections=replace(
            group(owner()).connections,
            subscriptions={"orders": SubscriptionData("orders", "Paid", frozenset({"Paid"}))},
        ),
        topics={"orders": topic(tags={"paid": 3})},
    ),
}
ALONE = frozenset(FAULTS) - {"members-idle", "models-disagree", "subscriptions-disagree"}


@pytest.mark.proves("cli.commands.doctor", "console.facts.findings")
def test_there_is_a_fault_for_every_finding() -> None:
    assert FAULTS.keys() == FINDINGS.keys()


@pytest.mark.proves("store.damage.told")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_explained_in_whole_sentences(fault: str) -> None:
    told = {one.id: one for one in found(FAULTS[fault])}
    assert fault in told
    assert told[fault].text.endswith(".") and told[fault].cause.endswith(".")


@pytest.mark.parametrize("fault", sorted(ALONE))
def test_a_fault_is_not_taken_for_another(fault: str) -> None:
    assert [one.id for one in found(FAULTS[fault])] == [fault]


@pytest.mark.proves("replication.pair.people")
def test_a_synchronous_master_without_enough_slaves_is_found() -> None:
    alone = master_status(required_replicas=2)
    (finding,) = found(cluster(broker(replication=alone)))
    assert finding.id == "too-few-in-sync"
    assert "11 or 12" in finding.text
    assert found(cluster(broker(replication=replace(alone, in_sync_slaves=1)))) == []


@pytest.mark.proves("replication.pair.people")
def test_a_master_that_was_told_of_its_slaves_misses_them() -> None:
    alone = master_status(total_replicas=2)
    (finding,) = found(cluster(broker(replication=alone)))
    assert finding.id == "slave-absent" and "1 slave" in finding.text
    assert found(cluster(broker(replication=replace(alone, slaves=(slave_link(),))))) == []


@pytest.mark.proves("replication.pair.people")
def test_a_master_tells_of_another_secret_when_its_slave_cannot() -> None:
    refused = LastRefusal("secret", "the slave at 10.0.0.6:4000 has another secret", 5_000)
    (finding,) = found(cluster(broker(replication=master_status(last_refusal=refused))))
    assert finding.id == "secrets-differ" and finding.evidence == (refused.text,)
    old = replace(refused, ago_ms=3_600_000)
    assert found(cluster(broker(replication=master_status(last_refusal=old)))) == []
    both = cluster(
        broker(replication=master_status(last_refusal=refused)),
        broker(replication=slave_status("READY", "secret")),
    )
    assert [one.id for one in found(both)] == ["secrets-differ"], "one fault is told once"


@pytest.mark.proves("replication.failover.findings")
def test_a_group_with_all_members_has_no_finding_and_a_lost_majority_is_an_error() -> None:
    follower = replace(slave_status("voter"), role="FOLLOWER")
    whole = group_leader(slave_link(), slave_link(broker_id=2))
    assert found(cluster(broker(replication=whole), broker(replication=follower))) == []
    (away,) = found(cluster(broker(replication=group_leader(slave_link(state="away")))))
    assert (away.id, away.severity) == ("member-away", Severity.WARNING)
    alone = replace(group_leader(slave_link(state="away")), in_sync_slaves=1)
    (away,) = found(cluster(broker(replication=alone)))
    assert away.severity is Severity.ERROR and "no further one" in away.text
    (finding,) = found(cluster(broker(replication=follower)))
    assert finding.id == "group-without-leader" and "no way" in finding.evidence[0]


@pytest.mark.proves("replication.pair.people")
def test_a_slave_lags_by_time_or_by_bytes() -> None:
    for slave in (slave_link(lag_ms=60_000), slave_link(in_sync=False)):
        (finding,) = found(cluster(broker(replication=master_status(slave))))
        assert finding.id == "slave-lagging"
    assert found(cluster(broker(replication=master_status(slave_link(lag_ms=9_000))))) == []


def test_a_healthy_cluster_has_no_finding() -> None:
    assert found(cluster(broker(), known_by={"one:9876": frozenset("a")})) == []
    assert found(topic()) == []
    assert found(group(owner())) == []
    assert found(group(lag=0)) == []


def test_an_unknown_fact_is_no_finding() -> None:
    assert found(group(SILENT, lag=5)) == []
    unknown = broker(routed_perm=None, own_perm=None, runtime=BrokerRuntime(BROKER, {}))
    assert found(cluster(unknown)) == []


def test_an_offset_that_is_not_written_yet_is_no_standstill() -> None:
    assert found(group(owner(consumer_offset=10, last_pull_ms=1), lag=6)) == []


def test_the_lag_of_members_that_broadcast_is_not_known_to_brokers() -> None:
    members = (owner(**STUCK, last_pull_ms=1), member("two"))
    broadcasting = replace(group(*members).connections, message_model="BROADCASTING")
    quiet = group(*members, lag=-5, connections=broadcasting)
    ids = {one.id for one in found(quiet)}
    assert not ids & {"offset-beyond-end", "members-idle", "queue-without-owner"}


def test_the_worst_finding_comes_first() -> None:
    facts = cluster(broker(routed_perm=4), broker(runtime=None, error="silence"))
    assert [one.severity for one in found(facts)] == ["error", "warning"]


@pytest.mark.proves("cli.commands.doctor")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fix_is_a_valid_command(fault: str) -> None:
    (first, *words) = shlex.split(next(one for one in found(FAULTS[fault]) if one.id == fault).fix)
    assert first == "contrail"
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    command: Any = root.load_command(words.pop(0))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    # Parses the rest, and raises a usage error; no command is run.
    with command.make_context("contrail", words):
        pass


@pytest.mark.proves("access.settings.warnings")
def test_an_open_broker_is_told_of_off_loopback_only() -> None:
    local = replace(BROKER, address="127.0.0.1:10911")
    for facts, told in (
        (broker(takes_unsigned=True), True),
        (broker(takes_unsigned=False), False),
        (broker(broker=local, takes_unsigned=True), False),
    ):
        found = list(servers.broker_open(cluster(facts), COMMANDS))
        assert [one.id for one in found] == (["broker-open"] if told else [])
