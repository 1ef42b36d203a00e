"""The file of a group's member: its group, its identity, its term and its vote.

There is one copy, and no backup: an older vote, believed, would be a second vote. A member whose
file is damaged can neither vote nor acknowledge, and comes back as another member.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from contrail.errors import StateFileDamaged
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_only_copy, write_only_copy

FILE_NAME = "contrail.replica"


class Phase(StrEnum):
    """How a member came to its group."""

    JOINER = "joiner"
    """It has none yet; this is never written."""
    LEARNER = "learner"
    """It adopted the group of a peer; whether it votes is in the log."""
    VOTER = "voter"
    """It founded the group: before any record of the log it is the one voter."""
    INSTALLING = "installing"
    """It copies its leader's log, and neither votes nor acknowledges until it has enough of it."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A member's part in its group; ``voted_for`` is the name of a member in ``term``."""

    group_id: str
    replica_uuid: str
    self_id: str
    term: int
    voted_for: str | None
    phase: Phase
    # While it installs: the end of what it once acknowledged and does not have any more, and
    # whether the folder is empty of what it had before.
    must_reach: int = 0
    is_emptied: bool = True

    def encode(self) -> bytes:
        return json.dumps(
            {
                "groupId": self.group_id,
                "replicaUuid": self.replica_uuid,
                "selfId": self.self_id,
                "term": self.term,
                "votedFor": self.voted_for,
                "phase": self.phase.value,
                "mustReach": self.must_reach,
                "emptied": self.is_emptied,
            },
            indent=1,
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> Replica:
        """Raises ``ValueError`` for bytes that are no such file."""
        try:
            fields: Any = json.loads(data)
            found = cls(
                group_id=str(fields["groupId"]),
                replica_uuid=str(fields["replicaUuid"]),
                self_id=str(fields["selfId"]),
                term=int(fields["term"]),
                voted_for=None if fields["votedFor"] is None else str(fields["votedFor"]),
                phase=Phase(fields["phase"]),
                must_reach=int(fields.get("mustReach", 0)),
                is_emptied=fields.get("emptied", True) is True,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from error
        if not found.group_id or not found.replica_uuid or found.term < 0:
            raise ValueError("it names no group, no member or no term")
        return found


class ReplicaFile:
    """Reads and writes the file of one store folder."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self._files = files
        self.path = root / FILE_NAME

    def read(self) -> Replica | None:
        """The member of this folder; None if the folder belongs to no group.

        Raises:
            StateFileDamaged: term and vote cannot be known; the message says what to do.
        """
        try:
            return read_only_copy(self._files, self.path, parse=Replica.decode)
        except StateFileDamaged as error:
            raise StateFileDamaged(
                f"{error}: without its term and vote this member may not vote. Run `contrail "
                f"replication replace {self.path.parent}`: it comes back as another member, and "
                "learns the log from its leader"
            ) from error

    def write(self, replica: Replica) -> None:
        """Make ``replica`` durable."""
        write_only_copy(self._files, self.path, replica.encode())
