"""The CRC-32 of a stretch of bytes, as zlib counts it.

Compiled kernels get it from ``bare_crc.pxd``, which they cimport under this module's name: that
reads the bytes in the buffer, without a view and without a call into a library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    # Three to five times faster than zlib's on 1 KB; an optional extra.
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

if TYPE_CHECKING:
    from collections.abc import Callable


def crc_of(
    crc32: Callable[[bytes | memoryview], int], data: bytes | memoryview, at: int, end: int
) -> int:
    """The checksum of ``data[at:end]``; ``crc32`` is the library's function.

    C reads a long stretch, parts of which may come from the disk, without the GIL.
    """
    return crc32(data[at:end])
