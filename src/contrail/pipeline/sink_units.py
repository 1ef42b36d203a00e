"""Encodes rows as units of batch sends, by column: all rows of an Arrow batch in one go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contrail.client.outgoing import MESSAGE_BYTES_MAX, PROPERTIES_BYTES_MAX
from contrail.model.properties import UNIQ_KEY
from contrail.pipeline.sink_layout import Indexes
from contrail.pipeline.sink_rows import (
    LARGE,
    SinkRows,
    Where,
    join,
    scalar,
)
from contrail.protocol.bodies.sinks import SINK_ATTEMPT, SINK_KEY, SINK_SEQ

_UNIT_FIXED_BYTES = 22


@dataclass(frozen=True, slots=True)
class Stamp:
    """The properties that the sink adds to each row; none without ``key``."""

    key: str | None = None
    attempt: str | None = None

    @property
    def text(self) -> str:
        attempt = f"{SINK_ATTEMPT}\x01{self.attempt}\x02" if self.attempt else ""
        return f"{SINK_KEY}\x01{self.key}\x02{attempt}" if self.key else ""


class Units(NamedTuple):
    """Encoded units, back to back: unit ``n`` is ``data[ends[n]:ends[n + 1]]``."""

    data: memoryview
    ends: Indexes

    def between(self, first: int, last: int) -> bytes:
        return bytes(self.data[self.ends[first] : self.ends[last]])


def encode_units(
    rows: SinkRows,
    order: Indexes,
    unique_ids: Sequence[str],
    stamp: Stamp,
    where: Where,
) -> Units:
    """The rows as units, in this order.

    Raises:
        SinkRefused: the properties of a row are too long, or the whole row is for a stamped send.
    """
    taken = pa.array(order)
    properties = _all_properties(rows, taken, unique_ids, stamp, where.first_row)
    lengths = pc.binary_length(properties).to_numpy()
    if len(lengths) and lengths.max() > PROPERTIES_BYTES_MAX:
        bad = int(order[int(lengths.argmax())])
        where.refuse_row(
            bad,
            "properties",
            f"its properties have {lengths.max()} bytes, at most {PROPERTIES_BYTES_MAX} may be "
            "sent: put the long ones into the body",
        )
    bodies = rows.bodies.take(taken)
    flags = None if rows.flags is None else rows.flags[order]
    heads = _heads(pc.binary_length(bodies).to_numpy(), lengths, flags)
    if stamp.key:
        _check_sizes(heads[:, 0], order, where)
    units = join([_fixed(heads, 20), bodies, _fixed(lengths.astype(">i2"), 2), properties])
    return Units(
        memoryview(units.buffers()[2] or b""),
        np.frombuffer(units.buffers()[1], np.int64)[: len(units) + 1],
    )


def _all_properties(
    rows: SinkRows, taken: pa.Array, unique_ids: Sequence[str], stamp: Stamp, first_row: int
) -> pa.Array:
    parts = [] if rows.properties is None else [rows.properties.take(taken)]
    parts += [scalar(f"{UNIQ_KEY}\x01"), pa.array(unique_ids, pa.large_string()).cast(LARGE)]
    if stamp.key:
        numbers = pc.add(taken, first_row).cast(pa.large_string()).cast(LARGE)
        parts += [scalar(f"\x02{stamp.text}{SINK_SEQ}\x01"), numbers]
    return join([*parts, scalar("\x02")])


def _heads(body_lengths: Any, property_lengths: Any, flags: Any) -> Any:
    heads = np.zeros((len(body_lengths), 5), ">i4")
    heads[:, 0] = body_lengths + property_lengths + _UNIT_FIXED_BYTES
    if flags is not None:
        heads[:, 3] = flags
    heads[:, 4] = body_lengths
    return heads


def _check_sizes(sizes: Any, order: Indexes, where: Where) -> None:
    """Check whole sizes: brokers measure stamped requests as a whole, uncompressed."""
    if len(sizes) and sizes.max() > MESSAGE_BYTES_MAX:
        largest = int(sizes.argmax())
        where.refuse_row(
            int(order[largest]),
            "body",
            f"with its properties the message has {sizes[largest]} bytes, at most "
            f"{MESSAGE_BYTES_MAX} may be sent: send it in parts, or with idempotence=none, which "
            "compresses a message of this size",
        )


def cut_runs(
    ends: Indexes, first: int, last: int, *, bytes_max: int, count_max: int
) -> Iterator[tuple[int, int]]:
    """Cut units ``first`` to ``last`` into runs within both limits; a unit too long is alone."""
    while first < last:
        fitting = int(np.searchsorted(ends, ends[first] + bytes_max, side="right")) - 1
        end = min(max(fitting, first + 1), first + count_max, last)
        yield first, end
        first = end


def _fixed(numbers: Any, width: int) -> pa.Array:
    """Big-endian numbers as bytes, ``width`` for each element."""
    count = len(numbers)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), count, [None, pa.py_buffer(np.ascontiguousarray(numbers))]
    )
    return fixed.cast(LARGE)
