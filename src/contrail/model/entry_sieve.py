"""Reading a table entry by entry: what breaks its rule is put aside, the rest is read.

``refused`` holds the entries that were put aside, for ``runtime.quarantine``. ``mended`` looks for
their like in the table's backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from contrail.model.fastjson import Fields, JsonValue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry that breaks its rule: where it stood, what it was, and what is wrong with it."""

    place: tuple[str, ...]
    value: JsonValue
    problem: str


Refused = tuple[RefusedEntry, ...]


class EntrySieve:
    """Reads the tables of one document."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._refused: list[RefusedEntry] = []

    @property
    def refused(self) -> Refused:
        """What was put aside so far."""
        return tuple(self._refused)

    def value(self, name: str, read: Callable[[JsonValue], T], default: T) -> T:
        """What ``read`` makes of a field of the document; ``default`` where that fails."""
        found = self._fields.unknown(frozenset()).get(name)
        if found is None:
            return default
        try:
            return read(found)
        except ValueError as error:
            self._refused.append(RefusedEntry((name,), found, str(error)))
            return default

    def entries(self, table: str, read: Callable[[str, JsonValue], T]) -> dict[str, T]:
        """What ``read`` makes of each entry of a table of the document."""
        return self.items((table,), self._fields.child(table), read)

    def items(
        self, place: tuple[str, ...], fields: Fields | None, read: Callable[[str, JsonValue], T]
    ) -> dict[str, T]:
        """The same for the object at ``place``; nulls are left out."""
        found: dict[str, T] = {}
        values = {} if fields is None else fields.unknown(frozenset())
        for key, value in values.items():
            if value is None:
                continue
            try:
                found[key] = read(key, value)
            except ValueError as error:
                self._refused.append(RefusedEntry((*place, key), value, str(error)))
        return found


def mended(document: JsonValue, backup: JsonValue, refused: Iterable[RefusedEntry]) -> JsonValue:
    """``document`` with what its backup has in the places of the refused entries.

    Where the backup does not have the refused entry's key, the key itself is what was damaged: its
    neighbours in the backup that the document lacks are taken.
    """
    for entry in refused:
        parent, older = _at(document, entry.place[:-1]), _at(backup, entry.place[:-1])
        if not isinstance(parent, dict) or not isinstance(older, dict):
            continue
        key = entry.place[-1]
        if key in older:
            parent[key] = older[key]
        else:
            for name, value in older.items():
                parent.setdefault(name, value)
    return document


def _at(document: JsonValue, place: tuple[str, ...]) -> JsonValue:
    for key in place:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
