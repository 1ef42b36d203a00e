"""Binary search by store time, compared with a linear search."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.store.state.time_search import Boundary, search, search_batches

times_and_time = st.tuples(
    st.lists(st.integers(0, 30), max_size=40).map(sorted), st.integers(-2, 33)
)


@given(case=times_and_time, queue_offset_min=st.integers(0, 1000))
def test_lower_is_the_first_message_at_or_after_the_time(
    case: tuple[list[int], int], queue_offset_min: int
) -> None:
    times, timestamp_ms = case
    queue_offset_max = queue_offset_min + len(times)
    found = search(
        queue_offset_min,
        queue_offset_max,
        lambda at: times[at - queue_offset_min],
        timestamp_ms,
        Boundary.LOWER,
    )
    later = [at for at, time in enumerate(times, queue_offset_min) if time >= timestamp_ms]
    assert found == (later[0] if later else queue_offset_max)


@pytest.mark.proves("store.queues.search-by-time")
@given(case=times_and_time, queue_offset_min=st.integers(0, 1000))
def test_upper_is_the_last_message_at_or_before_the_time(
    case: tuple[list[int], int], queue_offset_min: int
) -> None:
    times, timestamp_ms = case
    found = search(
        queue_offset_min,
        queue_offset_min + len(times),
        lambda at: times[at - queue_offset_min],
        timestamp_ms,
        Boundary.UPPER,
    )
    earlier = [at for at, time in enumerate(times, queue_offset_min) if time <= timestamp_ms]
    assert found == (earlier[-1] if earlier else queue_offset_min)


def test_records_the_log_no_longer_has_are_too_early() -> None:
    times = [None, None, 10, 20]
    assert search(0, 4, times.__getitem__, 5) == 2
    assert search(0, 4, times.__getitem__, 15, Boundary.UPPER) == 2


def test_the_two_boundaries_enclose_a_time_that_no_message_has() -> None:
    times = [1, 1, 1, 3, 3]
    assert search(0, 5, times.__getitem__, 2, Boundary.UPPER) == 2
    assert search(0, 5, times.__getitem__, 2, Boundary.LOWER) == 3


@given(case=times_and_time, boundary=st.sampled_from(Boundary))
def test_a_batch_is_found_as_rocketmq_finds_it(
    case: tuple[list[int], int], boundary: Boundary
) -> None:
    times, timestamp_ms = case
    found = search_batches(len(times), times.__getitem__, timestamp_ms, boundary)
    if not times:
        assert found is None
    elif timestamp_ms >= times[-1]:
        assert found == len(times) - 1
    elif boundary is Boundary.UPPER and timestamp_ms in times:
        assert found == max(at for at, time in enumerate(times) if time == timestamp_ms)
    else:
        assert found == min(at for at, time in enumerate(times) if time >= timestamp_ms)
