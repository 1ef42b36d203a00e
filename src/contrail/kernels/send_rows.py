"""Rows of numbers that describe fast sends, by ``send_scan`` or ``batch_rows``.

A chunk of received bytes that begins with fast sends becomes three things: the bytes as they
came, one row of ``ROW_NUMBERS`` 64-bit numbers per message, and the messages' properties as they
will be stored, back to back. A message costs no object of its own on its way into the log. A fast
batch becomes the same, with a row for each of its messages.

Places named ``BODY_*`` are in the received bytes, those named ``PROPERTIES_*``, ``KEY_*`` (the
value of the unique key), ``KEYS_*`` and ``TAGS_*`` in the properties; a part that a message does
not have starts and ends at 0. The last three numbers are known once the message is placed in the
log.

Topics are objects in a list of their own, one for each message; neighbours of one topic share one.
When the messages are admitted the places of their queues (``send_places``) replace them there, so
that a queue is looked for once and not by every step.
"""

from __future__ import annotations

(
    OPAQUE,
    ONE_WAY,
    QUEUE_ID,
    SYS_FLAG,
    BORN_MS,
    FLAG,
    TIMES,
    TOPIC_BYTES,
    BODY_AT,
    BODY_END,
    PROPERTIES_AT,
    PROPERTIES_END,
    KEY_AT,
    KEY_END,
    KEYS_AT,
    KEYS_END,
    TAGS_AT,
    TAGS_END,
    IS_FIFO,
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    RECORD_BYTES,
    ROW_NUMBERS,
) = range(23)
