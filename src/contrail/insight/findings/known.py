"""Every finding by its id, with the function that looks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from contrail.insight.findings import failover, groups, members, replicas, servers, topics
from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import ClusterFacts, GroupFacts, TopicFacts
from contrail.insight.findings.finding import Finding, Severity

Looking = Callable[[Any, Commands], Iterator[Finding]]

CLUSTER_FINDINGS: Mapping[str, Callable[[ClusterFacts, Commands], Iterator[Finding]]] = {
    "nameserver-away": servers.name_server_away,
    "nameservers-disagree": servers.name_servers_disagree,
    "broker-away": servers.broker_away,
    "broker-silent": servers.broker_silent,
    "address-unreachable": servers.address_unreachable,
    "address-loopback": servers.address_loopback,
    "broker-open": servers.broker_open,
    "disk-nearly-full": servers.disk_full,
    "log-damaged": servers.log_damaged,
    "clock-skew": servers.clock_skew,
    "write-drained": servers.write_drained,
    "transactions-stuck": servers.transactions_stuck,
    "slave-diverged": replicas.slave_diverged,
    "secrets-differ": replicas.secrets_differ,
    "slave-absent": replicas.slave_absent,
    "too-few-in-sync": replicas.too_few_in_sync,
    "slave-lagging": replicas.slave_lagging,
    "group-without-leader": failover.group_without_leader,
    "member-away": failover.member_away,
    "member-slow": failover.member_slow,
    "member-clocks-differ": failover.member_clocks_differ,
}
TOPIC_FINDINGS: Mapping[str, Callable[[TopicFacts, Commands], Iterator[Finding]]] = {
    "topic-missing": topics.topic_missing,
    "topic-unreadable": topics.topic_unreadable,
    "topic-unwritable": topics.topic_unwritable,
    "topic-on-some-brokers": topics.topic_on_some_brokers,
}
GROUP_FINDINGS: Mapping[str, Callable[[GroupFacts, Commands], Iterator[Finding]]] = {
    "group-offline": groups.group_offline,
    "not-subscribed": groups.not_subscribed,
    "consume-disabled": groups.consume_disabled,
    "offset-beyond-end": groups.offset_beyond_end,
    "offset-expired": groups.offset_expired,
    "dlq-growing": groups.dead_letters_growing,
    "poison-message": groups.poison_message,
    "never-acknowledged": groups.never_acknowledged,
    "models-disagree": members.models_disagree,
    "subscriptions-disagree": members.subscriptions_disagree,
    "members-idle": members.members_idle,
    "queue-without-owner": members.queue_without_owner,
    "consumer-blocked": members.consumer_blocked,
    "member-not-pulling": members.member_not_pulling,
    "queue-not-locked": members.queue_not_locked,
    "filter-matches-nothing": members.filter_matches_nothing,
}
FINDINGS: Mapping[str, Looking] = {**CLUSTER_FINDINGS, **TOPIC_FINDINGS, **GROUP_FINDINGS}


def findings_of(
    cluster: ClusterFacts,
    every_topic: Iterable[TopicFacts],
    every_group: Iterable[GroupFacts],
    commands: Commands,
) -> list[Finding]:
    """All findings, the worst first."""
    found = [one for look in CLUSTER_FINDINGS.values() for one in look(cluster, commands)]
    for topic in every_topic:
        found += [one for look in TOPIC_FINDINGS.values() for one in look(topic, commands)]
    for group in every_group:
        found += [one for look in GROUP_FINDINGS.values() for one in look(group, commands)]
    order = list(Severity)
    return sorted(found, key=lambda one: order.index(one.severity))
