"""The CRC-32 of a stretch of bytes, as zlib counts it.

Compiled kernels have it from ``bare_crc.pxd``, which they cimport under this module's name: there
a stretch is checked where it lies, without a view of it and without a call into a library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def crc_of(crc32: Callable[[bytes], int], data: bytes, at: int, end: int) -> int:
    """The checksum of ``data[at:end]``; ``crc32`` is the library's, for want of a faster one."""
    return crc32(data[at:end])
