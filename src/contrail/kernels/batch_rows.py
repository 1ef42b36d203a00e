"""Takes apart a fast batch into rows of numbers (see ``send_rows``): one for each of its messages.

The layout of a batch's body is described in ``batch_split``. The rows go the way of single sends
from here on (``send_records``), but messages of a batch keep the properties that they have in it,
and may lack a unique key. A batch is *fast* when each of its messages may be stored as it is; one
that is not is left to ``batch_split``, and to the errors that it raises.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from contrail.kernels import frame_scan, raw_bytes, record_layout, send_rows
from contrail.kernels.frame_scan import FEATURE_NO_UNIQUE_KEY

if TYPE_CHECKING:
    from contrail.kernels.send_records import Chunk

_NO_ROWS = array("q")
# The one feature that a message of a fast batch may have.
_MAY_LACK = FEATURE_NO_UNIQUE_KEY


def batch_rows(draft: Any, body_bytes_max: int, count_max: int) -> Chunk | None:
    """The chunk of a batch that has not been admitted yet.

    ``draft`` is a ``contrail.model.message.MessageDraft`` with the whole batch as its body. None
    when the batch is not fast, or holds more than ``count_max`` messages or more than
    ``body_bytes_max`` of their bodies.
    """
    topic, queue_id, body, sys_flag, born, born_host, times = (
        draft[0],
        draft[1],
        draft[2],
        draft[5],
        draft[6],
        draft[7],
        draft[8],
    )
    if not (raw_bytes.is_i32(queue_id) and raw_bytes.is_i32(sys_flag) and raw_bytes.is_i32(times)):
        return None
    if not 0 < len(topic) <= record_layout.TOPIC_BYTES_MAX:
        return None
    if not record_layout.is_host(len(born_host)):
        return None
    view = body
    end = len(body)
    count = 0
    text_bytes = 0
    bodies = 0
    at = 0
    while at < end:
        if count == count_max or end - at < record_layout.UNIT_BYTES_MIN:
            return None
        size = raw_bytes.i32(view, at)
        body_bytes = raw_bytes.i32(view, at + record_layout.UNIT_BODY_BYTES_AT)
        if size < record_layout.UNIT_BYTES_MIN or size > end - at:
            return None
        if body_bytes < 0 or body_bytes > size - record_layout.UNIT_BYTES_MIN:
            return None
        properties_bytes = size - record_layout.UNIT_BYTES_MIN - body_bytes
        if properties_bytes > record_layout.PROPERTIES_BYTES_MAX:
            return None
        text_at = at + record_layout.UNIT_BODY_AT + body_bytes + 2
        if raw_bytes.u16(view, text_at - 2) != properties_bytes:
            return None
        bodies += body_bytes
        text_bytes += properties_bytes
        count += 1
        at += size
    if count == 0 or bodies > body_bytes_max:
        return None
    rows = raw_bytes.blank_rows(_NO_ROWS, send_rows.ROW_NUMBERS * count)
    texts = raw_bytes.blank(text_bytes)
    if not _fill_rows(view, rows, texts, count, queue_id, sys_flag, born, times, len(topic)):
        return None
    return (body, count, rows, texts, [born_host] * count, [topic] * count)


def _fill_rows(
    view: bytes,
    rows: array[int],
    texts: bytearray,
    count: int,
    queue_id: int,
    sys_flag: int,
    born: int,
    times: int,
    topic_bytes: int,
) -> bool:
    """Fill the rows of all messages; False when one of them must be checked.

    C copies through bare pointers: ``batch_rows`` found every length within the body, and
    ``texts`` has room for all properties.
    """
    table = raw_bytes.numbers(rows, send_rows.ROW_NUMBERS * count)
    target = texts
    send = frame_scan.Send()
    unit_at = 0
    text_at = 0
    at = 0
    for _ in range(count):
        body_at = unit_at + record_layout.UNIT_BODY_AT
        body_end = body_at + raw_bytes.i32(view, unit_at + record_layout.UNIT_BODY_BYTES_AT)
        unit_end = unit_at + raw_bytes.i32(view, unit_at)
        text_end = raw_bytes.copy(target, text_at, view, body_end + 2, unit_end)
        if record_layout.may_end_with_crc(target, text_at, text_end):
            return False
        frame_scan.look_over_at(target, text_at, text_end, send)
        if send.features & ~_MAY_LACK:
            return False
        table[at + send_rows.OPAQUE] = table[at + send_rows.ONE_WAY] = 0
        table[at + send_rows.QUEUE_ID] = queue_id
        table[at + send_rows.SYS_FLAG] = sys_flag
        table[at + send_rows.BORN_MS] = born
        table[at + send_rows.FLAG] = raw_bytes.i32(view, unit_at + record_layout.UNIT_FLAG_AT)
        table[at + send_rows.TIMES] = times
        table[at + send_rows.TOPIC_BYTES] = topic_bytes
        table[at + send_rows.BODY_AT] = body_at
        table[at + send_rows.BODY_END] = body_end
        table[at + send_rows.PROPERTIES_AT] = text_at
        table[at + send_rows.PROPERTIES_END] = text_end
        table[at + send_rows.KEY_AT] = send.key_at
        table[at + send_rows.KEY_END] = send.key_end
        table[at + send_rows.KEYS_AT] = send.keys_at
        table[at + send_rows.KEYS_END] = send.keys_end
        table[at + send_rows.TAGS_AT] = send.tags_at
        table[at + send_rows.TAGS_END] = send.tags_end
        table[at + send_rows.IS_FIFO] = send.is_fifo
        table[at + send_rows.QUEUE_OFFSET] = table[at + send_rows.PHYSICAL_OFFSET] = table[
            at + send_rows.RECORD_BYTES
        ] = 0
        at += send_rows.ROW_NUMBERS
        text_at = text_end
        unit_at = unit_end
    return True
