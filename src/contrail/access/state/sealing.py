"""Seals bytes under a key: nobody without the key can read them, or change them unseen.

A sealed text is ``salt(16) length(8) ciphertext tag(32)``. From key, salt and context come two:
one for a stream of SHAKE-256, which is added to the bytes, and one for an HMAC-SHA256 over salt,
context and ciphertext, which is checked first. The context says what the bytes are for, so that
they count nowhere else; a salt is used once.
"""

from __future__ import annotations

import hashlib
import hmac
from struct import Struct

SALT_BYTES = 16
_LENGTH = Struct(">Q")
_TAG_BYTES = 32
_HEAD_BYTES = SALT_BYTES + _LENGTH.size


class SealBroken(ValueError):
    """Bytes are not sealed under this key and context, or were changed."""


def seal(key: bytes, context: bytes, data: bytes, salt: bytes) -> bytes:
    """``data`` sealed; ``salt`` is ``SALT_BYTES`` random bytes that were never used before."""
    assert len(salt) == SALT_BYTES, "a salt has a fixed length"
    head = salt + _LENGTH.pack(len(data))
    hidden = _added(data, _key(key, b"hide", salt, context))
    return head + hidden + _tag(key, salt, context, head + hidden)


def unseal(key: bytes, context: bytes, sealed: bytes) -> bytes:
    """Raises ``SealBroken``."""
    if len(sealed) < _HEAD_BYTES + _TAG_BYTES:
        raise SealBroken("it is too short")
    body, tag = sealed[:-_TAG_BYTES], sealed[-_TAG_BYTES:]
    salt = body[:SALT_BYTES]
    if not hmac.compare_digest(tag, _tag(key, salt, context, body)):
        raise SealBroken("it was sealed under another key, or changed since")
    return _added(body[_HEAD_BYTES:], _key(key, b"hide", salt, context))


def fingerprint(key: bytes, context: bytes, data: bytes) -> str:
    """A name for ``data`` that tells nothing of it to those without the key."""
    return hmac.digest(_key(key, b"name", b"", context), data, "sha256")[:16].hex()


def _key(key: bytes, use: bytes, salt: bytes, context: bytes) -> bytes:
    parts = b"".join(_LENGTH.pack(len(part)) + part for part in (use, salt, context))
    return hmac.digest(key, parts, "sha256")


def _tag(key: bytes, salt: bytes, context: bytes, body: bytes) -> bytes:
    return hmac.digest(_key(key, b"prove", salt, context), body, "sha256")


def _added(data: bytes, key: bytes) -> bytes:
    stream = hashlib.shake_256(key).digest(len(data))
    size = len(data)
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(size, "big")
