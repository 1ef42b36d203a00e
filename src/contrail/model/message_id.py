"""The two message ids, both upper-case hexadecimal: 32 digits for IPv4, 56 for IPv6.

The offset message id says where a message is stored; the unique id is made by the client:

    =====  =====================  =========  ==============================================
    bytes  offset message id      bytes      unique id
    =====  =====================  =========  ==============================================
    8/20   store host             4 or 16    the client's IP
    8      physical offset        2          process id, low 16 bits
                                  4          a number that differs from process to process
                                  4          ms since the month began (local time)
                                  2          counter, low 16 bits
    =====  =====================  =========  ==============================================
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from contrail.errors import HostIllegal, MessageIllegal
from contrail.model.host import IPV4_HOST_BYTES, IPV6_HOST_BYTES

# A clock that steps back this little across the start of a month was corrected, not reset.
_CLOCK_STEP_MS_MAX = 1_000_000

_OFFSET = Struct(">q")
_UNIQUE_TAIL = Struct(">HIIH")


class OffsetMessageId(NamedTuple):
    """Where a message is stored: the broker's host, and the physical offset in its log."""

    store_host: bytes
    physical_offset: int


class UniqueId(NamedTuple):
    """The parts of a client-made message id."""

    address: bytes
    process_id: int
    process_hash: int
    month_ms: int
    counter: int


def encode_offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id that a send response carries.

    Raises:
        HostIllegal: ``store_host`` is neither 8 nor 20 bytes.
    """
    if len(store_host) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise HostIllegal(f"a packed host has 8 or 20 bytes; {store_host.hex()!r} has not")
    return (store_host + _OFFSET.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> OffsetMessageId:
    """The store host and physical offset in ``message_id``.

    Raises:
        MessageIllegal: ``message_id`` is not 32 or 56 hexadecimal digits.
    """
    data = _decode_digits(message_id)
    (physical_offset,) = _OFFSET.unpack(data[-_OFFSET.size :])
    return OffsetMessageId(data[: -_OFFSET.size], physical_offset)


def build_unique_id(
    *,
    address: bytes,
    process_id: int,
    process_hash: int,
    month_start_ms: int,
    now_ms: int,
    counter: int,
) -> str:
    """A client-made id; the caller counts, and knows when its month began."""
    month_ms = now_ms - month_start_ms
    if -_CLOCK_STEP_MS_MAX < month_ms < 0:
        month_ms = 0
    tail = _UNIQUE_TAIL.pack(
        process_id & 0xFFFF, process_hash & 0xFFFFFFFF, month_ms & 0xFFFFFFFF, counter & 0xFFFF
    )
    return (address + tail).hex().upper()


def decode_unique_id(message_id: str) -> UniqueId:
    """The parts of ``message_id``.

    Raises:
        MessageIllegal: it is not 32 or 56 hexadecimal digits.
    """
    data = _decode_digits(message_id)
    return UniqueId(data[: -_UNIQUE_TAIL.size], *_UNIQUE_TAIL.unpack(data[-_UNIQUE_TAIL.size :]))


def _decode_digits(message_id: str) -> bytes:
    try:
        if len(message_id) in (32, 56) and message_id.isalnum():
            return bytes.fromhex(message_id)
    except ValueError:
        pass  # Falls through to the error below, which says how an id looks.
    raise MessageIllegal(f"message id {message_id!r} is not 32 or 56 hexadecimal digits")
