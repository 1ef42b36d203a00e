"""Recall handles of this broker: each carries its seal.

Apache's handle is five words that everybody can put together, and two messages of one key in one
slot have the same five. A sixth, behind Apache's five, is a nonce, which the waiting message
carries too, and the HMAC of all these under a key of the folder; Apache's clients and brokers pass
it on, or over it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import NamedTuple

from contrail.model.recall_handle import MAC_CHARS, NONCE_CHARS, RecallHandle

KEY_BYTES = 32
_NONCE_BYTES = 12
# Half of the digest: nobody can try more than a few thousand a second at a broker.
_MAC_BYTES = 16


class RecallKey(NamedTuple):
    """A folder's key, and when it was made."""

    secret: bytes
    made_ms: int


class RecallSeal:
    """Seals handles and knows its own."""

    def __init__(self, key: RecallKey, random_bytes: Callable[[int], bytes]) -> None:
        self._secret = key.secret
        self._random_bytes = random_bytes
        self.made_ms = key.made_ms

    def sealed(self, handle: RecallHandle) -> RecallHandle:
        """The handle for a message that gets its ``nonce``: every call makes another one."""
        nonce = _text(self._random_bytes(_NONCE_BYTES))
        assert len(nonce) == NONCE_CHARS
        return handle._replace(seal=self._seal(handle, nonce))

    def is_own(self, handle: RecallHandle) -> bool:
        """Whether this folder's broker gave the handle."""
        seal = self._seal(handle, handle.nonce)
        return hmac.compare_digest(handle.seal.encode(), seal.encode())

    def _seal(self, handle: RecallHandle, nonce: str) -> str:
        sealed = f"{handle.words} {nonce}".encode()
        mac = _text(hmac.digest(self._secret, sealed, hashlib.sha256)[:_MAC_BYTES])
        assert len(mac) == MAC_CHARS
        return nonce + mac


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
