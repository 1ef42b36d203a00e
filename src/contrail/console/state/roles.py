"""The roles of the console's accounts: each may do all that those below it may."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """A viewer sees no bodies of messages, a reader does, an operator changes the cluster."""

    VIEWER = 1
    READER = 2
    OPERATOR = 3
    ADMIN = 4

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Role:
        """Raises ``ValueError`` for a word that is no role."""
        for role in cls:
            if role.word == word:
                return role
        raise ValueError(f"{word!r} is no role: {', '.join(role.word for role in cls)}")
