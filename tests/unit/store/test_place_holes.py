"""Matching misplaced records with addresses that have no record."""

from __future__ import annotations

from contrail.store.state.place_holes import (
    Claim,
    Hole,
    Place,
    could_be_of,
    hole_a_bit_away,
    hole_of,
    is_a_byte_away,
    match_holes,
)

HERE = Place(b"orders", 3, 100)


def test_a_hole_takes_a_record_only_from_among_its_neighbours_in_the_log() -> None:
    hole = Hole(HERE, 1000, 2000)
    claim = Place(b"orders", 3, 101)
    assert match_holes([Claim(1500, claim)], [hole]) == {hole: Claim(1500, claim)}
    for outside in (999, 2000):
        assert match_holes([Claim(outside, claim)], [hole]) == {}


def test_a_record_with_nothing_in_common_with_a_hole_is_not_put_there() -> None:
    stranger = Claim(1500, Place(b"other", 7, 5))
    assert match_holes([stranger], [Hole(HERE, 1000, 2000)]) == {}


def test_one_flipped_bit_decides_before_everything_else() -> None:
    near = Claim(1600, HERE._replace(queue_offset=100 ^ 1 << 40))
    other = Claim(1500, HERE._replace(queue_offset=7777))
    hole = Hole(HERE, 1000, 2000)
    assert match_holes([other, near], [hole]) == {hole: near}


def test_the_offset_tells_which_hole_a_record_of_another_queue_belongs_to() -> None:
    holes = [Hole(HERE, 1000, 2000), Hole(HERE._replace(queue_offset=101), 1000, 2000)]
    strays = [
        Claim(1500, Place(b"orders", 77, 101)),
        Claim(1400, Place(b"orders", 99, 100)),
    ]
    assert match_holes(strays, holes) == {holes[0]: strays[1], holes[1]: strays[0]}


def test_records_of_the_queue_itself_fill_its_holes_in_the_order_of_the_log() -> None:
    holes = [Hole(HERE._replace(queue_offset=at), 1000, 2000) for at in (100, 101)]
    liars = [
        Claim(1700, HERE._replace(queue_offset=9000)),
        Claim(1200, HERE._replace(queue_offset=8000)),
    ]
    assert match_holes(liars, holes) == {holes[0]: liars[1], holes[1]: liars[0]}


def test_no_record_fills_two_holes_and_no_hole_takes_two_records() -> None:
    holes = [Hole(HERE._replace(queue_offset=at), 0, 9999) for at in range(100, 104)]
    claims = [Claim(at * 10, HERE._replace(queue_offset=500 + at)) for at in range(1, 7)]
    matched = match_holes(claims, holes)
    assert set(matched) == set(holes)
    assert len(set(matched.values())) == len(holes)


def test_a_hole_of_one_damaged_part_and_of_one_damaged_bit() -> None:
    hole = Hole(HERE, 0, 10)
    one_part = Claim(5, HERE._replace(queue_id=200))
    one_bit = Claim(5, HERE._replace(queue_id=3 ^ 16))
    two_parts = Claim(5, Place(b"orders", 200, 7))
    assert hole_of(one_part, [hole]) == hole
    assert hole_of(two_parts, [hole]) is None
    assert hole_a_bit_away(one_bit, [hole]) == hole
    assert hole_a_bit_away(one_part, [hole]) is None


def test_one_damaged_byte_turns_one_address_into_another() -> None:
    assert is_a_byte_away(HERE, HERE._replace(topic=b"ordErs"))
    assert is_a_byte_away(HERE, HERE._replace(queue_offset=100 | 0xFF << 16))
    assert not is_a_byte_away(HERE, HERE)
    assert not is_a_byte_away(HERE, HERE._replace(topic=b"order"))
    assert not is_a_byte_away(HERE, HERE._replace(queue_id=4, queue_offset=101))
    assert not is_a_byte_away(HERE, HERE._replace(queue_offset=100 ^ 0x0180))


def test_a_claim_of_another_queue_counts_if_its_offset_is_within_the_gap() -> None:
    key = (b"orders", 3)
    assert could_be_of(Place(b"orders", 3, 10**12), key, 90, 110)
    assert could_be_of(Place(b"orders", 2, 100), key, 90, 110)
    assert not could_be_of(Place(b"orders", 2, 110), key, 90, 110)
    assert not could_be_of(Place(b"others", 700, 100), key, 90, 110)
