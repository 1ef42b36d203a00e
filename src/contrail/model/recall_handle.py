"""The handle of a pending timer message, which a producer sends to the broker to recall it."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple, Self

from contrail.errors import MessageIllegal

_VERSION = "v1"
_WORDS_BEFORE_KEY = 4
NONCE_CHARS = 16
MAC_CHARS = 22
_SEAL = re.compile(rf"[A-Za-z0-9_-]{{{NONCE_CHARS + MAC_CHARS}}}")


class RecallHandle(NamedTuple):
    """A timer message's topic, broker, time and unique key."""

    topic: str
    broker_name: str
    # One more than the start of its slot.
    deliver_ms: int
    # May hold spaces.
    unique_key: str
    # A nonce and a MAC that Contrail's broker adds behind Apache's words, by which it recognises
    # its own handle and the message; empty if absent.
    seal: str = ""

    @property
    def words(self) -> str:
        """The five words of Apache's handle."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key)
        return " ".join(words)

    @property
    def nonce(self) -> str:
        """The nonce that tells the message from others with its key; empty without a seal."""
        return self.seal[:NONCE_CHARS]

    def encode(self) -> str:
        text = f"{self.words} {self.seal}" if self.seal else self.words
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, handle: str) -> Self:
        """Read a handle.

        All words behind the time are the unique key, except a last word that looks like a seal.

        Raises:
            MessageIllegal: ``handle`` is no recall handle.
        """
        try:
            text = base64.urlsafe_b64decode(handle.encode("ascii")).decode()
            version, topic, broker_name, deliver_ms, rest = text.split(" ", _WORDS_BEFORE_KEY)
            unique_key, _, seal = rest.rpartition(" ")
            if not unique_key or not _SEAL.fullmatch(seal):
                unique_key, seal = rest, ""
            if version != _VERSION or not (deliver_ms.isascii() and deliver_ms.isdecimal()):
                raise ValueError
            return cls(topic, broker_name, int(deliver_ms[:20]), unique_key, seal)
        except (ValueError, binascii.Error):
            raise MessageIllegal(
                f"recall handle {handle[:80]!r} is none; give the one the send was answered with"
            ) from None
