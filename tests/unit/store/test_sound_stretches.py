"""Verified stretches grow together, and never count as younger than their oldest byte."""

from __future__ import annotations

from contrail.store.state.sound_stretches import SoundStretches


def test_adjacent_stretches_become_one_as_old_as_the_older() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 10)
    stretches.add(300, 400, 20)
    stretches.add(200, 300, 30)
    assert len(stretches) == 1
    assert stretches.verified_ms(100, 400) == 10
    assert stretches.verified_ms(150, 350) == 10
    assert stretches.verified_ms(99, 400) is None
    assert stretches.verified_ms(100, 401) is None


def test_an_adjacent_stretch_of_another_time_stays_separate() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 0)
    stretches.add(200, 300, 5000)
    assert stretches.verified_ms(100, 200) == 0
    assert stretches.verified_ms(200, 300) == 5000
    assert stretches.verified_ms(150, 250) is None


def test_bytes_verified_again_are_young_again_and_the_others_are_not() -> None:
    stretches = SoundStretches()
    stretches.add(100, 400, 0)
    stretches.add(200, 300, 50_000)
    assert stretches.verified_ms(100, 200) == 0
    assert stretches.verified_ms(200, 300) == 50_000
    assert stretches.verified_ms(300, 400) == 0


def test_removed_bytes_are_forgotten_and_the_others_keep_their_time() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 5)
    stretches.add(300, 400, 6)
    stretches.remove(150, 350)
    assert stretches.verified_ms(100, 150) == 5
    assert stretches.verified_ms(150, 151) is None
    assert stretches.verified_ms(349, 350) is None
    assert stretches.verified_ms(350, 400) == 6
    stretches.remove(110, 120)
    assert stretches.verified_ms(100, 110) == 5
    assert stretches.verified_ms(110, 120) is None
    assert stretches.verified_ms(120, 150) == 5
    stretches.remove(0, 100)
    stretches.remove(400, 500)
    assert len(stretches) == 3


def test_stretches_that_are_too_old_are_forgotten() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 5)
    stretches.add(300, 400, 6)
    stretches.forget(5)
    assert stretches.verified_ms(100, 200) is None
    assert stretches.verified_ms(300, 400) == 6


def test_the_older_half_of_too_many_stretches_is_forgotten() -> None:
    stretches = SoundStretches()
    for number in range(5000):
        stretches.add(number * 10, number * 10 + 5, number)
    assert len(stretches) <= 4096
    assert stretches.verified_ms(0, 5) is None
    assert stretches.verified_ms(49_990, 49_995) == 4999
