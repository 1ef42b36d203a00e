"""The access benchmark runs end to end with tiny counts; its structure is checked, no figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.access import groups, measure


@pytest.mark.proves("access.gate.fast")
def test_signed_batches_are_measured_beside_open_ones(tmp_path: Path) -> None:
    assert groups() == ["send", "batch", "pull"]
    (row,) = measure("batch", size="tiny", folder=tmp_path)
    assert row.unit == "µs CPU more" and set(row.details) == {"off_us", "on_us"}
