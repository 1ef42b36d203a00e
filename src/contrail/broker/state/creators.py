"""The names created automatically by address, and their number in this second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

_SECOND_MS = 1000


class Creators:
    """The names that each address had created; creations from this host are in no share."""

    def __init__(self, names: Mapping[str, Iterable[str]] | None = None) -> None:
        """``names`` are those of an earlier run, by address."""
        self._address_of: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self.too_long: str | None = None
        """Why nothing more is created, if the file of their table is longer than allowed."""
        for address, created in (names or {}).items():
            for name in created:
                self.add(name, address)

    def add(self, name: str, address: str) -> None:
        self.discard(name)
        self._address_of[name] = address
        self._counts[address] += 1

    def discard(self, name: str) -> None:
        """The name is gone, or an operator has taken it over."""
        address = self._address_of.pop(name, None)
        if address is None:
            return
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]

    def keep(self, names: Iterable[str]) -> None:
        """Forget creators of names that are not among ``names``."""
        for name in self._address_of.keys() - set(names):
            self.discard(name)

    def count(self, address: str) -> int:
        return self._counts[address]

    def by_address(self) -> dict[str, list[str]]:
        """All names by address, in their order, for a file."""
        found: dict[str, list[str]] = {}
        for name, address in sorted(self._address_of.items()):
            found.setdefault(address, []).append(name)
        return found


class CreationRate:
    """How many topics, or groups, each client may have created in one second."""

    def __init__(self) -> None:
        self._second = -1
        self._counts: dict[str, int] = {}

    def admit(self, client: str, *, now_ms: int, count_max: int) -> bool:
        """Count one more creation, or refuse it."""
        second = now_ms // _SECOND_MS
        if second != self._second:
            self._second = second
            self._counts.clear()
        count = self._counts.get(client, 0)
        if count >= count_max:
            return False
        self._counts[client] = count + 1
        return True
