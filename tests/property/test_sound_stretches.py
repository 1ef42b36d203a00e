"""In any order of verifications: a stretch never counts as younger than it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.store.state.sound_stretches import SoundStretches

_END = 40
_steps = st.lists(
    st.tuples(st.integers(0, _END - 1), st.integers(1, 12), st.integers(0, 6000), st.booleans()),
    max_size=30,
)


@given(_steps, st.integers(0, _END - 1), st.integers(1, 12))
def test_verified_stretches_agree_with_a_list_of_bytes(
    steps: list[tuple[int, int, int, bool]], start: int, byte_count: int
) -> None:
    stretches, truth, now_ms = SoundStretches(), [-1] * (2 * _END), 0
    for place, length, later_ms, is_removed in steps:
        now_ms += later_ms
        if is_removed:
            stretches.remove(place, place + length)
            truth[place : place + length] = [-1] * length
            assert stretches.verified_ms(place, place + 1) is None
            continue
        stretches.add(place, place + length, now_ms)
        truth[place : place + length] = [now_ms] * length
        # The bytes just verified are in a stretch, perhaps an older one.
        found = stretches.verified_ms(place, place + length)
        assert found is not None
        assert now_ms - 5000 < found <= now_ms
    found = stretches.verified_ms(start, start + byte_count)
    if found is not None:
        assert 0 <= found <= min(truth[start : start + byte_count])
