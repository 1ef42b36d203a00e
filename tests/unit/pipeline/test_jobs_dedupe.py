"""A dedupe job: refused settings, messages that count as repeats, forgotten keys."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.state import GroupState

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.dedupe import DedupeSettings, _late
from contrail.pipeline.jobs.dedupe_memory import marker, repeats

HOUR_MS = 3_600_000
NOW_MS = 1_760_000_000_000


def settings(**changed: Any) -> DedupeSettings:
    given: dict[str, Any] = {
        "namesrv": "here:9876",
        "topic": "orders",
        "to_topic": "orders-once",
        "checkpoint": "/x",
    }
    return DedupeSettings(**{**given, **changed})


def test_the_default_settings_are_fine() -> None:
    settings().check()
    settings(to_topic="orders", to_namesrv="there:9876").check()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"to_topic": "orders"}, "its own target"),
        ({"time": "sent"}, "born or store"),
        ({"starting": "middle"}, "earliest or latest"),
        ({"key": ""}, r"a path like \$.id"),
        ({"key": " "}, r"a path like \$.id"),
        ({"key": "auto"}, r"a path like \$.id"),
        ({"window": "soon"}, "such as 30s, 10m, 2h or 1d"),
        ({"window": "0s"}, "such as 30s"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_valid_values(
    changed: dict[str, Any], told: str
) -> None:
    with pytest.raises(OptionInvalid, match=told):
        settings(**changed).check()


@pytest.mark.parametrize(
    ("window", "long_ms"), [("500ms", 500), ("10m", 600_000), ("1d", 86_400_000)]
)
def test_a_window_is_a_length_of_time(window: str, long_ms: int) -> None:
    assert settings(window=window).window_ms == long_ms


def test_settings_of_the_memory_may_not_change_between_runs() -> None:
    assert settings().fixed() == settings(rows_per_batch=5, continuous=True).fixed()
    assert settings().fixed() != settings(window="2h").fixed()
    assert settings().fixed() != settings(key="$.id").fixed()


@given(
    st.lists(st.integers(0, 200), max_size=40),
    st.integers(1, 50),
    st.lists(st.integers(0, 40), max_size=5),
)
def test_dropped_messages_are_near_kept_ones_in_any_order_and_batches(
    times: list[int], window_ms: int, cuts: list[int]
) -> None:
    kept: list[int] = []
    dropped = []
    places = [0, *sorted(cuts), len(times)]
    for begin, end in pairwise(places):
        batch = times[begin:end]
        dropped += [
            time
            for time, is_repeat in zip(batch, repeats(batch, kept, window_ms), strict=True)
            if is_repeat
        ]
    assert sorted(kept + dropped) == sorted(times)
    assert all(any(abs(time - one) <= window_ms for one in kept) for time in dropped)
    assert all(later - one > window_ms for one, later in pairwise(kept))


class Remembered:
    """Stands for Spark's state of a group, at a given time."""

    def __init__(self) -> None:
        self.kept: bytes | None = None
        self.now_ms = NOW_MS
        self.due_ms: int | None = None

    @property
    def exists(self) -> bool:
        return self.kept is not None

    @property
    def get(self) -> tuple[bytes]:
        assert self.kept is not None
        return (self.kept,)

    def getCurrentProcessingTimeMs(self) -> int:
        return self.now_ms

    def update(self, value: tuple[bytes]) -> None:
        self.kept = value[0]

    def remove(self) -> None:
        self.kept = self.due_ms = None

    def setTimeoutDuration(self, duration_ms: int) -> None:
        self.due_ms = self.now_ms + duration_ms


def marks(
    state: Remembered, times_ms: list[int], *, lag_ms: int = 0, has_key: bool = True
) -> list[bool]:
    """Whether each of a batch's messages is a repeat, in the order of their times."""
    columns = ["body", "keys", "tags", "shardingKey", "properties"]
    times = pa.array(times_ms, pa.int64())
    nothing = pa.nulls(len(times_ms))
    rows = pa.table({"timeMs": times, **dict.fromkeys(columns, nothing)}).to_pandas()
    mark = marker(HOUR_MS, lag_ms)
    found = mark((has_key, "k"), [rows], cast(GroupState, state))
    return [is_repeat for one in found for is_repeat in one["isRepeat"].tolist()]


def test_a_message_is_a_repeat_within_the_window_before_or_after_a_kept_one_only() -> None:
    state = Remembered()
    assert marks(state, [NOW_MS + 1, NOW_MS]) == [False, True]
    assert marks(state, [NOW_MS - HOUR_MS, NOW_MS + HOUR_MS]) == [True, True]
    assert marks(state, [NOW_MS - HOUR_MS - 1, NOW_MS + HOUR_MS + 1]) == [False, False]


def test_messages_without_a_key_leave_no_state_and_are_never_repeats() -> None:
    state = Remembered()
    assert marks(state, [NOW_MS, NOW_MS], has_key=False) == [False, False]
    assert not state.exists


def test_a_key_is_forgotten_when_the_slowest_queue_is_beyond_its_window() -> None:
    state = Remembered()
    lag_ms = 2 * HOUR_MS
    marks(state, [NOW_MS], lag_ms=lag_ms)
    assert state.due_ms == NOW_MS + HOUR_MS + lag_ms + 1
    state.now_ms = state.due_ms
    assert marks(state, [], lag_ms=lag_ms) == []
    assert not state.exists


def test_a_key_that_expired_while_the_job_was_down_is_kept_for_unread_messages() -> None:
    state = Remembered()
    marks(state, [NOW_MS])
    # Stopped for a day: a message stored a minute later is read only now.
    state.now_ms = NOW_MS + 24 * HOUR_MS
    lag_ms = 24 * HOUR_MS - 60_000
    marks(state, [], lag_ms=lag_ms)
    assert marks(state, [NOW_MS + 60_000], lag_ms=lag_ms) == [True]


def test_a_message_with_a_very_old_time_is_remembered_for_the_window() -> None:
    state = Remembered()
    assert marks(state, [NOW_MS - 100 * HOUR_MS]) == [False]
    assert state.due_ms == NOW_MS + HOUR_MS
    assert marks(state, [NOW_MS - 100 * HOUR_MS]) == [True]


def test_a_message_that_spark_dropped_as_too_late_fails_the_job() -> None:
    assert _late({"batchId": 3, "stateOperators": [{"numRowsDroppedByWatermark": 0}]}) == 0
    with pytest.raises(JobFailed, match="dropped 7 messages of batch 3"):
        _late({"batchId": 3, "stateOperators": [{"numRowsDroppedByWatermark": 7}]})
