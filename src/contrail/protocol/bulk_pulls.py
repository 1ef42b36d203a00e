"""A field of Contrail's own in pulls, for consumers that read long stretches of a queue.

Brokers answer a pull with 32 messages at most, whatever count it asks for. A pull with this field
gets as many messages as fit the bytes of an answer, whose bound stays the same. Other brokers
ignore the field.
"""

from __future__ import annotations

BULK_FIELD = "contrailBulk"
# Bound of the messages in one answer to such a pull.
BULK_COUNT_MAX = 512
