"""Java's ``String.hashCode``, which RocketMQ stores as tag code and index key hash.

    h = 0;  for each UTF-16 code unit c:  h = 31 * h + c   (wrapped to a signed 32-bit integer)

The input is UTF-8, as topics, tags and keys are stored. A character outside the basic plane is
two code units (a surrogate pair), so the hash cannot be taken over code points or bytes.
"""

from __future__ import annotations

import re

# Java decodes an encoded surrogate, whole or cut, to one replacement character, Python to several.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = b"\xef\xbf\xbd"
_I32_MAX = 0x7FFFFFFF
_U32_MASK = 0xFFFFFFFF
_U32_SPAN = 0x100000000


def java_hash(text: bytes) -> int:
    """Return the hash Java gives the string whose UTF-8 bytes are ``text``."""
    value = 0
    for byte in text:
        if byte > 127:
            return _hash_code_units(_decode(text).encode("utf-16-be"))
        value = (value * 31 + byte) & _U32_MASK
    return _signed(value)


def _decode(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, text).decode("utf-8", "replace")


def _hash_code_units(units: bytes) -> int:
    value = 0
    for position in range(0, len(units), 2):
        high = units[position]
        low = units[position + 1]
        value = (value * 31 + high * 256 + low) & _U32_MASK
    return _signed(value)


def _signed(value: int) -> int:
    if value > _I32_MAX:
        return value - _U32_SPAN
    return value
