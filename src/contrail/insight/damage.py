"""Answers with damaged messages: the sound messages, and remarks about the damage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from contrail.client.message import ReceivedMessage
from contrail.errors import MessageDamaged


class DamageNoted:
    """Takes sound messages and keeps the remarks about damaged ones, until the former are shown."""

    def __init__(self) -> None:
        self._told: dict[str, None] = {}

    @property
    def remarks(self) -> list[str]:
        return list(self._told)

    def note(self, told: str) -> None:
        """Keep a remark about a damaged message; equal remarks are kept once."""
        self._told[told] = None

    def sound(self, ask: Callable[[], list[ReceivedMessage]]) -> list[ReceivedMessage]:
        """The sound messages of an answer."""
        try:
            return ask()
        except MessageDamaged as damage:
            self.note(str(damage))
            return list(damage.partial)

    async def sound_of(self, asked: Awaitable[list[ReceivedMessage]]) -> list[ReceivedMessage]:
        """The sound messages of an answer that is awaited."""
        try:
            return await asked
        except MessageDamaged as damage:
            self.note(str(damage))
            return list(damage.partial)

    def require_none(self) -> None:
        """Raises ``MessageDamaged`` if damage was noted: a command ends with it, exit code 1."""
        if self._told:
            raise MessageDamaged("; ".join(self._told))
