"""The facts about a log's beginning that the log itself no longer tells.

Retention removes markers and voter records with their segments. The rest of the log begins in some
epoch, with some voters, behind some number of markers: that is its floor. A leader tells it to a
member whose log must begin where the leader's does, and each member keeps its own in
``contrail.epochs``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

_STARTS_MAX = 100_000
_NUMBER_MAX = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFloor:
    """``starts`` are epochs, each with its first byte, that begin before ``physical_start``."""

    physical_start: int
    removed_count: int
    """How many epochs began before the first of ``starts``."""
    starts: tuple[tuple[int, int], ...]
    voters: frozenset[str]
    voters_end: int
    """Where the record that named the voters ends; 0: no record did."""

    def encode(self) -> bytes:
        return json.dumps(
            {
                "physicalStart": self.physical_start,
                "removedMarkers": self.removed_count,
                "starts": [list(one) for one in self.starts],
                "voters": sorted(self.voters),
                "votersEnd": self.voters_end,
            }
        ).encode()

    @classmethod
    def decode(cls, data: bytes) -> LogFloor:
        """Raises ``ValueError`` for anything that no member wrote."""
        try:
            fields: Any = json.loads(data)
            found = cls(
                physical_start=_number(fields["physicalStart"]),
                removed_count=_number(fields["removedMarkers"]),
                starts=tuple(map(_start, _starts(fields["starts"]))),
                voters=frozenset(_name(one) for one in fields["voters"]),
                voters_end=_number(fields["votersEnd"]),
            )
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"no floor of a log: {error!r}") from error
        found._check()
        return found

    def _check(self) -> None:
        pairs = self.starts
        rises = all(
            before[0] < after[0] and before[1] < after[1] for before, after in pairwise(pairs)
        )
        if not rises or (pairs and pairs[-1][1] >= self.physical_start):
            raise ValueError(f"epochs {pairs} do not lead to {self.physical_start}")
        if self.voters_end > self.physical_start:
            raise ValueError(f"voters of {self.voters_end}, behind {self.physical_start}")


def _starts(value: Any) -> list[Any]:
    if type(value) is not list or len(value) > _STARTS_MAX:
        raise ValueError("no list of epochs")
    return value


def _start(value: Any) -> tuple[int, int]:
    epoch, physical_start = value
    return _number(epoch), _number(physical_start)


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is no place, epoch or count")
    return value


def _name(value: Any) -> str:
    if type(value) is not str or not value:
        raise ValueError(f"{value!r} names no member")
    return value
