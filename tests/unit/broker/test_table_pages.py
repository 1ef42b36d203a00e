"""Pieces of a table, as RocketMQ's clients ask for them: they stop one entry before the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.handlers.topics import fitted
from contrail.model.data_version import DataVersion

VERSION = DataVersion(0, 1, 2)
OLDER = DataVersion(0, 1, 1)


def collected(total: int, page_count: int) -> list[int]:
    """The entries that Apache's client collects: it ends as soon as it lacks at most one."""
    entries: list[int] = []
    known = None
    while True:
        _, start, count = fitted((known, len(entries), page_count), VERSION, total)
        first = start if known == VERSION else 0
        entries += range(first, min(total, first + count))
        known = VERSION
        if len(entries) >= total - 1:
            return entries


@given(total=st.integers(0, 50), page_count=st.integers(2, 60))
def test_a_client_that_stops_one_early_still_gets_every_entry(total: int, page_count: int) -> None:
    assert collected(total, page_count) == list(range(total))


def test_pages_that_leave_nothing_or_more_than_one_stay_as_they_are() -> None:
    assert fitted((VERSION, 0, 5), VERSION, 5) == (VERSION, 0, 5)
    assert fitted((VERSION, 0, 5), VERSION, 7) == (VERSION, 0, 5)
    assert fitted((VERSION, 2, 3), VERSION, 6) == (VERSION, 2, 2)


def test_a_single_entry_is_never_cut_away() -> None:
    assert fitted((None, 0, 1), VERSION, 2) == (None, 0, 1)


def test_a_client_that_knows_another_version_starts_anew() -> None:
    assert fitted((OLDER, 3, 4), VERSION, 5) == (OLDER, 3, 3)
