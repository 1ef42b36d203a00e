"""Names and values of a table of messages: attempts, files, columns. No I/O.

    TABLE/_contrail/archive.json                     the format
    TABLE/_contrail/rounds/00000012-a31f0.json       the next queue offsets after round 12
    TABLE/data/00000012-a31f0/3f….parquet            the files that this attempt at round 12 wrote
    TABLE/metadata/v14.metadata.json                 Iceberg's, written by the commit
    TABLE/_delta_log/00000000000000000014.json       Delta's, written by the commit

An attempt's files and its note count from the moment the table's commit names the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

CONTROL = "_contrail"
FORMAT_NOTE = f"{CONTROL}/archive.json"
ROUNDS = f"{CONTROL}/rounds"
DATA = "data"
_TOKEN_BITS = 20
TOKEN_MAX = (1 << _TOKEN_BITS) - 1


class Attempt(NamedTuple):
    """One try at one round. The token tells the tries at a round apart."""

    number: int
    token: int

    @property
    def name(self) -> str:
        return f"{self.number:08d}-{self.token:05x}"

    @property
    def serial(self) -> int:
        """The attempt as one number, larger for a later round."""
        return self.number << _TOKEN_BITS | self.token

    @property
    def note(self) -> str:
        return f"{ROUNDS}/{self.name}.json"

    @classmethod
    def of_serial(cls, serial: int) -> Attempt:
        return cls(serial >> _TOKEN_BITS, serial & TOKEN_MAX)

    @classmethod
    def of_name(cls, name: str) -> Attempt | None:
        """The attempt of a folder's or a note's name; None if it is the name of none."""
        number, _, token = name.removesuffix(".json").partition("-")
        try:
            attempt = cls(int(number), int(token, 16))
        except ValueError:
            return None
        return attempt if attempt.name == name.removesuffix(".json") else None


class Partition(NamedTuple):
    """The messages of a topic that were stored on one day, in UTC."""

    topic: str
    date: str

    @property
    def starts_at(self) -> datetime:
        return datetime.fromisoformat(self.date).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table; ``path`` is seen from the table's place."""

    path: str
    partition: Partition
    rows: int
    size_bytes: int
    # Of some columns: the smallest and the largest value, numbers and times in microseconds.
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "topic": self.partition.topic,
            "date": self.partition.date,
            "rows": self.rows,
            "bytes": self.size_bytes,
            "bounds": {name: list(pair) for name, pair in self.bounds.items()},
        }

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> DataFile:
        return cls(
            data["path"],
            Partition(data["topic"], data["date"]),
            int(data["rows"]),
            int(data["bytes"]),
            {name: (int(low), int(high)) for name, (low, high) in data["bounds"].items()},
        )
