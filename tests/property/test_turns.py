"""Connections that take turns: requests in any pieces are handled once and in order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.protocol.command import Request, encode_request
from tests.e2e.raw_client import send_fields
from tests.unit.wire.test_turns import ALL, ONE, Room

CONNECTION_COUNT = 4


def _frame(kind: str, opaque: int) -> bytes:
    if kind == "send":
        return encode_request(Request(310, opaque, send_fields("t"), b"body"))
    body = bytes(700) if kind == "large" else b"x"
    return encode_request(Request(34, opaque, {"k": "v"}, body))


# The connection that sends, its bytes, the number of pieces, and whether the loop turns after it.
steps = st.tuples(
    st.integers(0, CONNECTION_COUNT - 1),
    st.lists(st.sampled_from(["send", "other", "large"]), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), max_size=3),
    st.booleans(),
)


@pytest.mark.proves("wire.fairness.turns")
@given(st.lists(steps, max_size=12), st.booleans(), st.booleans(), st.sampled_from([0, 0.002, 0.1]))
def test_every_request_is_handled_once_in_order_and_a_bounded_number_in_a_turn(
    script: list[tuple[int, list[str], list[float], bool]],
    plain: bool,
    at_once: bool,
    cost_s: float,
) -> None:
    room = Room(takes_runs=plain)
    room.service.cost_s = cost_s
    room.service.takes_before_tick = at_once
    peers = [connection for connection, _ in room.connected(CONNECTION_COUNT)]
    sent = dict.fromkeys(peers, 0)
    for number, kinds, cuts, turns in script:
        peer = peers[number]
        data = b"".join(_frame(kind, sent[peer] + n) for n, kind in enumerate(kinds))
        sent[peer] += len(kinds)
        places = sorted({int(cut * len(data)) for cut in cuts} | {0, len(data)})
        for start, end in pairwise(places):
            peer.data_received(data[start:end])
        if turns:
            room.turn()
    room.service.turn = {}
    for counts in room.turns()[1:]:
        # Once nothing is read any more, only waiting requests are handled.
        assert all(count <= ONE for count in counts.values())
        assert sum(counts.values()) <= ALL
    assert {peer: room.service.handled.get(peer, []) for peer in peers} == {
        peer: [*range(count)] for peer, count in sent.items()
    }
