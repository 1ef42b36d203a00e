"""The memory of a dedupe job for a key: the times of the messages that it kept.

A message is a repeat if a kept message of its key is within the window, before or after it, by the
times of the two. Queues are read at different speeds, so the times of read messages go back and
forth: no message is ever too late, and every message that is no repeat is kept.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.pandas._typing import DataFrameLike
    from pyspark.sql.streaming.state import GroupState

# The columns of a group's rows beside those of the sink; rows are grouped by the first two.
HAS_KEY = "hasKey"
REPEAT_KEY = "repeatKey"
TIME = "timeMs"
IS_REPEAT = "isRepeat"
# The times of kept messages, 8 bytes each: an array fails in the Python worker of Spark 4.3.
STATE = "keptMs binary"
ROWS = (
    "body binary, keys string, tags string, shardingKey string, properties map<string,string>, "
    f"{IS_REPEAT} boolean"
)
_SENT = ["body", "keys", "tags", "shardingKey", "properties"]

Mark = Callable[[Any, Iterable["DataFrameLike"], "GroupState"], Iterator["DataFrameLike"]]


def marker(window_ms: int, lag_ms: int) -> Mark:
    """The function for Spark that marks each row as a repeat or not.

    ``lag_ms`` is the age of the oldest message that is still to be read. It decides only how long
    a key is remembered.
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
    """The rows of a key, the oldest first; repeats without their bodies, which are not used."""
    # Most keys have one row in a batch, for which each call costs more than its work.
    ordered = rows.sort_values(TIME, kind="stable") if len(rows) > 1 else rows
    is_repeat = repeats(ordered[TIME].tolist(), kept, window_ms)
    found = ordered[_SENT].assign(**{IS_REPEAT: is_repeat})
    if any(is_repeat):
        found["body"] = found["body"].mask(found[IS_REPEAT], None)
    return found


def unmarked(rows: DataFrameLike) -> DataFrameLike:
    """Rows without a key, which are never repeats."""
    return rows[_SENT].assign(**{IS_REPEAT: False})


def repeats(times_ms: Iterable[int], kept: list[int], window_ms: int) -> list[bool]:
    """Whether each message is a repeat; adds the times of the others to ``kept``."""
    found = []
    for time_ms in times_ms:
        at = bisect_left(kept, time_ms)
        is_near = any(abs(time_ms - one) <= window_ms for one in kept[max(0, at - 1) : at + 1])
        if not is_near:
            insort(kept, time_ms)
        found.append(is_near)
    return found


def needed(kept: Sequence[int], window_ms: int, floor_ms: int) -> list[int]:
    """The kept times that matter to messages not older than the floor."""
    return [one for one in kept if one + window_ms >= floor_ms]


def packed(times_ms: Sequence[int]) -> bytes:
    return pack(f"<{len(times_ms)}q", *times_ms)


def unpacked(state: bytes) -> list[int]:
    return list(unpack(f"<{len(state) // 8}q", state))


def _remember(
    state: GroupState, kept: list[int], fresh: list[int], window_ms: int, lag_ms: int
) -> None:
    floor_ms = state.getCurrentProcessingTimeMs() - lag_ms
    # A message that was just read is kept for the window at least, however old its time is.
    staying = sorted({*needed(kept, window_ms, floor_ms), *fresh})
    if not staying:
        if state.exists:
            state.remove()
        return
    state.update((packed(staying),))
    left_ms = staying[-1] + window_ms - floor_ms + 1
    state.setTimeoutDuration(max(left_ms, window_ms) if fresh else max(left_ms, 1))
