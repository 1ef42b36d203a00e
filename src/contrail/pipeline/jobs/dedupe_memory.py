"""What a dedupe job remembers of a key: when the messages were that it kept.

A message is a repeat if a kept one of its key is within the window, before or after it, by the
times of the two. Queues are read at different speeds, so the times of what is read go back and
forth: nothing here is ever too late, and whatever is no repeat is kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import DataFrameLike
    from pyspark.sql.streaming.state import GroupState

# What the rows of a group must have beside what is sent; they are grouped by the first two.
HAS_KEY = "hasKey"
REPEAT_KEY = "repeatKey"
TIME = "timeMs"
IS_REPEAT = "isRepeat"
# The times of what was kept, 8 bytes each: an array fails in the Python worker of Spark 4.3.
STATE = "keptMs binary"
ROWS = (
    "body binary, keys string, tags string, shardingKey string, properties map<string,string>, "
    f"{IS_REPEAT} boolean"
)
_SENT = ["body", "keys", "tags", "shardingKey", "properties"]

Mark = Callable[[Any, Iterable["DataFrameLike"], "GroupState"], Iterator["DataFrameLike"]]


def marker(window_ms: int, lag_ms: int) -> Mark:
    """The function for Spark that says of each row whether it is a repeat.

    ``lag_ms`` is how old the oldest message may be that is still to be read. It decides only how
    long a key is remembered.
    """

    def mark(
        key: Any, chunks: Iterable[DataFrameLike], state: GroupState
    ) -> Iterator[DataFrameLike]:
        kept = unpacked(state.get[0]) if state.exists else []
        known = frozenset(kept)
        has_key = bool(key[0])
        for rows in chunks:
            if len(rows):
                yield marked(rows, kept, window_ms) if has_key else unmarked(rows)
        if has_key:
            fresh = [one for one in kept if one not in known]
            _remember(state, kept, fresh, window_ms, lag_ms)

    return mark


def marked(rows: DataFrameLike, kept: list[int], window_ms: int) -> DataFrameLike:
    """The rows of a key, the oldest first; repeats without their bodies, which nobody needs."""
    # Most keys have one row in a batch, and each step costs more than all of its work.
    ordered = rows.sort_values(TIME, kind="stable") if len(rows) > 1 else rows
    is_repeat = repeats(ordered[TIME].tolist(), kept, window_ms)
    found = ordered[_SENT].assign(**{IS_REPEAT: is_repeat})
    if any(is_repeat):
        found["body"] = found["body"].mask(found[IS_REPEAT], None)
    return found


def unmarked(rows: DataFrameLike) -> DataFrameLike:
    """Rows without a key, which repeat nothing."""
    return rows[_SENT].assign(**{IS_REPEAT: False})


def repeats(times_ms: Iterable[int], kept: list[int], window_ms: int) -> list[bool]:
    """Which of these are repeats; the times of those that are not are added to ``kept``."""
    found = []
    for time_ms in times_ms:
        at = bisect_left(kept, time_ms)
        is_near = any(abs(time_ms - one) <= window_ms for one in kept[max(0, at - 1) : at + 1])
        if not is_near:
            insort(kept, time_ms)
        found.append(is_near)
    return found


def needed(kept: Sequence[int], window_ms: int, floor_ms: int) -> list[int]:
    """The times that a message may still be a repeat of, when none older than the floor comes."""
    return [one for one in kept if one + window_ms >= floor_ms]


def packed(times_ms: Sequence[int]) -> bytes:
    return pack(f"<{len(times_ms)}q", *times_ms)


def unpacked(state: bytes) -> list[int]:
    return list(unpack(f"<{len(state) // 8}q", state))


def _remember(
    state: GroupState, kept: list[int], fresh: list[int], window_ms: int, lag_ms: int
) -> None:
    floor_ms = state.getCurrentProcessingTimeMs() - lag_ms
    # What was just read stays for the window at least, however old it says it is.
    staying = sorted({*needed(kept, window_ms, floor_ms), *fresh})
    if not staying:
        if state.exists:
            state.remove()
        return
    state.update((packed(staying),))
    left_ms = staying[-1] + window_ms - floor_ms + 1
    state.setTimeoutDuration(max(left_ms, window_ms) if fresh else max(left_ms, 1))
