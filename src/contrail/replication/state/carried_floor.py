"""Epoch, marker number and voters as the group's tables carry them: in every snapshot.

A log that begins with a snapshot tells by it in which epoch it begins; ``contrail.epochs`` says the
same, and this stands in for it.
"""

from __future__ import annotations

import json

from contrail.model.fastjson import JsonValue
from contrail.protocol.log_floor import LogFloor
from contrail.replication.state.member_log import MemberLog
from contrail.replication.state.state_records import (
    Change,
    SnapshotPart,
    Table,
    decode_state_record,
)

CARRIED = "log"
"""The name of this fact among those that the tables carry."""


def carried_log(log: MemberLog) -> JsonValue:
    """The epoch that is being written, where it began, how many markers there were, the voters."""
    starts = log.epochs.starts[-1:]
    floor = LogFloor(
        physical_start=max(starts[-1].physical_start + 1 if starts else 0, log.voters.changed_end),
        removed_count=log.epochs.marker_count - len(starts),
        starts=tuple((one.epoch, one.physical_start) for one in starts),
        voters=log.voters.now,
        voters_end=log.voters.changed_end,
    )
    found: JsonValue = json.loads(floor.encode())
    return found


def carried_floor(body: bytes) -> LogFloor | None:
    """The floor in a state record that carries one."""
    record = decode_state_record(body)
    if not isinstance(record, Change | SnapshotPart):
        return None
    fact = record.put.get(Table.CARRIED, {}).get((CARRIED,))
    return None if fact is None else LogFloor.decode(json.dumps(fact).encode())
