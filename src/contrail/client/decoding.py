"""Records of a pull as the messages an application sees."""

from __future__ import annotations

from collections.abc import Iterator

from contrail.client.compression import decompress
from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.message import StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import UNIQ_KEY
from contrail.model.record import split_record_run

_NEED_UNWRAP_FLAG = 0x40


def received_messages(body: bytes, broker_name: str) -> Iterator[ReceivedMessage]:
    """The messages of a pull body, in order.

    Raises:
        RecordDamaged: from here on the bytes are no record.
        ClientError: a body cannot be decompressed.
    """
    for stored in split_record_run(body):
        if stored.sys_flag & _NEED_UNWRAP_FLAG and inner_batch_count(stored.raw_properties) > 1:
            for inner in expand_inner_batch(stored):
                yield received_message(inner, broker_name)
        else:
            yield received_message(stored, broker_name)


def received_message(stored: StoredMessage, broker_name: str) -> ReceivedMessage:
    offset_message_id = encode_offset_message_id(stored.store_host, stored.physical_offset)
    properties = stored.properties
    return ReceivedMessage(
        topic=stored.topic,
        body=decompress(stored.body, stored.sys_flag),
        queue=MessageQueue(stored.topic, broker_name, stored.queue_id),
        queue_offset=stored.queue_offset,
        message_id=properties.get(UNIQ_KEY) or offset_message_id,
        offset_message_id=offset_message_id,
        properties=properties,
        reconsume_times=stored.reconsume_times,
        born_timestamp_ms=stored.born_timestamp_ms,
        store_timestamp_ms=stored.store_timestamp_ms,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        physical_offset=stored.physical_offset,
        packed_born_host=stored.born_host,
        packed_store_host=stored.store_host,
        body_crc=stored.body_crc,
        record_bytes=stored.record_bytes,
        prepared_transaction_offset=stored.prepared_transaction_offset,
    )
