"""The last record torn at any byte: the log ends exactly before it, and goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.campaigns.torn_tail import OVERWRITES, run_campaign
from tests.seeds import seeds_asked_for


@pytest.mark.proves("store.crashes.torn-tail")
def test_with_the_record_checksum_required_any_tear_is_cut_exactly(memory_path: Path) -> None:
    figures = run_campaign(
        memory_path, seed=31, record_crc=True, record_crc_required=True, every=29
    )
    assert figures.problems == []
    assert figures.cases >= 10 * len(OVERWRITES)
    assert figures.cut > figures.kept


@pytest.mark.proves("store.crashes.torn-tail")
def test_without_the_record_checksum_any_tear_of_covered_bytes_is_cut(memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=31, record_crc=False, every=29)
    assert figures.problems == []
    assert figures.cut > figures.kept


def test_with_the_record_checksum_only_enabled_any_tear_is_cut_exactly(memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=31, record_crc=True, every=29)
    assert figures.problems == []


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("record_crc", [True, False])
@pytest.mark.parametrize("seed", seeds_asked_for([31, 32, 33]))
def test_every_byte_of_the_last_record_torn_in_every_way(
    seed: int, record_crc: bool, memory_path: Path
) -> None:
    figures = run_campaign(memory_path, seed=seed, record_crc=record_crc)
    assert figures.problems == []
