"""Bodies of offset resets and of a client's own view of its offsets: tables by message queue."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from contrail.protocol.json_style import (
    MessageQueue,
    at_once,
    body_errors,
    decode_body,
    decode_message_queue,
    encode_body,
    rendered_object,
)

OffsetsByQueue = Mapping[MessageQueue, int]
"""A group's consumer offsets."""


def encode_reset_offsets(offsets: OffsetsByQueue) -> bytes:
    return at_once(reset_offsets_steps(offsets))


def reset_offsets_steps(offsets: OffsetsByQueue) -> Generator[None, None, bytes]:
    """The offsets of a reset, with a step for each queue."""
    return encode_body({"offsetTable": (yield from rendered_object(offsets))})


def encode_reset_offsets_as_list(offsets: OffsetsByQueue) -> bytes:
    """The form for C++ clients, whose parser does not read objects as keys."""
    entries = [{**queue.to_fields(), "offset": offsets[queue]} for queue in sorted(offsets)]
    return encode_body({"offsetTable": entries})


def decode_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Raises ``RequestRejected`` for a body that is absent or malformed."""
    return _decode_table(body, "offsetTable", "a table of reset offsets")


def decode_consumer_status(body: bytes) -> dict[MessageQueue, int]:
    """A client's answer to GET_CONSUMER_STATUS_FROM_CLIENT: its consumer offsets in memory.

    Raises:
        RequestRejected: the body is absent or malformed.
    """
    return _decode_table(body, "messageQueueTable", "a client's consumer status")


def encode_consumer_status(by_client: Mapping[str, OffsetsByQueue]) -> bytes:
    """The collected answers of a group's clients."""
    return encode_body({"consumerTable": by_client, "messageQueueTable": {}})


def decode_consumer_statuses(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """The collected answers of a group's clients, by client id.

    Raises:
        RequestRejected: the body is absent or malformed.
    """
    what = "the consumer status of a group"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        by_client = fields.children("consumerTable")
        return {
            client_id: {
                decode_message_queue(key): value for key, value in table.as_integers().items()
            }
            for client_id, table in by_client.items()
        }


def _decode_table(body: bytes, name: str, what: str) -> dict[MessageQueue, int]:
    fields = decode_body(body, what, has_raw_keys=True)
    with body_errors(what):
        table = fields.integers(name)
    return {decode_message_queue(key): offset for key, offset in table.items()}
