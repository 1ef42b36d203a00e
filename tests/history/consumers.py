"""Groups that read the messages of a broker under a campaign."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from contrail.model.message import StoredMessage
from contrail.model.properties import RETRY_TOPIC, UNIQ_KEY
from contrail.model.record import split_record_run
from contrail.model.topic import is_closed_topic
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from tests.e2e.raw_client import pull_fields
from tests.history.campaign import Campaign, digest
from tests.history.events import ConsumerCrashed, Drained, Received

READERS = "readers"
AUDITORS = "auditors"


class Consumers:
    """Every reading group: its offsets and the messages it has seen."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        # The next queue offset, by group, topic and queue.
        self._offsets: dict[tuple[str, str, int], int] = {}
        # How often each group has seen a key in a topic, by the number of its retries.
        self._seen: dict[str, Counter[tuple[str, str, int]]] = defaultdict(Counter)

    def has_seen(self, group: str, topic: str, key: str, reconsume_times: int = 0) -> bool:
        return (topic, key, reconsume_times) in self._seen[group]

    def read(self, group: str, topics: Mapping[str, int]) -> list[StoredMessage]:
        """Read all messages of these topics that the group has not read."""
        found: list[StoredMessage] = []
        for topic, queue_count in topics.items():
            for queue_id in range(queue_count):
                found += self.read_queue(group, topic, queue_id)
        return found

    def read_queue(self, group: str, topic: str, queue_id: int) -> list[StoredMessage]:
        place = (group, topic, queue_id)
        found: list[StoredMessage] = []
        while True:
            answer = self._pull(group, topic, queue_id, self._offsets.get(place, 0))
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return found
            for message in split_record_run(answer.body):
                self._note_received(group, message)
                found.append(message)
            self._offsets[place] = int(answer.fields["nextBeginOffset"])
            if self._offsets[place] >= int(answer.fields["maxOffset"]):
                return found

    def _pull(self, group: str, topic: str, queue_id: int, queue_offset: int) -> ReceivedResponse:
        fields = pull_fields(
            topic, queue_offset, sysFlag="4", consumerGroup=group, queueId=str(queue_id)
        )
        # The broker's own topics are read by operators only.
        is_closed = is_closed_topic(topic)
        code = RequestCode.LIST_SYSTEM_MESSAGES if is_closed else RequestCode.PULL_MESSAGE
        return self._ask(code, fields)

    def _ask(self, code: int, fields: Mapping[str, str]) -> ReceivedResponse:
        answer = self._campaign.client.call(code, fields)
        assert answer is not None, "the broker ended by itself"
        return answer

    def _note_received(self, group: str, message: StoredMessage) -> None:
        properties = message.properties
        key = properties.get(UNIQ_KEY, "")
        self._seen[group][message.topic, key, message.reconsume_times] += 1
        kept = {name: properties[name] for name in (RETRY_TOPIC,) if name in properties}
        event = Received(
            self._campaign.clock.now_ms(),
            group,
            group,
            message.topic,
            message.queue_id,
            message.queue_offset,
            key,
            digest(message.body),
            message.store_timestamp_ms,
            message.reconsume_times,
            kept,
        )
        self._campaign.events.append(event)

    # Offsets.

    def crash(self, group: str, topics: Mapping[str, int]) -> None:
        """Forget the group's offsets; it goes on at the offsets that the broker stored."""
        campaign = self._campaign
        campaign.events.append(ConsumerCrashed(campaign.clock.now_ms(), group))
        for topic, queue_count in topics.items():
            for queue_id in range(queue_count):
                stored = self._stored_offset(group, topic, queue_id)
                self._offsets[group, topic, queue_id] = stored

    def _stored_offset(self, group: str, topic: str, queue_id: int) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        answer = self._ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0

    def store_offsets(self, group: str) -> None:
        """Write the group's offsets to the broker."""
        for (reader, topic, queue_id), queue_offset in self._offsets.items():
            if reader == group:
                fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                fields["commitOffset"] = str(queue_offset)
                self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    # The end.

    def drain(self, topics: Mapping[str, int], *groups: str) -> None:
        """Read all queues to their end, for the last time."""
        campaign = self._campaign
        for group in groups:
            for topic, queue_count in topics.items():
                for queue_id in range(queue_count):
                    self.read_queue(group, topic, queue_id)
                    end = self._offsets.get((group, topic, queue_id), 0)
                    now_ms = campaign.clock.now_ms()
                    campaign.events.append(Drained(now_ms, group, topic, queue_id, 0, end))
