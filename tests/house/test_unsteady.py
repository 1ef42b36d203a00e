"""The rule for tests that fail beside others and pass alone, and the ledger of those that did."""

from __future__ import annotations

import pytest

from scripts.proofs import complaint_about
from scripts.unsteady import (
    AGAIN_MAX,
    ROOMS,
    UNKNOWN_MAX,
    Entry,
    committed_entries,
    new_entries,
    read_entries,
    refusal,
    too_many_unknown,
)

TEST = "tests/e2e/test_it.py::test_it[1]"
KNOWN = Entry(TEST, "abc1234", "late", "unknown")


def test_the_committed_entries_name_tests_of_real_processes_and_a_cause() -> None:
    entries = committed_entries()
    assert [entry for entry in entries if not entry.test.startswith(ROOMS)] == []
    assert [entry for entry in entries if not (entry.cause and entry.failed and entry.commit)] == []
    assert [said for entry in entries if (said := complaint_about(entry.test))] == []
    assert len({entry.test for entry in entries}) == len(entries)


@pytest.mark.proves("house.tests.unknown-causes")
def test_no_more_than_five_causes_are_unknown() -> None:
    assert too_many_unknown(committed_entries()) == ""
    several = [Entry(f"{TEST}{number}", "c", "f", "unknown") for number in range(UNKNOWN_MAX)]
    found = Entry("tests/e2e/test_b.py::test_b", "c", "f", "the port was taken")
    assert too_many_unknown([*several, found]) == ""
    assert TEST in too_many_unknown([*several, KNOWN])


@pytest.mark.proves("house.tests.asked-once-more")
@pytest.mark.parametrize("room", ["unit", "property", "fault", "house", "cli", "history", "fuzz"])
def test_a_failure_elsewhere_is_final(room: str) -> None:
    failed = {TEST: "late", f"tests/{room}/test_a.py::test_a": "wrong"}
    assert f"tests/{room}/" in refusal(failed, [])


def test_a_test_of_real_processes_may_be_asked_again_but_not_many() -> None:
    failed = {f"tests/spark/test_a.py::test_{number}": "late" for number in range(AGAIN_MAX)}
    assert refusal(failed, []) == ""
    assert "too many" in refusal(failed | {TEST: "late"}, [])


@pytest.mark.proves("house.tests.asked-once-more")
def test_a_test_that_stands_in_the_ledger_and_fails_again_fails_the_run() -> None:
    assert TEST in refusal({TEST: "late"}, [KNOWN])


@pytest.mark.proves("house.tests.asked-once-more")
def test_the_printed_entry_is_read_back() -> None:
    why = 'AssertionError: "\\x00" is not `é`'
    assert read_entries(new_entries({TEST: why}, "abc1234")) == [
        Entry(TEST, "abc1234", why, "unknown")
    ]
