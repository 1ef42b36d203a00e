"""Bytes written or verified a moment ago count as sound; no others do."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.store.config import StoreConfig
from contrail.store.state.sound_memory import SoundMemory

MINUTE_MS = 60_000


def memory(physical_end: int = 1000, sound_ms: int = MINUTE_MS) -> SoundMemory:
    return SoundMemory(physical_end, sound_ms=sound_ms, now_ms=0)


def test_bytes_in_the_log_at_the_start_are_not_sound() -> None:
    assert not memory(1000).is_sound(999, 1, 0)


def test_bytes_appended_since_the_start_are_sound_for_a_minute() -> None:
    sound = memory(1000)
    sound.observe(1000, 0)
    sound.observe(2000, 10_000)
    sound.observe(3000, 50_000)
    assert sound.is_sound(1500, 100, 50_000)
    sound.observe(4000, 10_001 + MINUTE_MS)
    assert not sound.is_sound(1500, 100, 10_001 + MINUTE_MS)
    assert sound.is_sound(2500, 100, 10_001 + MINUTE_MS)


def test_a_verified_stretch_is_sound_for_a_minute_and_so_is_any_part_of_it() -> None:
    sound = memory()
    sound.verified(100, 50, 5)
    assert sound.is_sound(100, 50, 5 + MINUTE_MS - 1)
    assert sound.is_sound(101, 49, 6)
    assert not sound.is_sound(100, 51, 6)
    assert not sound.is_sound(99, 51, 6)
    assert not sound.is_sound(100, 50, 5 + MINUTE_MS)


def test_bytes_that_left_memory_are_no_longer_sound() -> None:
    sound = memory()
    sound.verified(100, 50, 5)
    sound.left_memory(120, 10)
    assert not sound.is_sound(100, 50, 6)
    assert sound.is_sound(100, 20, 6)


def test_a_stretch_whose_time_is_over_is_forgotten() -> None:
    sound = memory()
    sound.verified(100, 50, 5)
    sound.verified(200, 50, 6)
    sound.observe(2000, 5 + MINUTE_MS)
    # If the stretch had been kept, it would be sound at this time.
    assert not sound.is_sound(100, 50, 6)
    assert sound.is_sound(200, 50, 6)


def test_with_a_sound_time_of_zero_all_bytes_are_verified_again() -> None:
    sound = memory(0, sound_ms=0)
    sound.observe(100, 0)
    sound.verified(10, 5, 0)
    assert not sound.is_sound(10, 5, 0)
    assert not sound.is_sound(50, 5, 0)


def test_bytes_written_during_a_long_time_without_samples_are_not_sound() -> None:
    sound = memory(1000)
    sound.observe(2000, 1000)
    hours_later_ms = 10 * 3_600_000
    sound.observe(9000, hours_later_ms)
    assert not sound.is_sound(5000, 100, hours_later_ms)
    assert not sound.is_sound(1500, 100, hours_later_ms)
    assert sound.is_sound(9000, 100, hours_later_ms)


@pytest.mark.proves("broker.edges.sound-for")
def test_the_durability_page_names_the_minute() -> None:
    """The promise of reads has this one limit; the page with the promise names it."""
    page = Path(__file__).parents[3] / "docs" / "design" / "durability.md"
    promise = page.read_text(encoding="utf-8").split("## Nine rules")[0]
    default_ms = StoreConfig(root=Path()).sound_ms
    assert f"`contrailSoundFor`, {default_ms // 1000} s" in " ".join(promise.split())
    assert "`contrailSoundFor=0`" in promise
