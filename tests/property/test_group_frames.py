"""Frames of failover groups: every message comes back, and no other bytes are one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RemoteProtocolError
from contrail.protocol.group_frames import Batch, MemberHello, Ping, decode, encode
from contrail.protocol.group_messages import (
    Append,
    AppendAnswer,
    AppendRefusal,
    CopyAnswer,
    Fetch,
    Fetched,
    PreVote,
    PreVoteAnswer,
    Reset,
    TimeoutNow,
    Vote,
    VoteAnswer,
)
from contrail.protocol.link_frames import Kind, LinkReader, LinkWriter, Seal
from contrail.protocol.log_floor import LogFloor

NUMBERS = st.integers(0, (1 << 62) - 1)
FLOORS = st.builds(
    LogFloor,
    physical_start=st.integers(300, 1 << 40),
    removed_count=NUMBERS,
    starts=st.sampled_from([(), ((1, 7),), ((1, 7), (9, 200))]),
    voters=st.frozensets(st.text("n0123@abc", min_size=1), max_size=4),
    voters_end=st.integers(0, 300),
)
PLAIN = st.one_of(
    st.builds(PreVote, NUMBERS, NUMBERS, NUMBERS),
    st.builds(PreVoteAnswer, NUMBERS, st.booleans(), NUMBERS),
    st.builds(Vote, NUMBERS, NUMBERS, NUMBERS, st.booleans()),
    st.builds(VoteAnswer, NUMBERS, st.booleans()),
    st.builds(AppendAnswer, NUMBERS, NUMBERS, NUMBERS),
    st.builds(AppendRefusal, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    st.builds(TimeoutNow, NUMBERS),
    st.builds(CopyAnswer, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Fetch, NUMBERS, NUMBERS),
    st.builds(Fetched, NUMBERS, st.binary(max_size=50)),
    st.builds(Reset, NUMBERS, NUMBERS, FLOORS),
    st.builds(Ping, NUMBERS),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    data = draw(st.binary(max_size=300))
    term = draw(NUMBERS)
    epoch = draw(st.integers(0, term))
    begin = draw(st.integers(0, (1 << 62) - 1 - len(data)))
    message = Append(
        term=term,
        previous_end=begin,
        previous_epoch=draw(st.integers(0, epoch)),
        epoch=epoch,
        batch_end=begin + len(data),
        commit=draw(NUMBERS),
        sent_ms=draw(NUMBERS),
    )
    return Batch(message, memoryview(data), draw(st.booleans()))


@given(st.lists(st.one_of(PLAIN, batches()), max_size=8), st.integers(1, 400), st.booleans())
def test_messages_come_back_in_their_order_however_the_link_cuts_them(
    messages: list[object], step: int, is_sealed: bool
) -> None:
    writer, reader = LinkWriter(), LinkReader()
    if is_sealed:
        writer.seal, reader.seal = Seal(b"k" * 32), Seal(b"k" * 32)
    parts: list[bytes | memoryview] = []
    for one in messages:
        if isinstance(one, Batch):
            kind, head = encode(one.message, names_voters=one.names_voters)
            parts += writer.frame(kind, head, one.data)
        else:
            parts += writer.frame(*encode(one))  # type: ignore[arg-type]
    data, found = b"".join(parts), []
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        while (frame := reader.take()) is not None:
            found.append(decode(*frame))
    assert found == messages


@given(st.sampled_from(list(Kind)), st.binary(max_size=120))
def test_bytes_that_decode_are_the_encoding_of_their_message(kind: Kind, payload: bytes) -> None:
    try:
        found = decode(kind, memoryview(payload))
    except RemoteProtocolError:
        return
    if isinstance(found, Batch):
        encoded, head = encode(found.message, names_voters=found.names_voters)
        assert (encoded, head + found.data) == (kind, payload)
    else:
        assert encode(found) == (kind, payload)


@given(st.binary(max_size=200))
def test_hostile_words_of_members_are_refused_and_raise_nothing_else(payload: bytes) -> None:
    try:
        MemberHello.decode(payload)
    except RemoteProtocolError:
        return


@given(
    st.builds(
        MemberHello,
        self_id=st.text("abc019-", max_size=9),
        group_id=st.text("abc019-", max_size=9),
        replica_uuid=st.text("abc019-", max_size=9),
        phase=st.sampled_from(["joiner", "voter"]),
        wall_ms=NUMBERS,
        features=st.lists(st.text("ab", max_size=3), max_size=3).map(tuple),
        facts=st.dictionaries(st.text("abc", max_size=5), st.text("abc 1", max_size=20)),
    )
)
def test_a_members_word_comes_back(hello: MemberHello) -> None:
    assert MemberHello.decode(hello.encode()) == hello
