"""Findings about topics."""

from __future__ import annotations

from collections.abc import Iterator

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import TopicFacts
from contrail.insight.findings.finding import Finding, Severity, few
from contrail.model.topic import Perm


def topic_missing(facts: TopicFacts, commands: Commands) -> Iterator[Finding]:
    """A group subscribes to a topic that no broker has."""
    if facts.route is None:
        yield Finding(
            "topic-missing",
            Severity.ERROR,
            f"topic {facts.topic}",
            f"No broker has topic {facts.topic}.",
            "It was never created, or was deleted, or the name is misspelled.",
            commands.create_topic(facts.topic),
        )


def topic_unreadable(facts: TopicFacts, commands: Commands) -> Iterator[Finding]:
    """A topic may not be read on some of its brokers."""
    for broker in facts.masters:
        name = broker.broker_name
        if not _has_topic(facts, name) or facts.perm(name) & Perm.READ:
            continue
        yield Finding(
            "topic-unreadable",
            Severity.ERROR,
            f"topic {facts.topic}",
            f"Topic {facts.topic} may not be read on broker {name}: consumers get nothing of its "
            "queues there.",
            "Its read permission was taken away.",
            commands.topic_perm(facts.topic, name, facts.perm(name) | Perm.READ),
            (f"permission {facts.perm(name)} on {name}",),
        )


def topic_unwritable(facts: TopicFacts, commands: Commands) -> Iterator[Finding]:
    """A topic may not be written on some of its brokers."""
    for broker in facts.masters:
        name = broker.broker_name
        if not _has_topic(facts, name) or facts.perm(name) & Perm.WRITE:
            continue
        yield Finding(
            "topic-unwritable",
            Severity.WARNING,
            f"topic {facts.topic}",
            f"Topic {facts.topic} may not be written on broker {name}: producers do not send to "
            "its queues there.",
            "Its write permission was taken away, to shrink it or to move it, and was not given "
            "back.",
            commands.topic_perm(facts.topic, name, facts.perm(name) | Perm.WRITE),
            (f"permission {facts.perm(name)} on {name}",),
        )


def topic_on_some_brokers(facts: TopicFacts, commands: Commands) -> Iterator[Finding]:
    """Some brokers have no queues of a topic, so that they share none of its load."""
    missing = [one.broker_name for one in facts.masters if not _has_topic(facts, one.broker_name)]
    if facts.route is None or not missing:
        return
    having = [one.broker_name for one in facts.route.queues]
    queues = max((one.write_queue_count for one in facts.route.queues), default=8)
    yield Finding(
        "topic-on-some-brokers",
        Severity.NOTICE,
        f"topic {facts.topic}",
        f"Topic {facts.topic} has queues on {few(having)} and none on {few(missing)}.",
        "It was created on one broker only, or automatically by its first message, or before "
        f"{few(missing)} came. When {few(having)} is away nobody can send to it.",
        commands.create_topic(facts.topic, broker=missing[0], queues=queues),
    )


def _has_topic(facts: TopicFacts, broker_name: str) -> bool:
    queues = () if facts.route is None else facts.route.queues
    return any(one.broker_name == broker_name for one in queues)
