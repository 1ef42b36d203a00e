"""Dead letters: which groups have them, reading them, their origin and cause, their copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from contrail.client.admin import Admin
from contrail.client.dead_letters import closed_text, origin_id, origin_topic, retries_max_in
from contrail.client.message import ReceivedMessage
from contrail.errors import ClientError, DeadLettersClosed, NotOnCluster
from contrail.insight.copies import Copy, Original, Skipped, replayed
from contrail.model.topic import DLQ_PREFIX, dlq_topic


@dataclass(frozen=True, slots=True)
class Wanted:
    """A selection of dead letters; times are those at which they became dead letters."""

    tags: Sequence[str] = ()
    keys: Sequence[str] = ()
    message_ids: Sequence[str] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def fits(self, letter: ReceivedMessage) -> bool:
        stored_ms = letter.store_timestamp_ms
        return (
            (not self.tags or letter.tags in self.tags)
            and (not self.keys or not set(self.keys).isdisjoint(letter.keys))
            and (not self.message_ids or not set(self.message_ids).isdisjoint(ids_of(letter)))
            and (self.since_ms is None or stored_ms >= self.since_ms)
            and (self.until_ms is None or stored_ms < self.until_ms)
        )


async def groups_with_letters(admin: Admin) -> list[dict[str, object]]:
    """A row for each group that has dead letters."""
    topics = [topic for topic in await admin.topics() if topic.startswith(DLQ_PREFIX)]
    rows = [await summary_of(admin, topic) for topic in topics]
    return [row for row in rows if row["count"]]


async def summary_of(admin: Admin, topic: str) -> dict[str, object]:
    """How many dead letters a topic holds, of which time, and where they are closed."""
    stats = await admin.topic_stats(topic)
    filled = [one for one in stats.queues if one.count]
    oldest = [await admin.earliest_store_time_ms(one.queue) for one in filled]
    newest = [one.last_store_timestamp_ms for one in filled]
    group = topic.removeprefix(DLQ_PREFIX)
    return {
        "group": group,
        "topic": topic,
        "count": stats.count,
        "closed_on": await admin.closed_dead_letters(group),
        "oldest_timestamp_ms": min((ms for ms in oldest if ms > 0), default=None),
        "newest_timestamp_ms": max((ms for ms in newest if ms > 0), default=None),
    }


async def letters_of(
    admin: Admin, group: str, wanted: Wanted, *, count_max: int | None = None
) -> list[ReceivedMessage]:
    """A group's selected dead letters, queue by queue; with ``count_max`` at most that many.

    Raises:
        NotOnCluster: the group never had a dead letter.
        DeadLettersClosed: a broker's dead-letter topic is not readable.
    """
    await require_letters(admin, group)
    closed = closed_text(group, await admin.closed_dead_letters(group))
    if closed is not None:
        raise DeadLettersClosed(closed)
    found: list[ReceivedMessage] = []
    async for one in _read(admin, group, wanted):
        if count_max is not None and len(found) >= count_max:
            break
        found.append(one)
    return found


async def _read(admin: Admin, group: str, wanted: Wanted) -> AsyncIterator[ReceivedMessage]:
    for queue in await admin.queues(dlq_topic(group)):
        start = None
        if wanted.since_ms is not None:
            start = await admin.search_offset(queue, wanted.since_ms)
        async for one in admin.browse(queue, start=start):
            if wanted.fits(one):
                yield one


async def require_letters(admin: Admin, group: str) -> None:
    """Raises ``NotOnCluster`` for a group that never had a dead letter."""
    if await admin.dead_letter_topic(group) is None:
        raise NotOnCluster(
            f"group {group!r} has no dead letters here: `contrail dlq list` shows the groups "
            "that have"
        )


async def retries_max_of(admin: Admin, group: str) -> int:
    """How often a group's messages are retried; the default for a deleted group."""
    try:
        return retries_max_in(await admin.group_config(group), group)
    except ClientError:
        return retries_max_in({}, group)


def ids_of(letter: ReceivedMessage) -> set[str]:
    """The ids by which people know a dead letter: its own two, and that of its origin."""
    return {letter.message_id, letter.offset_message_id, letter_origin_id(letter)}


def letter_origin_id(letter: ReceivedMessage) -> str:
    return origin_id(letter.properties, letter.message_id)


def replay_plan(letters: Iterable[ReceivedMessage], to_topic: str | None) -> list[str]:
    """The plan of a replay, for a person to agree to."""
    targets = Counter(to_topic or origin_topic(one.properties) for one in letters)
    nowhere = targets.pop(None, 0)
    lines = [f"dead letters to topic {topic}: {count:,}" for topic, count in targets.most_common()]
    if nowhere:
        lines.append(f"skipped, since they name no origin (--to-topic): {nowhere:,}")
    return lines or ["no dead letter fits"]


def replay_copy(letter: ReceivedMessage, to_topic: str | None, job_id: str) -> Copy | Skipped:
    """The copy of a dead letter that a replay sends."""
    return replayed(
        Original(
            letter.queue,
            letter.queue_offset,
            letter.body,
            letter.flag,
            letter.properties,
            letter.message_id,
            letter.store_timestamp_ms,
        ),
        to_topic,
        job_id,
    )
