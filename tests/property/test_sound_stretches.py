"""Whatever is verified in whatever order: a stretch is never said to be younger than it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.store.state.sound_stretches import SoundStretches

_END = 40
_steps = st.lists(
    st.tuples(st.integers(0, _END - 1), st.integers(1, 12), st.integers(0, 6000)), max_size=30
)


@given(_steps, st.integers(0, _END - 1), st.integers(1, 12))
def test_it_knows_no_more_than_a_list_of_bytes(
    steps: list[tuple[int, int, int]], start: int, byte_count: int
) -> None:
    stretches, truth, now_ms = SoundStretches(), [-1] * (2 * _END), 0
    for place, length, later_ms in steps:
        now_ms += later_ms
        stretches.add(place, place + length, now_ms)
        truth[place : place + length] = [now_ms] * length
        # What was just verified is known, if not as young.
        found = stretches.verified_ms(place, place + length)
        assert found is not None
        assert now_ms - 5000 < found <= now_ms
    found = stretches.verified_ms(start, start + byte_count)
    if found is not None:
        assert 0 <= found <= min(truth[start : start + byte_count])
