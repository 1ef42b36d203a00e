"""Frames between members of a failover group: exact bytes, bounded, refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contrail.errors import RemoteProtocolError
from contrail.protocol.group_frames import (
    APPEND_HEAD_BYTES,
    HELLO_BYTES_MAX,
    Batch,
    MemberHello,
    Ping,
    agree,
    decode,
    encode,
)
from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    AppendRefusal,
    CopyAnswer,
    Fetch,
    Fetched,
    Message,
    PreVote,
    PreVoteAnswer,
    Reset,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.protocol.handshake import HandshakeRefused
from contrail.protocol.link_frames import Kind
from contrail.protocol.log_floor import LogFloor

HELLO = MemberHello(
    self_id="n0",
    group_id="g",
    replica_uuid="u",
    phase="voter",
    wall_ms=5,
    facts={"segmentBytes": "1048576"},
    address="127.0.0.1:10911",
)


def q(*numbers: int) -> str:
    return "".join(f"{number:016x}" for number in numbers)


@pytest.mark.proves("replication.failover.link")
@pytest.mark.parametrize(
    ("message", "kind", "golden"),
    [
        (PreVote(7, 6, 4096), 10, q(7, 6, 4096)),
        (PreVoteAnswer(7, True, 6), 11, q(7) + "01" + q(6)),
        (Vote(7, 6, 4096, False), 12, q(7, 6, 4096) + "00"),
        (VoteAnswer(7, True), 13, q(7) + "01"),
        (Append(7, 10, 6, 7, 10, 9, 8), 14, q(7, 10, 6, 7, 10, 9, 8) + "00"),
        (AppendAnswer(7, 4096, 5), 15, q(7, 4096, 5)),
        (AppendRefusal(7, 4096, 5, 4000, 3), 16, q(7, 4096, 5, 4000, 3)),
        (TimeoutNow(7), 17, q(7)),
        (Ping(1_760_000_000_000), 18, q(1_760_000_000_000)),
        (CopyAnswer(7, 4096, 5), 20, q(7, 4096, 5)),
        (Fetch(7, 4096), 21, q(7, 4096)),
        (Fetched(7, b"abc"), 22, q(7) + "616263"),
    ],
)
def test_every_message_has_its_bytes(
    message: Message | Ping | Fetch | Fetched, kind: int, golden: str
) -> None:
    assert encode(message) == (kind, bytes.fromhex(golden))
    found = decode(Kind(kind), memoryview(bytes.fromhex(golden)))
    assert (found.message if isinstance(found, Batch) else found) == message


def test_a_reset_carries_the_floor_of_the_leaders_log() -> None:
    floor = LogFloor(
        physical_start=8, removed_count=1, starts=((2, 4),), voters=frozenset("a"), voters_end=6
    )
    kind, payload = encode(Reset(3, 5, floor))
    assert decode(kind, memoryview(payload)) == Reset(3, 5, floor)
    with pytest.raises(RemoteProtocolError):
        decode(kind, memoryview(payload[:-1]))


def test_a_batch_carries_its_bytes_uncopied_and_says_whether_it_names_voters() -> None:
    message = Append(term=3, previous_end=8, previous_epoch=2, epoch=3, batch_end=13, commit=8,
                     sent_ms=1)  # fmt: skip
    kind, head = encode(message, names_voters=True)
    payload = memoryview(head + b"bytes")
    found = decode(kind, payload)
    assert isinstance(found, Batch)
    assert (found.message, bytes(found.data), found.names_voters) == (message, b"bytes", True)
    assert found.data.obj is payload.obj


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0" * (APPEND_HEAD_BYTES - 1),
        bytes.fromhex(q(7, 10, 6, 7, 11, 9, 8) + "00"),
        bytes.fromhex(q(7, 11, 6, 7, 10, 9, 8) + "00"),
        bytes.fromhex(q(7, 10, 6, 7, 10, 9, 8) + "02"),
        bytes.fromhex(q(7, 10, 8, 7, 10, 9, 8) + "00"),
        bytes.fromhex(q(7, 10, 6, 8, 10, 9, 8) + "00"),
        b"\xff" * APPEND_HEAD_BYTES,
    ],
)
def test_a_batch_that_contradicts_itself_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        decode(Kind.APPEND, memoryview(payload))
    assert refusal.value.reason == "member"


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.VOTE_ANSWER, q(7) + "02"),
        (Kind.PRE_VOTE_ANSWER, q(7) + "01" + "ff" * 8),
        (Kind.TIMEOUT_NOW, "7f" + "ff" * 7),
        (Kind.TIMEOUT_NOW, q(1, 2)),
        (Kind.HELLO, q(1)),
        (Kind.TRANSFER, q(1)),
        (Kind.MEMBER, q(1)),
    ],
)
def test_numbers_out_of_range_and_frames_of_others_are_refused(kind: Kind, payload: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(kind, memoryview(bytes.fromhex(payload)))


@pytest.mark.proves("replication.failover.link")
def test_a_members_word_comes_back_whole_and_unknown_fields_are_ignored() -> None:
    assert MemberHello.decode(HELLO.encode()) == HELLO
    newer = HELLO.encode().replace(b'{"version"', b'{"colour": "red", "version"')
    assert MemberHello.decode(newer) == HELLO


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 5_000,
        HELLO.encode().replace(b'"n0"', b'"n\\u0000"'),
        HELLO.encode().replace(b'"n0"', b"0"),
        HELLO.encode().replace(b'"wallMs": 5', b'"wallMs": true'),
        replace(HELLO, self_id="n" * 256).encode(),
        replace(HELLO, facts={str(number): "" for number in range(65)}).encode(),
        b" " * (HELLO_BYTES_MAX + 1),
    ],
)
def test_a_members_word_that_is_none_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        MemberHello.decode(payload)


@pytest.mark.proves("replication.failover.link")
def test_members_of_two_versions_use_what_both_know() -> None:
    newer = replace(HELLO, self_id="n1", version=3, features=("a", "b"))
    older = replace(HELLO, version=2, version_min=1, features=("b", "c"))
    assert agree(older, newer) == agree(newer, older) == (2, frozenset("b"))


@pytest.mark.parametrize(
    ("peer", "reason"),
    [
        (replace(HELLO, self_id="n1", version=9, version_min=9), "version"),
        (replace(HELLO, self_id="n1", facts={"segmentBytes": "2097152"}), "settings"),
        (replace(HELLO, self_id="n1", group_id="other"), "group"),
    ],
)
def test_members_that_cannot_work_together_are_refused_by_name(
    peer: MemberHello, reason: str
) -> None:
    for own, other in ((HELLO, peer), (peer, HELLO)):
        with pytest.raises(HandshakeRefused) as refusal:
            agree(own, other)
        assert refusal.value.reason == reason


def test_a_member_without_a_group_may_speak_with_one_that_has() -> None:
    agree(HELLO, replace(HELLO, self_id="n1", group_id="", replica_uuid=""))
