"""When a flush is due, without a disk or a thread."""

from __future__ import annotations

import pytest

from contrail.store.state.flush import Rounds, is_due


@pytest.mark.proves("store.files.async-flush")
@pytest.mark.parametrize(
    ("done", "written", "due"),
    [
        (0, 0, False),
        (0, 4096 * 4 - 1, False),
        (0, 4096 * 4, True),
        (4095, 4096 * 3, False),
        (4096, 4096 * 5, True),
    ],
)
def test_a_flush_waits_for_four_pages(done: int, written: int, due: bool) -> None:
    assert is_due(done, written, pages_min=4, thorough=False) is due


def test_a_thorough_round_flushes_a_single_byte_but_not_zero_bytes() -> None:
    assert is_due(10, 11, pages_min=4, thorough=True)
    assert not is_due(11, 11, pages_min=4, thorough=True)


@pytest.mark.proves("store.files.async-flush")
def test_thorough_rounds_come_once_an_interval() -> None:
    rounds = Rounds(10_000, now_ms=0)
    assert [rounds.is_thorough(now) for now in (9_999, 10_000, 10_001, 20_000)] == [
        False,
        True,
        False,
        True,
    ]
