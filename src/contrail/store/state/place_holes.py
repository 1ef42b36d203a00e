"""Matches misplaced records (wrong topic, queue id or queue offset) with addresses that have none.

An address is a topic, queue id and queue offset. A record lies in the log between its neighbours of
its own queue. A hole is an address without a record, and the bytes between which its record
must begin; a misplaced record belongs into a hole there that differs from the record's claim in one
part, if there is such a hole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

_I32, _I64 = (1 << 32) - 1, (1 << 64) - 1


class Place(NamedTuple):
    """Topic, queue id and queue offset."""

    topic: bytes
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        topic = self.topic.decode("utf-8", "replace")
        return f"message {self.queue_offset} of queue {self.queue_id} of {topic}"


class Hole(NamedTuple):
    """An address without a record, and the bytes of the log in which its record must begin."""

    place: Place
    physical_start: int
    physical_end: int


class Claim(NamedTuple):
    """A record, by its physical offset, and the address that it claims."""

    physical_start: int
    place: Place


def match_holes(claims: Iterable[Claim], holes: Collection[Hole]) -> dict[Hole, Claim]:
    """Match misplaced records with the holes that they belong into.

    Records one bit away from a hole come first, then records with the hole's queue offset but
    another topic or queue id, then records of the hole's queue in the order of the log, and last
    records that share any part with a hole.
    """
    left, matched = sorted(claims), dict[Hole, Claim]()
    ordered = sorted(holes)
    for suits in (_is_a_bit_away, _differs_in_queue, _differs_in_offset, _has_some_in_common):
        for claim in list(left):
            hole = next(
                (
                    one
                    for one in ordered
                    if one not in matched
                    and is_between(claim, one)
                    and suits(one.place, claim.place)
                ),
                None,
            )
            if hole is not None:
                matched[hole] = claim
                left.remove(claim)
    return matched


def hole_of(claim: Claim, holes: Iterable[Hole]) -> Hole | None:
    """The hole that a record would fill if one part of its address was damaged."""
    for hole in holes:
        if is_between(claim, hole) and _parts_in_common(hole.place, claim.place) == 2:
            return hole
    return None


def hole_a_bit_away(claim: Claim, holes: Iterable[Hole]) -> Hole | None:
    """The hole that a record would fill if one bit of its address was damaged."""
    for hole in holes:
        if is_between(claim, hole) and _is_a_bit_away(hole.place, claim.place):
            return hole
    return None


def is_between(claim: Claim, hole: Hole) -> bool:
    return hole.physical_start <= claim.physical_start < hole.physical_end


def could_be_of(place: Place, key: tuple[bytes, int], first: int, end: int) -> bool:
    """Whether a record of a queue, from ``first`` to ``end``, could claim ``place``.

    One damaged byte may lie between the two.
    """
    if place[:2] == key:
        return True
    is_near = is_a_byte_away(Place(*key, place.queue_offset), place)
    return is_near and first <= place.queue_offset < end


def _differs_in_queue(one: Place, other: Place) -> bool:
    return one.queue_offset == other.queue_offset and _parts_in_common(one, other) == 2


def _differs_in_offset(one: Place, other: Place) -> bool:
    return one[:2] == other[:2]


def _has_some_in_common(one: Place, other: Place) -> bool:
    return _parts_in_common(one, other) > 0


def _parts_in_common(one: Place, other: Place) -> int:
    return sum(mine == his for mine, his in zip(one, other, strict=True))


def _is_a_bit_away(one: Place, other: Place) -> bool:
    """Whether one flipped bit turns one address into the other."""
    return _difference(one, other).bit_count() == 1


def is_a_byte_away(one: Place, other: Place) -> bool:
    """Whether one damaged byte turns one address into the other."""
    difference = _difference(one, other)
    lowest = (difference & -difference).bit_length() - 1
    return difference != 0 and difference >> lowest // 8 * 8 < 1 << 8


def _difference(one: Place, other: Place) -> int:
    """The bits that differ; for topics of different lengths more than a byte of them."""
    if len(one.topic) != len(other.topic):
        return _I32
    topics = int.from_bytes(one.topic, "big") ^ int.from_bytes(other.topic, "big")
    queue_ids = (one.queue_id ^ other.queue_id) & _I32
    queue_offsets = (one.queue_offset ^ other.queue_offset) & _I64
    return topics << 96 | queue_ids << 64 | queue_offsets
