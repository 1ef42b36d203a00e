"""Functions with which kernels read and write bytes: numbers, digits, copies of other bytes.

Compiled kernels get them on bare pointers, inlined, from ``bare_bytes.pxd``, which they cimport
under this module's name; this module defines their results. Nothing is checked: the caller makes
the room and passes positions within the buffers.
"""

from __future__ import annotations

from array import array

Source = bytes | bytearray | memoryview


def blank(size: int) -> bytearray:
    """Room for ``size`` bytes, all of which the caller will write: C does not zero them."""
    return bytearray(size)


def blank_rows(like: array[int], number_count: int) -> array[int]:
    """As ``blank``, for ``number_count`` numbers of 64 bits; ``like`` is any array of them."""
    return array("q", bytes(8 * number_count))


def numbers(rows: array[int], number_count: int) -> array[int]:
    """The numbers of ``rows``, to read and write unchecked up to ``number_count``.

    Raises:
        IndexError: ``rows`` has fewer numbers.
    """
    if len(rows) < number_count:
        raise IndexError(f"{len(rows)} numbers where there should be {number_count}")
    return rows


def grow(target: bytearray, size: int) -> int:
    """Add room for ``size`` bytes, as in ``blank``; returns where it begins."""
    before = len(target)
    target += bytes(size)
    return before


def cut(target: bytearray, size: int) -> None:
    """Keep the first ``size`` bytes; ``target`` has at least as many."""
    del target[size:]


def begin(view: memoryview) -> memoryview:
    """The bytes of a view, to read unchecked."""
    return view


def expect(view: memoryview, at: int) -> None:
    """Byte ``at`` will be read soon: C prefetches it into the processor's cache."""


def first(source: bytearray, size: int) -> bytes:
    """The first ``size`` bytes."""
    return bytes(source[:size])


def copy(target: bytearray, to: int, source: Source, at: int, end: int) -> int:
    """Write ``source[at:end]``; returns where it ends."""
    if end <= at:
        return to
    target[to : to + end - at] = source[at:end]
    return to + end - at


def put_text(target: bytearray, to: int, text: bytes) -> int:
    """Write ``text``; returns where it ends."""
    return copy(target, to, text, 0, len(text))


def holds(source: bytes, at: int, end: int, text: bytes, rare_at: int) -> bool:
    """Whether ``text`` is in ``source[at:end]``. C searches for its letter at ``rare_at``."""
    return source.find(text, at, end) >= 0


def stands(source: Source, at: int, text: bytes) -> bool:
    """Whether ``text`` is at ``at``; ``source`` has at least as many bytes there."""
    return source[at : at + len(text)] == text


def spells(source: Source, at: int, end: int, text: bytes) -> bool:
    """Whether ``source[at:end]`` is ``text``."""
    return end - at == len(text) and stands(source, at, text)


def same(source: bytes, at: int, other: int, size: int) -> bool:
    """Whether the ``size`` bytes at both positions are equal."""
    return source[at : at + size] == source[other : other + size]


def place_of(source: Source, at: int, end: int, byte: int) -> int:
    """The first position of ``byte`` in ``source[at:end]``; ``end`` if it is absent."""
    while at < end and source[at] != byte:
        at += 1
    return at


def u16(source: Source, at: int) -> int:
    """The unsigned 16-bit number at ``at``, the highest byte first."""
    return source[at] << 8 | source[at + 1]


def u32(source: Source, at: int) -> int:
    """The unsigned 32-bit number, as ``u16``."""
    return source[at] << 24 | source[at + 1] << 16 | source[at + 2] << 8 | source[at + 3]


def i32(source: Source, at: int) -> int:
    """The signed 32-bit number at ``at``, the highest byte first."""
    return int.from_bytes(source[at : at + 4], "big", signed=True)


def i64(source: Source, at: int) -> int:
    """The signed 64-bit number, as ``i32``."""
    return int.from_bytes(source[at : at + 8], "big", signed=True)


def is_i32(value: int) -> bool:
    """Whether a number fits a signed 32-bit integer."""
    return -0x80000000 <= value <= 0x7FFFFFFF


def put_i16(target: bytearray, at: int, value: int) -> None:
    """Write the lowest 16 bits, the highest byte first."""
    target[at] = value >> 8 & 0xFF
    target[at + 1] = value & 0xFF


def put_i32(target: bytearray, at: int, value: int) -> None:
    """Write the lowest 32 bits, the highest byte first."""
    copy(target, at, (value & 0xFFFFFFFF).to_bytes(4, "big"), 0, 4)


def put_i64(target: bytearray, at: int, value: int) -> None:
    """Write the lowest 64 bits, the highest byte first."""
    put_i32(target, at, value >> 32)
    put_i32(target, at + 4, value)


def put_decimal(target: bytearray, at: int, value: int) -> int:
    """Write a 64-bit number in decimal digits; returns where it ends."""
    return put_text(target, at, b"%d" % value)


def put_hex(target: bytearray, at: int, value: int) -> int:
    """Write the lowest 64 bits in sixteen digits; returns where they end."""
    return put_text(target, at, b"%016X" % (value & 0xFFFFFFFFFFFFFFFF))


def ascii_hash(source: Source, at: int, end: int, seed: int) -> int:
    """Java's hash of ASCII text, continued from ``seed``: unsigned 32 bits, -1 for other text.

    C takes four characters a step, because each multiplication waits for the one before it.
    """
    value = seed & 0xFFFFFFFF
    for byte in source[at:end]:
        if byte > 127:
            return -1
        value = (value * 31 + byte) & 0xFFFFFFFF
    return value
