"""Verified stretches grow together, and never count as younger than their oldest byte."""

from __future__ import annotations

from contrail.store.state.sound_stretches import SoundStretches


def test_neighbours_become_one_stretch_as_old_as_the_older() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 10)
    stretches.add(300, 400, 20)
    stretches.add(200, 300, 30)
    assert len(stretches) == 1
    assert stretches.verified_ms(100, 400) == 10
    assert stretches.verified_ms(150, 350) == 10
    assert stretches.verified_ms(99, 400) is None
    assert stretches.verified_ms(100, 401) is None


def test_a_neighbour_of_another_time_stays_apart() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 0)
    stretches.add(200, 300, 5000)
    assert stretches.verified_ms(100, 200) == 0
    assert stretches.verified_ms(200, 300) == 5000
    assert stretches.verified_ms(150, 250) is None


def test_what_is_verified_again_is_young_again_and_the_rest_is_not() -> None:
    stretches = SoundStretches()
    stretches.add(100, 400, 0)
    stretches.add(200, 300, 50_000)
    assert stretches.verified_ms(100, 200) == 0
    assert stretches.verified_ms(200, 300) == 50_000
    assert stretches.verified_ms(300, 400) == 0


def test_what_is_too_old_is_let_go() -> None:
    stretches = SoundStretches()
    stretches.add(100, 200, 5)
    stretches.add(300, 400, 6)
    stretches.forget(5)
    assert stretches.verified_ms(100, 200) is None
    assert stretches.verified_ms(300, 400) == 6


def test_the_older_half_of_too_many_is_let_go() -> None:
    stretches = SoundStretches()
    for number in range(5000):
        stretches.add(number * 10, number * 10 + 5, number)
    assert len(stretches) <= 4096
    assert stretches.verified_ms(0, 5) is None
    assert stretches.verified_ms(49_990, 49_995) == 4999
