"""The names of members in votes and logs: the configured id, and the identity of the folder.

A member that comes back with an empty folder has another name: it neither votes as the one that it
was, nor do its bytes count for that one.
"""

from __future__ import annotations

_SEPARATOR = "@"


def member_name(self_id: str, replica_uuid: str) -> str:
    return f"{self_id}{_SEPARATOR}{replica_uuid}"


def self_id_of(name: str) -> str:
    """The ``dLegerSelfId`` of a member."""
    return name.partition(_SEPARATOR)[0]
