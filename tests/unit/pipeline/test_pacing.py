"""A rate holds over any time span, and unused allowance of idle time is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.insight.pacing import Pacer, chunk_size


@given(
    st.integers(1, 5_000),
    st.lists(st.tuples(st.integers(1, 200), st.floats(0, 0.5)), min_size=1, max_size=40),
)
def test_never_more_messages_are_sent_than_the_rate_allows(
    rate: int, sends: list[tuple[int, float]]
) -> None:
    now_s, sent = 100.0, 0
    pacer = Pacer(rate, now_s)
    for count, pause_s in sends:
        now_s += pacer.wait_s(count, now_s)
        # All sends before this one were allowed by now.
        assert sent <= rate * (now_s - 100.0) + 1e-6
        sent += count
        now_s += pause_s


@pytest.mark.proves("house.folded.dead-letter-replays")
def test_unused_allowance_of_a_pause_is_lost() -> None:
    pacer = Pacer(10, 0.0)
    assert pacer.wait_s(10, 0.0) == 0
    assert pacer.wait_s(10, 60.0) == 0
    assert pacer.wait_s(1, 60.0) == 1.0


def test_chunks_are_small_enough_for_a_slow_rate() -> None:
    assert chunk_size(None, 1_000) == 1_000
    assert chunk_size(1, 1_000) == 1
    assert chunk_size(100, 1_000) == 20
    assert chunk_size(1e9, 1_000) == 1_000
