"""Reads a table entry by entry: an entry that breaks its rule is refused, the others are read.

``refused`` holds the refused entries, for ``runtime.quarantine``. ``mended`` replaces them with
entries of the table's backup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from contrail.model.fastjson import Fields, JsonValue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """An entry that breaks its rule: its keys from the top of the document, value and problem."""

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
        """The entries refused so far."""
        return tuple(self._refused)

    def value(self, name: str, read: Callable[[JsonValue], T], default: T) -> T:
        """A field of the document, decoded by ``read``; ``default`` if ``read`` refuses it."""
        found = self._fields.unknown(frozenset()).get(name)
        if found is None:
            return default
        try:
            return read(found)
        except ValueError as error:
            self._refused.append(RefusedEntry((name,), found, str(error)))
            return default

    def entries(self, table: str, read: Callable[[str, JsonValue], T]) -> dict[str, T]:
        """The entries of a table of the document, decoded by ``read``."""
        return self.items((table,), self._fields.child(table), read)

    def items(
        self, place: tuple[str, ...], fields: Fields | None, read: Callable[[str, JsonValue], T]
    ) -> dict[str, T]:
        """As ``entries`` for the object at ``place``; nulls are left out."""
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
    """``document`` with the backup's entries instead of the refused ones.

    If the backup does not have a refused entry's key, the key itself was damaged: then all entries
    beside it in the backup that the document lacks are taken.
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
