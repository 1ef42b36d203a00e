"""Findings from facts: what is found, what is not, and that each fix is a command there is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer

from contrail.cli.findings import FINDINGS, Commands, Finding, findings_of
from contrail.cli.findings.facts import (
    BrokerFacts,
    ClusterFacts,
    GroupFacts,
    MemberFacts,
    Reach,
    RetriedMessage,
    TopicFacts,
)
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
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from contrail.protocol.bodies.running_info import ConsumerRunningInfo, ProcessQueue
from contrail.protocol.json_style import MessageQueue

NOW_MS = 1_763_280_000_000
COMMANDS = Commands(["-n", "name-server:9876"])
BROKER = BrokerAddress("main", "broker-a", 0, "10.0.0.5:10911")
OTHER = BrokerAddress("main", "broker-b", 0, "10.0.0.6:10911")
QUEUE = MessageQueue("orders", "broker-a", 0)


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
    """All that is wrong with a cluster, a topic or a group."""
    if isinstance(facts, ClusterFacts):
        return findings_of(facts, [], [], COMMANDS)
    if isinstance(facts, TopicFacts):
        return findings_of(cluster(), [facts], [], COMMANDS)
    return findings_of(cluster(), [], [facts], COMMANDS)


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


@pytest.mark.proves("cli.commands.doctor")
def test_there_is_a_fault_for_every_finding() -> None:
    assert FAULTS.keys() == FINDINGS.keys()


@pytest.mark.proves("store.damage.told")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_told_in_whole_sentences(fault: str) -> None:
    told = {one.id: one for one in found(FAULTS[fault])}
    assert fault in told
    assert told[fault].text.endswith(".") and told[fault].cause.endswith(".")


@pytest.mark.parametrize("fault", sorted(ALONE))
def test_a_fault_is_not_taken_for_another(fault: str) -> None:
    assert [one.id for one in found(FAULTS[fault])] == [fault]


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert found(cluster(broker(), known_by={"one:9876": frozenset("a")})) == []
    assert found(topic()) == []
    assert found(group(owner())) == []
    assert found(group(lag=0)) == []


def test_what_is_not_known_is_no_finding() -> None:
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


def test_the_worst_is_told_first() -> None:
    facts = cluster(broker(routed_perm=4), broker(runtime=None, error="silence"))
    assert [one.severity for one in found(facts)] == ["error", "warning"]


@pytest.mark.proves("cli.commands.doctor")
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fix_is_a_command_that_there_is(fault: str) -> None:
    (first, *words) = shlex.split(next(one for one in found(FAULTS[fault]) if one.id == fault).fix)
    assert first == "contrail"
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    command: Any = root.load_command(words.pop(0))
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    # Parses the rest, and raises what the user would see; nothing is run.
    with command.make_context("contrail", words):
        pass
