"""Tells tidy sends from others and gathers those of many connections into one run.

With many connections of one message each it is not the messages that cost but the steps per
connection; here a connection costs one turn of a loop.
"""

from __future__ import annotations

from typing import Any

Item = tuple[Any, ...]
"""A send as ``frame_scan`` returns it."""
Part = tuple[Any, int, int, Any]
"""Who sent neighbouring messages of a run, the first of them, where they end, and a note."""


def count_plain(
    items: list[Item], first: int, queue_counts: dict[bytes, int], plain_flags: int
) -> int:
    """How many sends from ``first`` on may be stored as they are.

    Those of a topic in ``queue_counts``, to a queue that exists, with a body, no features, not a
    batch, and no other bits in their flags than ``plain_flags``.
    """
    index = first
    end = len(items)
    while index < end:
        item = items[index]
        draft = item[11]
        queue_count = queue_counts.get(draft[0])
        if queue_count is None or item[9] or item[7]:
            break
        queue_id = draft[1]
        count = queue_count
        flags = draft[5]
        if queue_id < 0 or queue_id >= count or flags & ~plain_flags or not draft[2]:
            break
        index += 1
    return index - first


def gather_runs(
    arrived: list[tuple[Any, Any, bool]],
    at: int,
    queue_counts: dict[bytes, int],
    plain_flags: int,
    in_flight_count_max: int,
    items: list[Item],
    drafts: list[Any],
    parts: list[Part],
) -> int:
    """Take entries of ``arrived`` from ``at`` on while they hold nothing but plain sends.

    An entry is a connection, its items, and whether all of them are sends; one whose items are no
    list is left alone. ``count_plain`` says which sends are plain. They are added to ``items``,
    their drafts to ``drafts`` and one part per connection to ``parts``. Returns the index of the
    first entry that was left alone.
    """
    end = len(arrived)
    while at < end:
        entry = arrived[at]
        if not isinstance(entry[1], list):
            break
        run = entry[1]
        count = len(run)
        if not entry[2] or count + entry[0].in_flight_count > in_flight_count_max:
            break
        if count_plain(run, 0, queue_counts, plain_flags) < count:
            break
        first = len(items)
        for item in run:
            items.append(item)
            drafts.append(item[11])
        parts.append((entry[0], first, first + count, None))
        at += 1
    return at
