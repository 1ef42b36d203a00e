"""The handle that calls a pending timer back: text a producer keeps and sends to the broker."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, Self

from contrail.errors import MessageIllegal

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Which timer message it is, and where it waits."""

    topic: str
    broker_name: str
    # One more than the start of its slot.
    deliver_ms: int
    unique_key: str
    # What Contrail's broker puts behind Apache's words, to know its own; empty for none.
    seal: str = ""

    @property
    def words(self) -> str:
        """Apache's five."""
        words = (_VERSION, self.topic, self.broker_name, str(self.deliver_ms), self.unique_key)
        return " ".join(words)

    def encode(self) -> str:
        text = f"{self.words} {self.seal}" if self.seal else self.words
        return base64.urlsafe_b64encode(text.encode()).decode("ascii")

    @classmethod
    def decode(cls, handle: str) -> Self:
        """Read a handle.

        Raises:
            MessageIllegal: it is none.
        """
        try:
            text = base64.urlsafe_b64decode(handle.encode("ascii")).decode()
            version, topic, broker_name, deliver_ms, unique_key, *more = text.split(" ")
            seal = "" if not more else _only(more)
            if version != _VERSION or not (deliver_ms.isascii() and deliver_ms.isdecimal()):
                raise ValueError
            return cls(topic, broker_name, int(deliver_ms[:20]), unique_key, seal)
        except (ValueError, binascii.Error):
            raise MessageIllegal(
                f"recall handle {handle[:80]!r} is none; give the one the send was answered with"
            ) from None


def _only(words: list[str]) -> str:
    """Raises ``ValueError`` unless there is one word."""
    (word,) = words
    if not word:
        raise ValueError
    return word
