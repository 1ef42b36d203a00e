"""The admin client on a group's progress: lag, committed offsets, reset, clone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from contrail.client.admin_asking import decoded, number_field
from contrail.client.admin_groups import GroupAdmin
from contrail.client.admin_values import BrokerAddress, GroupLag, Moment
from contrail.client.queue_places import epoch_ms
from contrail.client.state.lag import group_lag
from contrail.errors import BrokerRefused, ClientError, OffsetIllegal, SomeFailed
from contrail.protocol.bodies.consume_stats import (
    ConsumeStats,
    QueueTimeSpan,
    decode_consume_stats,
    decode_consume_stats_list,
    decode_time_spans,
)
from contrail.protocol.bodies.properties_text import parse_properties
from contrail.protocol.bodies.reset import decode_reset_offsets
from contrail.protocol.bodies.tables import TopicList
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue

# RocketMQ's reset time that means the end of the queues.
_TO_END_MS = -1
_SERVER_SIDE_RESET = "useServerSideResetOffset"
# A group may have thousands of queues on a broker.
_STATS_TIMEOUT_FACTOR = 3


class OffsetAdmin(GroupAdmin):
    """Lag and consumer offsets of groups, and their resets."""

    # Looking.

    async def lag(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        allow_partial: bool = False,
    ) -> GroupLag:
        """How far a group is behind on each queue of a topic, or of all topics it consumes.

        A queue without a committed offset counts from its beginning. Empty for a group that never
        committed an offset.

        Raises:
            ClientError: no broker knows the group.
            SomeFailed: not every broker answered.
        """
        what = f"the lag of group {group!r}" + ("" if topic is None else f" on topic {topic!r}")
        fields = {"consumerGroup": group} | ({} if topic is None else {"topic": topic})

        async def ask(broker: BrokerAddress) -> ConsumeStats:
            answer = await self._ask(
                broker,
                RequestCode.GET_CONSUME_STATS,
                fields,
                what,
                timeout_ms=_STATS_TIMEOUT_FACTOR * self._timeout_ms,
            )
            return decoded(decode_consume_stats, answer, what)

        brokers = await (
            self._masters(cluster=cluster) if topic is None else self._topic_brokers(topic)
        )
        lag = await self._ask_each(
            brokers,
            ask,
            lambda answers: group_lag(group, answers.values()),
            what,
            allow_partial=allow_partial,
        )
        if not any(one.consumer_offset > 0 for one in lag.queues):
            # Brokers answer for an unknown group as for a group without lag.
            await self._require_known(group, cluster, allow_partial=allow_partial)
        return lag

    async def _require_known(self, group: str, cluster: str | None, *, allow_partial: bool) -> None:
        try:
            is_known = await self._is_known(group, cluster)
        except SomeFailed:
            if not allow_partial:
                raise
            # A broker that did not answer may know the group.
            return
        if not is_known:
            raise ClientError(
                f"no broker knows consumer group {group!r}: it has never consumed, or the name is "
                "wrong; see groups()"
            )

    async def _is_known(self, group: str, cluster: str | None) -> bool:
        """Whether the group has settings, offsets or members on any broker."""
        if group in await self.groups(cluster=cluster, internal=True):
            return True
        if await self.group_topics(group, cluster=cluster):
            return True
        return bool((await self.group_connections(group, cluster=cluster)).connections)

    async def lags(
        self,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        allow_partial: bool = False,
    ) -> dict[str, GroupLag]:
        """The lag of every group, with one request to each broker, or on one ``broker``."""
        what = "the lag of all groups"

        async def ask(broker: BrokerAddress) -> dict[str, list[ConsumeStats]]:
            answer = await self._ask(
                broker,
                RequestCode.GET_BROKER_CONSUME_STATS,
                {"isOrder": "false"},
                what,
                timeout_ms=_STATS_TIMEOUT_FACTOR * self._timeout_ms,
            )
            return decoded(decode_consume_stats_list, answer, what)

        brokers = await self._masters(cluster=cluster, broker=broker)
        return await self._ask_each(brokers, ask, _lags_by_group, what, allow_partial=allow_partial)

    async def group_topics(
        self, group: str, *, cluster: str | None = None, allow_partial: bool = False
    ) -> list[str]:
        """The topics on which a group has offsets, its retry topic included."""
        what = f"the topics of group {group!r}"

        async def ask(broker: BrokerAddress) -> set[str]:
            answer = await self._ask(
                broker,
                RequestCode.QUERY_TOPICS_BY_CONSUMER,
                {"group": group},
                what,
                accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
            )
            if answer.code == ResponseCode.SUCCESS:
                return set(decoded(TopicList.decode, answer, what).topics)
            # Brokers before 5.0 report it with the group's progress.
            fields = {"consumerGroup": group}
            answer = await self._ask(broker, RequestCode.GET_CONSUME_STATS, fields, what)
            stats = decoded(decode_consume_stats, answer, what)
            return {queue.topic for queue in stats.progress}

        return await self._ask_each(
            await self._masters(cluster=cluster),
            ask,
            lambda answers: sorted({topic for topics in answers.values() for topic in topics}),
            what,
            allow_partial=allow_partial,
        )

    async def consume_time_spans(
        self, group: str, topic: str, *, allow_partial: bool = False
    ) -> list[QueueTimeSpan]:
        """The oldest and newest store time of each queue, and that of the last consumed message."""
        what = f"the time spans of group {group!r} on topic {topic!r}"

        async def ask(broker: BrokerAddress) -> list[QueueTimeSpan]:
            fields = {"topic": topic, "group": group}
            answer = await self._ask(broker, RequestCode.QUERY_CONSUME_TIME_SPAN, fields, what)
            return decoded(decode_time_spans, answer, what)

        return await self._ask_each(
            await self._topic_brokers(topic),
            ask,
            lambda answers: sorted(
                (span for spans in answers.values() for span in spans), key=lambda one: one.queue
            ),
            what,
            allow_partial=allow_partial,
        )

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """A group's offset on a queue; None where it has none."""
        what = f"the offset of group {group!r} on queue {queue.queue_id} of {queue.topic!r}"
        answer = await self._ask(
            await self._broker_of(queue),
            RequestCode.QUERY_CONSUMER_OFFSET,
            {
                "consumerGroup": group,
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "setZeroIfNotFound": "false",
            },
            what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return number_field(answer, "offset", what)

    async def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """``committed`` for all queues of a topic."""
        queues = await self.queues(topic)
        found = await asyncio.gather(*(self.committed(group, queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    # Moving.

    async def commit_offset(self, group: str, queue: MessageQueue, consumer_offset: int) -> None:
        """Write a group's offset as a member would; members that are online overwrite it."""
        await self._ask(
            await self._broker_of(queue),
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {
                "consumerGroup": group,
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "commitOffset": str(consumer_offset),
            },
            f"the offset of group {group!r} on queue {queue.queue_id} of {queue.topic!r}",
        )

    async def reset_to_time(
        self, group: str, topic: str, moment: Moment, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group to the first message stored at or after a time, on all queues of a topic.

        Without ``force`` a queue whose group is already before that time stays where it is, on
        brokers that leave the decision to clients. Works for groups on line and off line.

        Raises:
            SomeFailed: not every broker did it.
        """
        return await self._reset(group, topic, epoch_ms(moment), force)

    async def reset_to_begin(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Have a group consume all stored messages again."""
        return await self._reset(group, topic, 0, True)

    async def skip_to_end(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Have a group skip all messages stored until now."""
        return await self._reset(group, topic, _TO_END_MS, True)

    async def _reset(
        self, group: str, topic: str, timestamp_ms: int, force: bool
    ) -> dict[MessageQueue, int]:
        return await self._ask_each(
            await self._topic_brokers(topic),
            lambda broker: self._reset_on(broker, group, topic, timestamp_ms, force),
            _one_table,
            f"the reset of group {group!r} on topic {topic!r}",
        )

    async def _reset_on(
        self, broker: BrokerAddress, group: str, topic: str, timestamp_ms: int, force: bool
    ) -> dict[MessageQueue, int]:
        what = f"the reset of group {group!r} on topic {topic!r}"
        fields = {
            "group": group,
            "topic": topic,
            "timestamp": str(timestamp_ms),
            "isForce": "true" if force else "false",
        }
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        try:
            answer = await self._ask(broker, code, fields, what)
        except BrokerRefused as refusal:
            if not await self._is_ours_to_set(broker, group, refusal):
                raise
            return await self._reset_offline(broker, group, topic, timestamp_ms, force)
        return decoded(decode_reset_offsets, answer, what)

    async def _is_ours_to_set(
        self, broker: BrokerAddress, group: str, refusal: BrokerRefused
    ) -> bool:
        """Whether a broker that resets by notifying members found no member.

        Before it looks for members it refuses a group without an offset by SYSTEM_ERROR.
        """
        if refusal.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return True
        if refusal.code != ResponseCode.SYSTEM_ERROR or await self._resets_by_itself(broker):
            return False
        return not await self._has_members(broker, group)

    async def _reset_offline(
        self, broker: BrokerAddress, group: str, topic: str, timestamp_ms: int, force: bool
    ) -> dict[MessageQueue, int]:
        queues = [one for one in await self.queues(topic) if one.broker_name == broker.broker_name]
        placed: dict[MessageQueue, int] = {}
        for queue in queues:
            place = await self._place(queue, timestamp_ms)
            known = None if force else await self.committed(group, queue)
            placed[queue] = place if known is None else min(place, known)
            await self.commit_offset(group, queue, placed[queue])
        return placed

    async def _place(self, queue: MessageQueue, timestamp_ms: int) -> int:
        if timestamp_ms == _TO_END_MS:
            return await self.queue_offset_max(queue)
        return max(0, await self.search_offset(queue, timestamp_ms))

    async def reset_to_offset(
        self, group: str, queue: MessageQueue, queue_offset: int
    ) -> dict[MessageQueue, int]:
        """Move a group to a queue offset of one queue.

        Raises:
            OffsetIllegal: the queue has no such offset.
            ClientError: the broker cannot do it while the group has members; the message says so.
        """
        low, high = await asyncio.gather(self.queue_offset_min(queue), self.queue_offset_max(queue))
        if not low <= queue_offset <= high:
            raise OffsetIllegal(
                f"offset {queue_offset} is outside queue {queue.queue_id} of topic "
                f"{queue.topic!r} on broker {queue.broker_name!r}, which has {low} to {high}"
            )
        broker = await self._broker_of(queue)
        if await self._resets_by_itself(broker):
            return await self._reset_queue(broker, group, queue, queue_offset)
        await self._require_offline(broker, group)
        await self.commit_offset(group, queue, queue_offset)
        return {queue: queue_offset}

    async def _reset_queue(
        self, broker: BrokerAddress, group: str, queue: MessageQueue, queue_offset: int
    ) -> dict[MessageQueue, int]:
        what = f"the reset of group {group!r} on queue {queue.queue_id} of topic {queue.topic!r}"
        fields = {
            "group": group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "offset": str(queue_offset),
            "timestamp": "0",
            "isForce": "true",
        }
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return decoded(decode_reset_offsets, await self._ask(broker, code, fields, what), what)

    async def _resets_by_itself(self, broker: BrokerAddress) -> bool:
        """Other brokers ignore the named queue, and would move the group on all queues."""
        what = f"setting {_SERVER_SIDE_RESET}"
        answer = await self._ask(broker, RequestCode.GET_BROKER_CONFIG, {}, what)
        settings = parse_properties(answer.body.decode("utf-8", "replace"))
        return settings.get(_SERVER_SIDE_RESET) == "true"

    async def _require_offline(self, broker: BrokerAddress, group: str) -> None:
        if await self._has_members(broker, group):
            raise ClientError(
                f"{broker} cannot move group {group!r} on one queue while the group has members, "
                f"which would overwrite it: stop them first, set {_SERVER_SIDE_RESET}=true there "
                "(RocketMQ 5.1 or newer), or reset by time"
            )

    async def _has_members(self, broker: BrokerAddress, group: str) -> bool:
        connections = await self._connections_on(broker, group)
        return connections is not None and bool(connections.connections)

    async def clone_offsets(
        self, source: str, destination: str, topic: str, *, offline: bool = True
    ) -> dict[MessageQueue, int | None]:
        """Copy a group's progress on a topic to another group; returns the other group's offsets.

        Without ``offline`` only topics that ``source`` subscribes to at the moment are copied.

        Raises:
            SomeFailed: not every broker did it.
        """
        what = f"the offsets of group {source!r} on topic {topic!r} for group {destination!r}"
        fields = {
            "srcGroup": source,
            "destGroup": destination,
            "topic": topic,
            "offline": "true" if offline else "false",
        }
        await self._ask_each(
            await self._topic_brokers(topic),
            lambda broker: self._ask(broker, RequestCode.CLONE_GROUP_OFFSET, fields, what),
            list,
            what,
        )
        return await self.committed_offsets(destination, topic)


def _one_table(answers: Mapping[str, Mapping[MessageQueue, int]]) -> dict[MessageQueue, int]:
    table = {queue: place for answer in answers.values() for queue, place in answer.items()}
    return dict(sorted(table.items()))


def _lags_by_group(
    answers: Mapping[str, Mapping[str, list[ConsumeStats]]],
) -> dict[str, GroupLag]:
    groups = sorted({group for answer in answers.values() for group in answer})
    return {
        group: group_lag(
            group, [stats for answer in answers.values() for stats in answer.get(group, ())]
        )
        for group in groups
    }
