"""A field of Contrail's own in pulls: for those who read long stretches of a queue.

Brokers answer a pull with 32 messages at most, whatever it asks for. One that carries this field
gets as many as fit the bytes of an answer, which are bounded as ever. Other brokers do not know the
field, and answer as always.
"""

from __future__ import annotations

BULK_FIELD = "contrailBulk"
# What a reader of long stretches gets at most at once.
BULK_COUNT_MAX = 512
