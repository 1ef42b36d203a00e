"""Decompresses bodies with the libraries of every executor: zlib and pyarrow's codecs.

RocketMQ's clients write LZ4 frames and zstandard streams, which are pyarrow's ``lz4`` and ``zstd``.
"""

from __future__ import annotations

import pyarrow as pa

from contrail.client.compression import COMPRESSED_FLAG, Compression, decompress
from contrail.errors import ClientError

# The client has the same bound: a frame has 16 MiB at most, and no broker stores more.
BODY_BYTES_MAX = 64 << 20
_READ_BYTES_FIRST = 64 << 10
_READ_BYTES_MAX = 4 << 20
_TYPE_MASK = 0x700
_CODECS = {Compression.LZ4.value: "lz4", Compression.ZSTD.value: "zstd"}


def inflated_body(body: bytes, sys_flag: int) -> bytes:
    """The body as its producer made it; unchanged if the flags say it is not compressed.

    Raises:
        ClientError: it cannot be read, or is longer than ``BODY_BYTES_MAX``.
    """
    codec = _CODECS.get(sys_flag & _TYPE_MASK)
    if codec is None or not sys_flag & COMPRESSED_FLAG:
        return decompress(body, sys_flag)
    if not body:
        raise ClientError("a compressed body is empty")
    try:
        parts = _read(body, codec)
    except (pa.ArrowException, OSError) as error:
        raise ClientError(
            f"a compressed body of {len(body)} bytes cannot be read: {error}"
        ) from error
    if parts is None:
        raise ClientError(
            f"a compressed body of {len(body)} bytes is larger than {BODY_BYTES_MAX} bytes"
        )
    return b"".join(parts)


def _read(body: bytes, codec: str) -> list[bytes] | None:
    """The content of the stream, read in growing steps; None if it exceeds the bound."""
    parts: list[bytes] = []
    held, step = 0, min(max(_READ_BYTES_FIRST, 8 * len(body)), _READ_BYTES_MAX)
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        while part := stream.read(step):
            held += len(part)
            if held > BODY_BYTES_MAX:
                return None
            parts.append(part)
            step = _READ_BYTES_MAX
    return parts
