"""The records by which a failover group speaks of itself in its own log.

They are ordinary messages of one system topic, with a JSON body:

| queue | record         | body                                                                    |
| ----- | -------------- | ----------------------------------------------------------------------- |
| 0     | epoch marker   | epoch, leaderId, prevEpoch, startOffset (of its blank, if it has one),  |
|       |                | voters                                                                  |
| 1     | voter record   | epoch, voters                                                           |

Every marker names the voters, so that the last marker of a log is enough to know them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from contrail.errors import RecordDamaged
from contrail.model.message import MessageDraft, StoredMessage

GROUP_TOPIC = "rmq_sys_contrail_epoch"
MARKER_QUEUE, VOTER_QUEUE = 0, 1


@dataclass(frozen=True, slots=True)
class Marker:
    """The record that opens an epoch; ``physical_start`` is the first byte of the epoch."""

    epoch: int
    leader: str
    previous_epoch: int
    physical_start: int
    voters: frozenset[str]

    def draft(self, now_ms: int) -> MessageDraft:
        body = {
            "epoch": self.epoch,
            "leaderId": self.leader,
            "prevEpoch": self.previous_epoch,
            "startOffset": self.physical_start,
            "voters": sorted(self.voters),
        }
        return _draft(MARKER_QUEUE, body, now_ms)


@dataclass(frozen=True, slots=True)
class VoterChange:
    """The record that names the voters from its append on."""

    epoch: int
    voters: frozenset[str]

    def draft(self, now_ms: int) -> MessageDraft:
        body = {"epoch": self.epoch, "voters": sorted(self.voters)}
        return _draft(VOTER_QUEUE, body, now_ms)


def decode_group_record(message: StoredMessage) -> Marker | VoterChange | None:
    """The group's word in a record; None for every other message.

    Raises:
        RecordDamaged: a record of the group's topic says nothing that a member could have written.
    """
    if message.topic != GROUP_TOPIC:
        return None
    try:
        fields: Any = json.loads(message.body)
        voters = frozenset(_name(one) for one in fields["voters"])
        if message.queue_id == VOTER_QUEUE:
            return VoterChange(_number(fields["epoch"]), voters)
        return Marker(
            epoch=_number(fields["epoch"]),
            leader=_name(fields["leaderId"]),
            previous_epoch=_number(fields["prevEpoch"]),
            physical_start=_number(fields["startOffset"]),
            voters=voters,
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordDamaged(
            f"the record at {message.physical_offset} is no word of a failover group: {error!r}",
            physical_offset=message.physical_offset,
        ) from error


def _draft(queue_id: int, body: dict[str, object], now_ms: int) -> MessageDraft:
    return MessageDraft(
        GROUP_TOPIC.encode(), queue_id, json.dumps(body).encode(), born_timestamp_ms=now_ms
    )


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number of an epoch or a place")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or not value:
        raise ValueError(f"{value!r} names no member")
    return value
