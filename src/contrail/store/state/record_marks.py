"""The marks in a record's header by which a message kind knows what was delivered."""

from __future__ import annotations

from typing import NamedTuple


class RecordMarks(NamedTuple):
    """The records that are wanted: marked by ``preparedTransactionOffset`` or a commit, and these.

    ``topics`` are wanted whole; ``text`` in a record's properties makes it one, unless it is empty.
    """

    topics: frozenset[bytes] = frozenset()
    text: bytes = b""
