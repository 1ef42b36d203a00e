"""Voters of a failover group, and what their majority has reached."""

from __future__ import annotations

import pytest

from contrail.replication.state.voters import Voters, is_single_change

ABC = frozenset("abc")


@pytest.mark.parametrize(
    ("voters", "ends", "reached"),
    [
        ("a", {"a": 7}, 7),
        ("ab", {"a": 9, "b": 5}, 5),
        ("abc", {"a": 9, "b": 5, "c": 1}, 5),
        ("abc", {"a": 9}, 0),
        ("abcde", {"a": 9, "b": 8, "c": 7, "d": 1, "e": 0}, 7),
    ],
)
def test_a_majority_has_reached_the_middle_of_all_ends(
    voters: str, ends: dict[str, int], reached: int
) -> None:
    assert Voters(frozenset(voters)).reached_by_majority(ends) == reached


def test_members_that_are_no_voters_do_not_count() -> None:
    voters = Voters(ABC)
    assert voters.reached_by_majority({"a": 9, "d": 9, "e": 9}) == 0
    assert not voters.is_majority({"a", "d", "e"})
    assert voters.is_majority({"a", "b"})


def test_a_voter_record_counts_at_once_and_a_cut_brings_the_former_voters_back() -> None:
    voters = Voters(ABC)
    voters.record(50, ABC | {"d"})
    assert voters.now == ABC | {"d"}
    assert voters.changed_end == 50
    voters.cut(50)
    assert voters.now == ABC | {"d"}, "the record ends where the log was cut"
    voters.cut(49)
    assert voters.now == ABC


@pytest.mark.parametrize(
    ("after", "is_single"),
    [("abcd", True), ("ab", True), ("abc", False), ("abd", False), ("a", False)],
)
def test_a_change_is_one_voter_more_or_less(after: str, is_single: bool) -> None:
    assert is_single_change(ABC, frozenset(after)) is is_single


def test_the_last_voter_is_not_removed() -> None:
    assert not is_single_change(frozenset("a"), frozenset())


def test_a_change_lies_in_the_stretch_that_has_its_record() -> None:
    voters = Voters(frozenset("a"))
    voters.record(100, frozenset("ab"))
    assert voters.changes_within(50, 100)
    assert not voters.changes_within(100, 200)
    assert not voters.changes_within(0, 99)
