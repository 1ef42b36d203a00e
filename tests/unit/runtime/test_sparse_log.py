"""Warnings that a peer can cause at any rate."""

from __future__ import annotations

import logging

import pytest

from contrail.runtime.sparse_log import SparseLog


def test_one_line_a_minute_tells_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = SparseLog(logging.getLogger("sparse"))
    for now_ms in (0, 1, 59_999, 60_000, 60_001, 200_000, 260_000):
        log.warning(now_ms, "peer %s", "p")
    assert [record.getMessage() for record in caplog.records] == [
        "peer p",
        "peer p (and 2 like it since the last such line)",
        "peer p (and 1 like it since the last such line)",
        "peer p",
    ]


def test_a_clock_that_was_set_back_silences_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = SparseLog(logging.getLogger("sparse"))
    log.warning(1_000_000, "first")
    log.warning(0, "second")
    assert [record.getMessage() for record in caplog.records] == ["first", "second"]
