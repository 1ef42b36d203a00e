import dataclasses

import pytest

from contrail.errors import RecordDamaged
from contrail.kernels.record_build import build_run
from contrail.model.message import LOOPBACK_HOST, MessageDraft, StoredMessage
from contrail.model.record import decode_record
from contrail.replication.state.group_records import (
    GROUP_TOPIC,
    MARKER_QUEUE,
    Marker,
    VoterChange,
    decode_group_record,
)

MARKER = Marker(3, "n0@a", 2, 4096, frozenset({"n0@a", "n1@b"}))
CHANGE = VoterChange(3, frozenset({"n0@a"}))


def stored(draft: MessageDraft) -> StoredMessage:
    return decode_record(b"".join(build_run([draft], [0], 0, 1, LOOPBACK_HOST, False)))


@pytest.mark.parametrize("record", [MARKER, CHANGE])
def test_every_member_reads_the_record_that_a_leader_writes(record: Marker | VoterChange) -> None:
    assert decode_group_record(stored(record.draft(now_ms=1))) == record


def test_messages_of_other_topics_say_nothing_of_the_group() -> None:
    message = dataclasses.replace(stored(MARKER.draft(1)), topic="orders")
    assert decode_group_record(message) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"voters": [1]}',
        b'{"voters": [""]}',
        b'{"epoch": -1, "leaderId": "n0@a", "prevEpoch": 0, "startOffset": 0, "voters": []}',
        b'{"epoch": true, "leaderId": "n0@a", "prevEpoch": 0, "startOffset": 0, "voters": []}',
        b"[" * 100_000,
    ],
)
def test_a_record_that_no_member_wrote_is_damage_at_its_place(body: bytes) -> None:
    message = stored(MessageDraft(GROUP_TOPIC.encode(), MARKER_QUEUE, body))
    with pytest.raises(RecordDamaged) as caught:
        decode_group_record(message)
    assert caught.value.physical_offset == message.physical_offset
