"""The body of QUERY_CONSUME_QUEUE: queue rows as they are in the queue's files."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from contrail.model.subscription import SubscriptionData
from contrail.protocol.json_style import encode_body, rendered_array

# A tags code below this is the address of an extension unit.
_EXTENSION_ADDRESS_MAX = -(1 << 31) - 1


class Row(Protocol):
    """One queue row."""

    @property
    def physical_offset(self) -> int: ...
    @property
    def byte_count(self) -> int: ...
    @property
    def tags_code(self) -> int: ...


def queue_rows_steps(
    rows: Sequence[Row],
    *,
    queue_offset_min: int,
    queue_offset_max: int,
    subscription: SubscriptionData | None = None,
    filter_text: str | None = None,
) -> Generator[None, None, bytes]:
    """The answer to QUERY_CONSUME_QUEUE, with a step for each row."""
    shown = yield from rendered_array(rows, _row)
    return encode_body(
        {
            "filterData": filter_text,
            "maxQueueIndex": queue_offset_max,
            "minQueueIndex": queue_offset_min,
            "queueData": shown,
            "subscriptionData": None if subscription is None else subscription.to_fields(),
        }
    )


def _row(row: Row) -> dict[str, object]:
    extended = row.tags_code <= _EXTENSION_ADDRESS_MAX
    return {
        "eval": False,
        "msg": f"the extension unit at {row.tags_code} was not looked up" if extended else None,
        "physicOffset": row.physical_offset,
        "physicSize": row.byte_count,
        "tagsCode": row.tags_code,
    }
