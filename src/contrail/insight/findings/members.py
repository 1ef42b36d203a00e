"""Findings from the members' own running info: subscriptions, queues, handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import GroupFacts, MemberFacts, TopicFacts
from contrail.insight.findings.finding import Finding, Severity, few
from contrail.insight.findings.groups import queue_text
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.running_info import ConsumerRunningInfo, ProcessQueue
from contrail.protocol.json_style import MessageQueue

Looks = tuple[ProcessQueue, ProcessQueue]


def models_disagree(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Some members are clustering, others broadcasting."""
    models: dict[str, list[str]] = {}
    for member in facts.members:
        if member.message_model is not None:
            models.setdefault(member.message_model.rpartition(".")[2], []).append(member.client_id)
    if len(models) > 1:
        fewest = min(models.values(), key=len)
        yield Finding(
            "models-disagree",
            Severity.ERROR,
            f"group {facts.group}",
            f"Members of group {facts.group} disagree whether each message goes to one of them "
            "(CLUSTERING) or to all (BROADCASTING).",
            "Two applications, or two releases of one, use the same group name with different "
            "message models. Messages are lost to some and doubled for others. Give one of them "
            "another group.",
            commands.show_client(fewest[0], facts.group),
            tuple(f"{model}: {few(ids)}" for model, ids in sorted(models.items())),
        )


def subscriptions_disagree(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Members of one group subscribe to different topics, tags or expressions."""
    said: dict[str, list[str]] = {}
    for member in facts.members:
        if member.after is not None:
            said.setdefault(_subscription_text(member.after), []).append(member.client_id)
    if len(said) > 1:
        fewest = min(said.values(), key=len)
        yield Finding(
            "subscriptions-disagree",
            Severity.ERROR,
            f"group {facts.group}",
            f"Members of group {facts.group} subscribe to {len(said)} different things.",
            "Queues are dealt to all members alike, so a queue may be dealt to one that does not "
            "want its topic, and brokers keep only the subscription they heard last: messages "
            "are skipped. All members of a group must subscribe to the same; give the others a "
            "group of their own.",
            commands.show_client(fewest[0], facts.group),
            tuple(f"{few(ids)}: {text}" for text, ids in sorted(said.items())),
        )


def members_idle(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """More members than queues."""
    if facts.is_broadcasting or not facts.is_push:
        return
    for topic in _subscribed_topics(facts):
        members = [
            one for one in facts.members if one.after is not None and _wants(one.after, topic.topic)
        ]
        queues = topic.readable_queues()
        idle = [one.client_id for one in members if not _owned(one, topic.topic)]
        if queues and idle and len(members) > len(queues):
            broker_count = len({queue.broker_name for queue in queues})
            yield Finding(
                "members-idle",
                Severity.WARNING,
                f"group {facts.group}",
                f"Group {facts.group} has {len(members)} members for the {len(queues)} queues of "
                f"topic {topic.topic}: {len(idle)} of them have nothing to do.",
                "A queue is consumed by one member of a group. Give the topic more queues, or stop "
                "the members that are too many.",
                commands.grow_topic(topic.topic, ceil(len(members) / broker_count)),
                (f"without a queue: {few(idle)}",),
            )


def queue_without_owner(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """All members reported their queues, and some queues have no owner."""
    for topic, orphans in _orphans(facts):
        if _keep_order_alike(facts):
            # Such queues have an owner that waits for their locks.
            continue
        lag = sum(facts.lag_of(one) for one in orphans)
        yield Finding(
            "queue-without-owner",
            Severity.ERROR if lag else Severity.WARNING,
            f"group {facts.group}",
            f"{len(orphans)} queues of topic {topic} are consumed by no member of group "
            f"{facts.group}; {lag:,} messages wait there.",
            "They were dealt to a member that does not subscribe to the topic, or members see "
            "different lists of members: they share a client id, or deal queues by different "
            "strategies, or one has only just come. Members that subscribe to the same deal "
            "them anew within 20 s.",
            commands.show_client(facts.members[0].client_id, facts.group),
            tuple(f"{queue_text(one)}: lag {facts.lag_of(one):,}, no owner" for one in orphans[:8]),
        )


def consumer_blocked(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """A member holds messages and does not finish any."""

    def is_stuck(before: ProcessQueue, after: ProcessQueue) -> bool:
        return (
            min(before.cached_count, after.cached_count) > 0
            and before.cached_offset_min == after.cached_offset_min
            and before.consumer_offset == after.consumer_offset
        )

    # Brokers know of no lag until the first message is done, hence the lag is not checked.
    for member, stuck in _stuck(facts, is_stuck, has_lag=False):
        failures = _failures(member)
        yield Finding(
            "consumer-blocked",
            Severity.ERROR,
            f"group {facts.group}",
            f"Member {member.client_id} of group {facts.group} holds messages of {len(stuck)} "
            f"queues and finished none in {facts.watched_ms / 1000:g} s.",
            "Its handler fails on the first message, and order makes the others wait."
            if failures and member.is_orderly
            else "Its handler waits for something: a lock, a database, a service that does not "
            "answer. The stack shows where.",
            commands.show_client(member.client_id, facts.group, stack=True),
            (
                *(
                    f"{queue_text(queue)}: at {looks[1].cached_offset_min:,}, "
                    f"{looks[1].cached_count:,} held"
                    for queue, looks in list(stuck.items())[:8]
                ),
                *failures,
            ),
        )


def member_not_pulling(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """A member owns a queue with messages and does not fetch them."""
    if any(not config.consume_enable for config in facts.configs.values()):
        return

    def is_stuck(before: ProcessQueue, after: ProcessQueue) -> bool:
        return (
            before.cached_count == after.cached_count == 0
            and before.consumer_offset == after.consumer_offset
            and before.last_pull_ms == after.last_pull_ms
        )

    for member, stuck in _stuck(facts, is_stuck):
        if member.is_orderly and not any(looks[1].is_locked for looks in stuck.values()):
            continue
        yield Finding(
            "member-not-pulling",
            Severity.ERROR,
            f"group {facts.group}",
            f"Member {member.client_id} of group {facts.group} owns {len(stuck)} queues with "
            "messages and does not fetch them.",
            "The application paused the consumer, or its connection to the broker is stuck, or "
            "the broker refuses its pulls.",
            commands.show_client(member.client_id, facts.group, stack=True),
            tuple(f"{queue_text(queue)}: lag {facts.lag_of(queue):,}" for queue in list(stuck)[:8]),
        )


def queue_not_locked(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Members that keep order do not get the locks of their queues."""

    def is_unlocked(before: ProcessQueue, after: ProcessQueue) -> bool:
        return not before.is_locked and not after.is_locked

    # A member does not count a queue as its own before it has the lock, and may lose it later.
    waiting = [one for _, orphans in _orphans(facts) for one in orphans]
    waiting = waiting if _keep_order_alike(facts) else []
    for member, stuck in _stuck(facts, is_unlocked):
        waiting += list(stuck) if member.is_orderly else []
    if waiting:
        yield Finding(
            "queue-not-locked",
            Severity.ERROR,
            f"group {facts.group}",
            f"Group {facts.group} keeps order, and its members do not get the locks of "
            f"{len(waiting)} queues: they are another's.",
            "A member that ended without giving them back still holds the locks; brokers forget "
            "them a minute after it was heard of last. If this lasts longer, that member still "
            "runs: find it among the clients and end it.",
            commands.clients_of(facts.group),
            tuple(
                f"{queue_text(queue)}: not locked, lag {facts.lag_of(queue):,}"
                for queue in waiting[:8]
            ),
        )


def filter_matches_nothing(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Members subscribe to tags that no recent message has."""
    for topic in _subscribed_topics(facts):
        wanted = facts.connections.subscriptions[topic.topic]
        if not wanted.by_tag or wanted.takes_all or not topic.tags:
            continue
        if not wanted.tags & topic.tags.keys():
            count = sum(topic.tags.values())
            yield Finding(
                "filter-matches-nothing",
                Severity.WARNING,
                f"group {facts.group}",
                f"Group {facts.group} wants only {' || '.join(sorted(wanted.tags))} of topic "
                f"{topic.topic}, and none of its newest {count:,} messages has such a tag.",
                "The tag is misspelled on one side (case counts), or producers send without tags. "
                "Brokers skip what does not match, so there is no lag and nothing arrives.",
                commands.tail(topic.topic),
                tuple(
                    f"{number:,} messages with {f'tag {tag}' if tag else 'no tag'}"
                    for tag, number in sorted(topic.tags.items())
                ),
            )


def _orphans(facts: GroupFacts) -> Iterator[tuple[str, list[MessageQueue]]]:
    """Queues without an owner, by topic, where members share queues and all reported theirs."""
    if facts.is_broadcasting or not facts.is_push or not facts.everybody_told:
        return
    for topic in _subscribed_topics(facts):
        orphans = [one for one in topic.readable_queues() if facts.owner_of(one) is None]
        if orphans:
            yield topic.topic, orphans


def _keep_order_alike(facts: GroupFacts) -> bool:
    said = {_subscription_text(one.after) for one in facts.members if one.after is not None}
    return len(said) == 1 and all(one.is_orderly for one in facts.members)


def _stuck(
    facts: GroupFacts,
    is_stuck: Callable[[ProcessQueue, ProcessQueue], bool],
    *,
    has_lag: bool = True,
) -> Iterator[tuple[MemberFacts, dict[MessageQueue, Looks]]]:
    """Members with the queues that looked stuck both times; retries do not count."""
    for member in facts.members:
        if member.before is None or member.after is None:
            continue
        stuck = {
            queue: (member.before.queues[queue], after)
            for queue, after in member.after.queues.items()
            if queue in member.before.queues
            and not queue.topic.startswith(RETRY_PREFIX)
            and (not has_lag or _is_behind(facts, queue, after))
            and is_stuck(member.before.queues[queue], after)
        }
        if stuck:
            yield member, stuck


def _is_behind(facts: GroupFacts, queue: MessageQueue, held: ProcessQueue) -> bool:
    """By the member's own offset, which it writes to the broker only every few seconds."""
    return any(
        one.broker_offset > max(held.consumer_offset, one.consumer_offset)
        for one in facts.after.queues
        if one.queue == queue
    )


def _subscribed_topics(facts: GroupFacts) -> Iterator[TopicFacts]:
    for topic in facts.connections.subscriptions:
        if topic in facts.topics and not topic.startswith(RETRY_PREFIX):
            yield facts.topics[topic]


def _wants(info: ConsumerRunningInfo, topic: str) -> bool:
    return any(one.topic == topic for one in info.subscriptions)


def _owned(member: MemberFacts, topic: str) -> bool:
    queues = {} if member.after is None else member.after.queues
    return any(queue.topic == topic for queue in queues)


def _failures(member: MemberFacts) -> list[str]:
    rates = {} if member.after is None else member.after.rates
    return [
        f"{one.failed_count:,} failures on {topic} in the last hour"
        for topic, one in rates.items()
        if one.failed_count
    ]


def _subscription_text(info: ConsumerRunningInfo) -> str:
    wanted = sorted(
        (one for one in info.subscriptions if not one.topic.startswith(RETRY_PREFIX)),
        key=lambda one: one.topic,
    )
    return "; ".join(map(_expression_text, wanted)) or "nothing"


def _expression_text(one: SubscriptionData) -> str:
    if one.expression_type == SQL92:
        return f"{one.topic} where {one.sub_string}"
    if one.takes_all:
        return f"{one.topic} (all tags)"
    return f"{one.topic} tags {' || '.join(sorted(one.tags))}"
