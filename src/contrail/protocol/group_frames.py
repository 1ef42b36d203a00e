"""The frames of members of a failover group, behind the handshake of links.

The first frame each way is ``MEMBER``: version and features, then the member and its settings as
JSON. The acceptor's is the payload of its ``WELCOME``. All others are numbers:

| kind           | payload                                                                       |
| -------------- | ----------------------------------------------------------------------------- |
| PRE_VOTE       | i64 term, i64 last epoch, i64 log end                                         |
| PRE_VOTE_ANSWER| i64 term, u8 granted, i64 own term                                            |
| VOTE           | i64 term, i64 last epoch, i64 log end, u8 transfer                            |
| VOTE_ANSWER    | i64 term, u8 granted                                                          |
| APPEND         | i64 term, previous end, previous epoch, epoch, batch end, commit, sent ms,    |
|                | u8 flags (1: a voter record or marker is among them), then bytes of the log   |
| APPEND_ANSWER  | i64 term, matched end, sent ms                                                |
| APPEND_REFUSAL | i64 term, previous end, epoch, epoch end, sent ms                             |
| TIMEOUT_NOW    | i64 term                                                                      |
| PING           | i64 wall time in ms: the link lives, and the clocks are compared              |
| RESET          | i64 term, sent ms, then the floor of the leader's log as JSON                 |
| COPY_ANSWER    | i64 term, matched end, sent ms                                                |
| FETCH          | i64 physical start, physical end                                              |
| FETCHED        | i64 physical start, then bytes of the log                                     |

RESET and COPY_ANSWER are sent to members that name the feature `reset` only, FETCH to those that
name `repair`.

Encoding and decoding are exact inverses: bytes that decode are the encoding of what they decode to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

from contrail.errors import RemoteProtocolError
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

VERSION = 1
VERSION_MIN = 1
RESETS = "reset"
"""The feature of members that begin anew when they are told so."""
REPAIRS = "repair"
"""The feature of members that send others what is damaged there."""
FEATURES: tuple[str, ...] = (RESETS, REPAIRS)
FETCH_BYTES_MAX = 8 << 20
HELLO_BYTES_MAX = 32 << 10
GROUP_FRAME_BYTES_MAX = 64 << 20
"""One record or run with the blank in front of it is one batch, however long it is."""
_NUMBER_MAX = 1 << 62
_NAME_CHARS_MAX = 255
_FACTS_MAX = 64
_NAMES_RECORDS = 1

_ONE = Struct(">q")
_PRE_VOTE = Struct(">qqq")
_PRE_VOTE_ANSWER = Struct(">qBq")
_VOTE = Struct(">qqqB")
_VOTE_ANSWER = Struct(">qB")
_APPEND = Struct(">qqqqqqqB")
_APPEND_ANSWER = Struct(">qqq")
_APPEND_REFUSAL = Struct(">qqqqq")
_RESET = Struct(">qq")
_FETCH = Struct(">qq")
APPEND_HEAD_BYTES = _APPEND.size


class Ping(NamedTuple):
    """The link lives; ``wall_ms`` is the sender's wall clock."""

    wall_ms: int


class Batch(NamedTuple):
    """An ``Append`` with its bytes of the log."""

    message: Append
    data: memoryview
    names_voters: bool
    """Whether markers or voter records may be among the records."""


Decoded = Message | Batch | Ping | Fetch | Fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHello:
    """A member's word about itself and its settings, after both have proved the secret.

    ``group_id`` and ``replica_uuid`` are empty for a member that belongs to no group yet.
    ``facts`` are settings that shape bytes: they must be equal at both. ``address`` is where
    clients reach the member; followers send them to the leader's. ``term`` and ``log_end`` are on
    the member's disk; releases before told no term.
    """

    version: int = VERSION
    version_min: int = VERSION_MIN
    features: tuple[str, ...] = FEATURES
    self_id: str
    group_id: str
    replica_uuid: str
    phase: str
    wall_ms: int
    facts: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    term: int | None = None
    log_end: int = 0

    def encode(self) -> bytes:
        return json.dumps(
            {
                "version": self.version,
                "versionMin": self.version_min,
                "features": self.features,
                "selfId": self.self_id,
                "groupId": self.group_id,
                "replicaUuid": self.replica_uuid,
                "phase": self.phase,
                "wallMs": self.wall_ms,
                "facts": dict(self.facts),
                "address": self.address,
                **({} if self.term is None else {"term": self.term, "logEnd": self.log_end}),
            }
        ).encode()

    @classmethod
    def decode(cls, payload: memoryview | bytes) -> MemberHello:
        """Fields and features of newer versions are ignored.

        Raises:
            RemoteProtocolError: the payload is no such word.
        """
        if len(payload) > HELLO_BYTES_MAX:
            raise RemoteProtocolError("member", f"a member's word of {len(payload)} bytes")
        try:
            return cls._of(json.loads(bytes(payload)))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RemoteProtocolError("member", f"no member's word: {error!r}") from error

    @classmethod
    def _of(cls, fields: Any) -> MemberHello:
        facts = _typed(fields["facts"], dict)
        if len(facts) > _FACTS_MAX:
            raise ValueError(f"{len(facts)} facts")
        return cls(
            version=_typed(fields["version"], int),
            version_min=_typed(fields["versionMin"], int),
            features=tuple(_name(one) for one in _typed(fields["features"], list)),
            self_id=_name(fields["selfId"]),
            group_id=_name(fields["groupId"]),
            replica_uuid=_name(fields["replicaUuid"]),
            phase=_name(fields["phase"]),
            wall_ms=_typed(fields["wallMs"], int),
            facts={_name(key): _fact(text) for key, text in facts.items()},
            address=_name(fields.get("address", "")),
            term=_typed(fields["term"], int) if "term" in fields else None,
            log_end=_typed(fields.get("logEnd", 0), int),
        )


class GroupAgreement(NamedTuple):
    """The version and the features that both members know."""

    version: int
    features: frozenset[str]


def agree(own: MemberHello, peer: MemberHello) -> GroupAgreement:
    """The version and features for a link between two members.

    Raises:
        HandshakeRefused: the two speak no common version, or settings that shape bytes differ.
    """
    if min(own.version, peer.version) < max(own.version_min, peer.version_min):
        raise HandshakeRefused(
            "version",
            f"member {peer.self_id} speaks versions {peer.version_min} to {peer.version} of the "
            f"group's frames, {own.self_id} {own.version_min} to {own.version}: upgrade the older",
        )
    for name in sorted(own.facts.keys() & peer.facts.keys()):
        if own.facts[name] != peer.facts[name]:
            raise HandshakeRefused(
                "settings",
                f"{name} is {peer.facts[name]} at member {peer.self_id} and {own.facts[name]} at "
                f"{own.self_id}: members of a group need the same",
            )
    if own.group_id and peer.group_id and own.group_id != peer.group_id:
        raise HandshakeRefused(
            "group",
            f"member {peer.self_id} belongs to group {peer.group_id}, {own.self_id} to "
            f"{own.group_id}: one of the two folders is another group's",
        )
    features = frozenset(own.features) & frozenset(peer.features)
    return GroupAgreement(min(own.version, peer.version), features)


def encode(
    message: Message | Ping | Fetch | Fetched, *, names_voters: bool = False
) -> tuple[Kind, bytes]:
    """The kind and payload of a message; the bytes of an ``Append`` go behind its payload."""
    match message:
        case Append():
            flags = _NAMES_RECORDS if names_voters else 0
            return Kind.APPEND, _APPEND.pack(
                message.term,
                message.previous_end,
                message.previous_epoch,
                message.epoch,
                message.batch_end,
                message.commit,
                message.sent_ms,
                flags,
            )
        case AppendAnswer(term, matched_end, sent_ms):
            return Kind.APPEND_ANSWER, _APPEND_ANSWER.pack(term, matched_end, sent_ms)
        case AppendRefusal(term, previous_end, epoch, epoch_end, sent_ms):
            payload = _APPEND_REFUSAL.pack(term, previous_end, epoch, epoch_end, sent_ms)
            return Kind.APPEND_REFUSAL, payload
        case PreVote(term, last_epoch, log_end):
            return Kind.PRE_VOTE, _PRE_VOTE.pack(term, last_epoch, log_end)
        case PreVoteAnswer(term, is_granted, own_term):
            return Kind.PRE_VOTE_ANSWER, _PRE_VOTE_ANSWER.pack(term, is_granted, own_term)
        case Vote(term, last_epoch, log_end, is_transfer):
            return Kind.VOTE, _VOTE.pack(term, last_epoch, log_end, is_transfer)
        case VoteAnswer(term, is_granted):
            return Kind.VOTE_ANSWER, _VOTE_ANSWER.pack(term, is_granted)
        case TimeoutNow(term):
            return Kind.TIMEOUT_NOW, _ONE.pack(term)
        case Ping(wall_ms):
            return Kind.PING, _ONE.pack(wall_ms)
        case Reset(term, sent_ms, floor):
            return Kind.RESET, _RESET.pack(term, sent_ms) + floor.encode()
        case Fetch(physical_start, physical_end):
            return Kind.FETCH, _FETCH.pack(physical_start, physical_end)
        case Fetched(physical_start, data):
            return Kind.FETCHED, _ONE.pack(physical_start) + data
        case CopyAnswer(term, matched_end, sent_ms):
            return Kind.COPY_ANSWER, _APPEND_ANSWER.pack(term, matched_end, sent_ms)


def decode(kind: Kind, payload: memoryview) -> Decoded:
    """The message of a frame; an ``Append`` with its bytes, which are a view of the payload.

    Raises:
        RemoteProtocolError: no member encodes such a frame.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise RemoteProtocolError("member", f"a frame {kind.name} out of turn")
    return decoder(payload)


def _append(payload: memoryview) -> Batch:
    *numbers, flags = _unpacked(_APPEND, payload[:APPEND_HEAD_BYTES])
    found, data = Append(*_checked(numbers)), payload[APPEND_HEAD_BYTES:]
    is_sound = (
        found.batch_end - found.previous_end == len(data)
        and found.previous_epoch <= found.epoch <= found.term
        and flags & ~_NAMES_RECORDS == 0
    )
    if not is_sound:
        raise RemoteProtocolError("member", f"{found} came with {len(data)} bytes, flags {flags}")
    return Batch(found, data, bool(flags))


def _append_answer(payload: memoryview) -> AppendAnswer:
    return AppendAnswer(*_checked(_unpacked(_APPEND_ANSWER, payload)))


def _append_refusal(payload: memoryview) -> AppendRefusal:
    return AppendRefusal(*_checked(_unpacked(_APPEND_REFUSAL, payload)))


def _pre_vote(payload: memoryview) -> PreVote:
    return PreVote(*_checked(_unpacked(_PRE_VOTE, payload)))


def _pre_vote_answer(payload: memoryview) -> PreVoteAnswer:
    term, granted, own_term = _checked(_unpacked(_PRE_VOTE_ANSWER, payload))
    return PreVoteAnswer(term, _yes(granted), own_term)


def _vote(payload: memoryview) -> Vote:
    term, last_epoch, log_end, transfer = _checked(_unpacked(_VOTE, payload))
    return Vote(term, last_epoch, log_end, _yes(transfer))


def _vote_answer(payload: memoryview) -> VoteAnswer:
    term, granted = _checked(_unpacked(_VOTE_ANSWER, payload))
    return VoteAnswer(term, _yes(granted))


def _timeout_now(payload: memoryview) -> TimeoutNow:
    return TimeoutNow(*_checked(_unpacked(_ONE, payload)))


def _reset(payload: memoryview) -> Reset:
    term, sent_ms = _checked(_unpacked(_RESET, payload[: _RESET.size]))
    try:
        return Reset(term, sent_ms, LogFloor.decode(bytes(payload[_RESET.size :])))
    except ValueError as error:
        raise RemoteProtocolError("member", f"{error}") from error


def _copy_answer(payload: memoryview) -> CopyAnswer:
    return CopyAnswer(*_checked(_unpacked(_APPEND_ANSWER, payload)))


def _fetch(payload: memoryview) -> Fetch:
    return Fetch(*_checked(_unpacked(_FETCH, payload)))


def _fetched(payload: memoryview) -> Fetched:
    (physical_start,) = _checked(_unpacked(_ONE, payload[: _ONE.size]))
    data = bytes(payload[_ONE.size :])
    if len(data) > FETCH_BYTES_MAX:
        raise RemoteProtocolError("member", f"{len(data)} bytes were fetched")
    return Fetched(physical_start, data)


def _ping(payload: memoryview) -> Ping:
    return Ping(*_checked(_unpacked(_ONE, payload)))


_DECODERS: dict[Kind, Callable[[memoryview], Decoded]] = {
    Kind.PRE_VOTE: _pre_vote,
    Kind.PRE_VOTE_ANSWER: _pre_vote_answer,
    Kind.VOTE: _vote,
    Kind.VOTE_ANSWER: _vote_answer,
    Kind.APPEND: _append,
    Kind.APPEND_ANSWER: _append_answer,
    Kind.APPEND_REFUSAL: _append_refusal,
    Kind.TIMEOUT_NOW: _timeout_now,
    Kind.PING: _ping,
    Kind.RESET: _reset,
    Kind.COPY_ANSWER: _copy_answer,
    Kind.FETCH: _fetch,
    Kind.FETCHED: _fetched,
}


def _unpacked(layout: Struct, payload: memoryview) -> list[int]:
    if len(payload) != layout.size:
        raise RemoteProtocolError(
            "member", f"{len(payload)} bytes where {layout.size} are expected"
        )
    return list(layout.unpack(payload))


def _checked(numbers: list[int]) -> list[int]:
    """Terms, epochs, places and times are never negative, and never near the end of their type."""
    if not all(0 <= number < _NUMBER_MAX for number in numbers):
        raise RemoteProtocolError("member", f"numbers out of range: {numbers}")
    return numbers


def _yes(number: int) -> bool:
    if number > 1:
        raise RemoteProtocolError("member", f"{number} is neither yes nor no")
    return bool(number)


def _name(value: Any) -> str:
    """A word that is told in logs: one short line."""
    name: str = _typed(value, str)
    if len(name) > _NAME_CHARS_MAX or not name.isprintable():
        raise ValueError(f"a name of {len(name)} characters")
    return name


def _fact(value: Any) -> str:
    text: str = _typed(value, str)
    if len(text) > 4 * _NAME_CHARS_MAX or not text.isprintable():
        raise ValueError(f"a setting of {len(text)} characters")
    return text


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
