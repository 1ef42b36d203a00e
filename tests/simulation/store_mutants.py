"""Stores with one rule left out each, which simulated groups must find.

A cut that is not durable dies in tests/fault/test_truncation.py, at every one of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from contrail.store.log import MessageStore
from contrail.store.services.checkpoint import Known
from contrail.store.services.dispatch import Dispatcher
from contrail.store.services.flush import Flusher
from contrail.store.services.upkeep import Upkeep
from contrail.store.state.append import AppendState
from contrail.store.state.positions import NO_LIMIT


class StoreMutant(NamedTuple):
    """An attribute of a class of the store, and what stands in its place."""

    owner: type
    name: str
    replacement: Any


STORES: dict[str, StoreMutant] = {}


def _mutant(owner: type, name: str) -> Callable[[Any], Any]:
    def add(replacement: Any) -> Any:
        function = replacement.fget if isinstance(replacement, property) else replacement
        STORES[function.__name__] = StoreMutant(owner, name, replacement)
        return replacement

    return add


@_mutant(Dispatcher, "cut")
def fresh_rows_kept(self: Dispatcher) -> None:
    """Records that were cut wait in memory, and are derived in place of the new ones."""


@_mutant(Upkeep, "lower_mark")
def mark_above_cut(self: Upkeep, physical_end: int) -> None:
    """The checkpoint goes on to promise bytes that were cut."""


_cut_flusher = Flusher.cut


@_mutant(Flusher, "cut")
def sync_of_cut_bytes(self: Flusher, physical_end: int) -> None:
    """A sync of the bytes that were cut counts for the bytes that come in their place."""
    flushed_end = self._positions.flushed_end
    _cut_flusher(self, physical_end)
    self._positions.flushed_end = flushed_end


@_mutant(AppendState, "reset")
def next_offsets_kept(self: AppendState, next_offsets: dict[tuple[bytes, int], int]) -> None:
    """A new leader goes on with the offsets that it knew when it was opened, or led before."""


_close_cleanly = MessageStore._close_cleanly


@_mutant(MessageStore, "_close_cleanly")
def derive_all_at_close(self: MessageStore) -> None:
    """A store that is closed derives what may be cut later."""
    self._flusher.wait(self._state.physical_end)
    self._dispatcher.advance(self.flushed_end)
    _close_cleanly(self)


@_mutant(Known, "commit_hint")
@property
def derive_all_in_recovery(self: Known) -> int:
    """A start takes all that it finds for committed."""
    return NO_LIMIT
