"""Findings about a consumer group as brokers know it: members, settings, offsets."""

from __future__ import annotations

from collections.abc import Iterator

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import GroupFacts
from contrail.insight.findings.finding import Finding, Severity, few
from contrail.insight.words import time_text
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.json_style import MessageQueue

# Dead letters are growing while the last one is younger than this.
DEAD_LETTER_AGE_MS = 3_600_000
# A message that failed this often rarely succeeds later.
POISON_RETRY_COUNT = 3
POISON_AGE_MS = 3_600_000


def queue_text(queue: MessageQueue) -> str:
    return f"{queue.topic} {queue.broker_name}:{queue.queue_id}"


def group_offline(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Messages wait, and the group has no consumer online."""
    waiting = sum(facts.lag_by_topic().values())
    if facts.connections.is_online or not (waiting or facts.is_named):
        return
    last_ms = max((one.last_timestamp_ms for one in facts.after.queues), default=0)
    lags = facts.lag_by_topic()
    topic = max(lags, key=lambda name: lags[name], default=next(iter(facts.topics), "TOPIC"))
    yield Finding(
        "group-offline",
        Severity.ERROR if waiting else Severity.NOTICE,
        f"group {facts.group}",
        f"Group {facts.group} has no member online; {waiting:,} messages wait for it.",
        "Its consumers are stopped, cannot reach the brokers, or use another group name: start "
        "them, after a look at the waiting messages."
        + (f" The last message it consumed was stored at {time_text(last_ms)}." if last_ms else ""),
        commands.tail(topic),
        tuple(f"lag {lag:,} on {name}" for name, lag in sorted(facts.lag_by_topic().items())),
    )


def not_subscribed(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Members are online, and none subscribes to a topic on which the group has a lag."""
    if not facts.connections.is_online or facts.is_broadcasting:
        return
    wanted = facts.connections.subscriptions
    for topic, lag in sorted(facts.unwanted.items()):
        if lag > 0:
            subscribed = [name for name in wanted if not name.startswith(RETRY_PREFIX)]
            members = [one.client_id for one in facts.connections.connections]
            yield Finding(
                "not-subscribed",
                Severity.ERROR,
                f"group {facts.group}",
                f"{lag:,} messages of topic {topic} wait for group {facts.group}, and none of its "
                "members subscribes to that topic.",
                "The consumers subscribe to other topics now. If that is meant, let the group skip "
                "the waiting messages; otherwise subscribe in the application.",
                commands.seek(facts.group, topic, "latest"),
                (
                    f"members: {few(members)}",
                    f"they subscribe to {few(subscribed) or 'nothing'}",
                ),
            )


def consume_disabled(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """The group's settings forbid it to consume."""
    disabled = [name for name, config in facts.configs.items() if not config.consume_enable]
    if disabled:
        yield Finding(
            "consume-disabled",
            Severity.ERROR,
            f"group {facts.group}",
            f"Group {facts.group} is not allowed to consume on {few(disabled)}.",
            "Its setting consumeEnable is false: an operator stopped the group there.",
            commands.enable_group(facts.group),
            tuple(f"consumeEnable=false on {name}" for name in disabled),
        )


def offset_beyond_end(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """A group's offset is past the end of a queue: new messages do not reach it."""
    if facts.is_broadcasting:
        return
    beyond: dict[str, list[str]] = {}
    for one in facts.after.queues:
        if one.consumer_offset > one.broker_offset:
            text = f"{queue_text(one.queue)}: at {one.consumer_offset:,}, "
            text += f"the queue ends at {one.broker_offset:,}"
            beyond.setdefault(one.queue.topic, []).append(text)
    for topic, evidence in beyond.items():
        yield Finding(
            "offset-beyond-end",
            Severity.ERROR,
            f"group {facts.group}",
            f"Group {facts.group} is past the end of {len(evidence)} queues of topic {topic}.",
            "The topic was deleted and created again, or a broker lost its store, or offsets of "
            "another cluster were copied. New messages are not consumed until they reach the "
            "group's place, or a member corrects it.",
            commands.seek(facts.group, topic, "earliest"),
            tuple(evidence),
        )


def offset_expired(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """A group's next message was deleted before the group consumed it."""
    if facts.is_broadcasting:
        return
    lost: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    for one in facts.after.queues:
        known = facts.topics.get(one.queue.topic)
        reach = None if known is None else known.reach_of(one.queue)
        if reach is not None and 0 <= one.consumer_offset < reach.queue_offset_min:
            text = f"{queue_text(one.queue)}: at {one.consumer_offset:,}, "
            text += f"the queue begins at {reach.queue_offset_min:,}"
            lost.setdefault(one.queue.topic, []).append(text)
            count = reach.queue_offset_min - one.consumer_offset
            counts[one.queue.topic] = counts.get(one.queue.topic, 0) + count
    for topic, evidence in lost.items():
        yield Finding(
            "offset-expired",
            Severity.ERROR,
            f"group {facts.group}",
            f"{counts[topic]:,} messages of topic {topic} were deleted before group {facts.group} "
            "consumed them.",
            "The group is further behind than messages are kept (fileReservedTime), or the disk "
            "became full. Deleted messages cannot be consumed; go on with the oldest that is left.",
            commands.seek(facts.group, topic, "earliest"),
            tuple(evidence),
        )


def dead_letters_growing(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """Messages are given up now."""
    stats = facts.dead_letters
    if stats is None or stats.count == 0:
        return
    last_ms = max(one.last_store_timestamp_ms for one in stats.queues)
    if facts.now_ms - last_ms <= DEAD_LETTER_AGE_MS:
        yield Finding(
            "dlq-growing",
            Severity.WARNING,
            f"group {facts.group}",
            f"Group {facts.group} gives up messages: {stats.count:,} dead letters, the last of "
            f"{time_text(last_ms)}.",
            "Its handlers fail on them at every retry. See what they are, mend the handler, and "
            f"send them again with `contrail dlq replay {facts.group}`.",
            commands.dead_letters(facts.group),
            (f"{stats.topic} holds {stats.count:,}",),
        )


def poison_message(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """The same message fails again and again."""
    failing = [
        one
        for one in facts.retried
        if one.reconsume_times >= POISON_RETRY_COUNT
        and facts.now_ms - one.stored_ms <= POISON_AGE_MS
    ]
    if failing:
        worst = max(failing, key=lambda one: one.reconsume_times)
        yield Finding(
            "poison-message",
            Severity.WARNING,
            f"group {facts.group}",
            f"A message of topic {worst.topic} failed {worst.reconsume_times} times in group "
            f"{facts.group}, and comes again.",
            "The handler raises on it each time, or asks for it later; after the group's last "
            "retry it becomes a dead letter. See what it is and mend the handler.",
            commands.message(worst.topic, worst.message_id),
            tuple(
                f"{one.message_id} of {one.topic}: {one.reconsume_times} times"
                for one in failing[:5]
            ),
        )


def never_acknowledged(facts: GroupFacts, commands: Commands) -> Iterator[Finding]:
    """A popped message is handed out again and again, and no consumer acknowledges it."""
    failing = [one for one in facts.in_flight if one.attempts > POISON_RETRY_COUNT]
    if failing:
        worst = max(failing, key=lambda one: one.attempts)
        yield Finding(
            "never-acknowledged",
            Severity.WARNING,
            f"group {facts.group}",
            f"A message of topic {worst.topic} was popped {worst.attempts} times by group "
            f"{facts.group}, and no consumer has acknowledged it.",
            "Its handler fails, or takes longer than the invisible time without renewing it: the "
            "acknowledgement then comes too late. See who has it, mend the handler or raise "
            f"pop_invisible_time_ms; `contrail group ack {facts.group} HANDLE` ends it by hand.",
            commands.in_flight(facts.group),
            tuple(
                f"{one.message_id or one.handle} of {one.topic}: {one.attempts} times, held by "
                f"{one.client_id or one.holder or 'a consumer of before a restart'}"
                for one in failing[:5]
            ),
        )
