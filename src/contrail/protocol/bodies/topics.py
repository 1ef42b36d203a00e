"""Bodies about topics: settings of one or all, a list to create, offsets of queues."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from contrail.model.data_version import DataVersion
from contrail.model.fastjson import Fields
from contrail.model.topic import TopicConfig
from contrail.protocol.json_style import (
    MessageQueue,
    at_once,
    body_errors,
    decode_body,
    decode_message_queue,
    encode_body,
    rendered_object,
)


class QueueReach(NamedTuple):
    """The range of a queue's offsets, and the store time of its last message."""

    queue_offset_min: int
    queue_offset_max: int
    last_store_timestamp_ms: int

    def to_fields(self) -> dict[str, object]:
        return {
            "lastUpdateTimestamp": self.last_store_timestamp_ms,
            "maxOffset": self.queue_offset_max,
            "minOffset": self.queue_offset_min,
        }


def encode_topic(config: TopicConfig) -> bytes:
    """The answer to GET_TOPIC_CONFIG; Contrail has no queue mappings to add."""
    return encode_body(config.to_fields())


def encode_topic_table(topics: Mapping[str, TopicConfig], data_version: DataVersion) -> bytes:
    """The answer to GET_ALL_TOPIC_CONFIG; the tables of queue mappings are empty."""
    return at_once(topic_table_steps(topics, data_version))


def topic_table_steps(
    topics: Mapping[str, TopicConfig], data_version: DataVersion
) -> Generator[None, None, bytes]:
    """As ``encode_topic_table``, with a step for each topic."""
    table = yield from rendered_object(topics, TopicConfig.to_fields)
    return encode_body(
        {
            "dataVersion": data_version.to_fields(),
            "mappingDataVersion": DataVersion().to_fields(),
            "topicConfigTable": table,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
    )


def decode_topic(body: bytes) -> TopicConfig:
    """The answer to GET_TOPIC_CONFIG.

    Raises:
        RequestRejected: the body is no topic's settings.
    """
    what = "a topic's settings"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        return TopicConfig.from_fields(fields, "")


def decode_topic_table(body: bytes) -> dict[str, TopicConfig]:
    """The answer to GET_ALL_TOPIC_CONFIG, by topic.

    Raises:
        RequestRejected: the body is no such table.
    """
    what = "a table of topics"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        table = fields.children("topicConfigTable")
        return {name: TopicConfig.from_fields(child, name) for name, child in table.items()}


def decode_topic_list(body: bytes) -> list[TopicConfig]:
    """The topics of UPDATE_AND_CREATE_TOPIC_LIST.

    Raises:
        RequestRejected: the body is no such list.
    """
    what = "a list of topics"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        entries = fields.array("topicConfigList")
        return [TopicConfig.from_fields(Fields(entry, "a topic"), "") for entry in entries]


def topic_stats_steps(
    reaches: Mapping[MessageQueue, QueueReach], put_per_second: float
) -> Generator[None, None, bytes]:
    """The answer to GET_TOPIC_STATS_INFO, with a step for each queue."""
    table = yield from rendered_object(reaches, QueueReach.to_fields)
    return encode_body({"offsetTable": table, "topicPutTps": put_per_second})


def decode_topic_stats(body: bytes) -> tuple[dict[MessageQueue, QueueReach], float]:
    """The offsets of each queue, and how many messages a second arrive; 4.9 sends no rate.

    Raises:
        RequestRejected: the body is malformed.
    """
    what = "a topic's stats"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        reaches = {
            decode_message_queue(key): QueueReach(
                queue_offset_min=entry.integer("minOffset", 0),
                queue_offset_max=entry.integer("maxOffset", 0),
                last_store_timestamp_ms=entry.integer("lastUpdateTimestamp", 0),
            )
            for key, entry in fields.children("offsetTable").items()
        }
        return reaches, fields.rate("topicPutTps")
