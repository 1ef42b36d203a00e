"""Bodies made smaller, and back. Brokers store the producer's choice; consumers read all three."""

from __future__ import annotations

import zlib
from enum import Enum
from importlib import import_module
from typing import Any

from contrail.errors import ClientError

COMPRESSED_FLAG = 0x1
_TYPE_MASK = 0x700
# The most bytes of an inflated body: the frame limit is 16 MiB, and no broker stores more.
_BODY_BYTES_MAX = 64 << 20
_INFLATE_BYTES_FIRST = 64 << 10
# A block of four bytes may stand for 128 KiB: a step gives 32 MiB at most.
_ZSTD_STEP_BYTES = 1 << 10


class Compression(Enum):
    """How a body is compressed; the values are its bits in ``sysFlag``."""

    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def compress(body: bytes, kind: Compression, level: int = 5) -> tuple[bytes, int]:
    """The smaller body, and the flags that tell a consumer how to read it.

    Raises:
        ClientError: the library for ``kind`` is not installed; the message says how to.
    """
    if kind is Compression.ZLIB:
        packed = zlib.compress(body, level)
    elif kind is Compression.LZ4:
        packed = _library("lz4.frame", "lz4").compress(body)
    else:
        packed = _library("zstandard", "zstandard").ZstdCompressor(level=level).compress(body)
    return packed, COMPRESSED_FLAG | kind.value


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was sent; unchanged when the flags say it is not compressed.

    Raises:
        ClientError: it cannot be read.
    """
    if not sys_flag & COMPRESSED_FLAG:
        return body
    kind = sys_flag & _TYPE_MASK
    try:
        # Old clients set no type and compress by zlib.
        if kind in (0, Compression.ZLIB.value):
            return _inflate(body)
        if kind == Compression.LZ4.value:
            return _inflate_lz4(body)
        if kind == Compression.ZSTD.value:
            return _inflate_zstd(body)
    except ClientError:
        raise
    except Exception as error:
        raise ClientError(
            f"a compressed body of {len(body)} bytes cannot be read: {error}"
        ) from error
    raise ClientError(f"a body is compressed in an unknown way: sysFlag {sys_flag:#x}")


def readable(body: bytes, sys_flag: int) -> tuple[bytes, ClientError | None]:
    """``decompress`` for readers of many records: the bytes as they are, and the error, if any."""
    try:
        return decompress(body, sys_flag), None
    except ClientError as error:
        return body, error


def _inflate(body: bytes) -> bytes:
    inflating = zlib.decompressobj()
    plain = inflating.decompress(body, _BODY_BYTES_MAX)
    if not inflating.eof:
        raise _too_long_or_short(body)
    return plain


def _inflate_lz4(body: bytes) -> bytes:
    inflating = _library("lz4.frame", "lz4").LZ4FrameDecompressor()
    room = min(max(_INFLATE_BYTES_FIRST, 8 * len(body)), _BODY_BYTES_MAX)
    parts = [inflating.decompress(body, room)]
    inflated = len(parts[0])
    while not inflating.eof and not inflating.needs_input and inflated < _BODY_BYTES_MAX:
        parts.append(inflating.decompress(b"", min(inflated, _BODY_BYTES_MAX - inflated)))
        inflated += len(parts[-1])
    if not inflating.eof:
        raise _too_long_or_short(body)
    return b"".join(parts)


def _inflate_zstd(body: bytes) -> bytes:
    """In small steps, because a step has no limit for its output."""
    inflating = _library("zstandard", "zstandard").ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    inflated = 0
    for start in range(0, len(body), _ZSTD_STEP_BYTES):
        parts.append(inflating.decompress(body[start : start + _ZSTD_STEP_BYTES]))
        inflated += len(parts[-1])
        if inflated > _BODY_BYTES_MAX:
            raise _too_long_or_short(body)
        if inflating.eof:
            return b"".join(parts)
    raise _too_long_or_short(body)


def _too_long_or_short(body: bytes) -> ClientError:
    return ClientError(
        f"a compressed body of {len(body)} bytes is cut short or larger than "
        f"{_BODY_BYTES_MAX} bytes"
    )


def _library(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ClientError(
            f"a body is compressed with {package}, which is not installed: "
            f"pip install 'contrail-mq[compression]'"
        ) from error
