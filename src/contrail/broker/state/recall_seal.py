"""Which recall handles this broker has given: those that carry its seal.

Apache's handle is five words that everybody can put together. A sixth, behind Apache's five, is
their HMAC under a key of the folder; Apache's clients and brokers pass it on, or over it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import NamedTuple

from contrail.model.recall_handle import RecallHandle

KEY_BYTES = 32
# Half of the digest: nobody can try more than a few thousand a second at a broker.
_SEAL_BYTES = 16


class RecallKey(NamedTuple):
    """A folder's key, and when it was made."""

    secret: bytes
    made_ms: int


class RecallSeal:
    """Seals handles and knows its own."""

    def __init__(self, key: RecallKey) -> None:
        self._secret = key.secret
        self.made_ms = key.made_ms

    def sealed(self, handle: RecallHandle) -> RecallHandle:
        return handle._replace(seal=self._seal(handle))

    def is_own(self, handle: RecallHandle) -> bool:
        """Whether this folder's broker gave the handle."""
        return hmac.compare_digest(handle.seal.encode(), self._seal(handle).encode())

    def _seal(self, handle: RecallHandle) -> str:
        digest = hmac.digest(self._secret, handle.words.encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest[:_SEAL_BYTES]).rstrip(b"=").decode("ascii")
