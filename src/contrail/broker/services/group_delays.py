"""The delay levels of a failover group: the leader delivers, and the next one goes on there.

A delivered record names the one that waited, so the log alone tells what was delivered. A new
leader must not read all of it: the leader carries its cursors in the group's tables, with the place
in the log up to which they speak for all deliveries. The next leader takes the committed ones and
reads the log from that place on, up to its own marker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from contrail.broker.services.delivery_memory import read_deliveries
from contrail.broker.state.causes import Delivered
from contrail.model.fastjson import Fields, JsonValue
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

CARRIED = "delayLevels"
# A new leader reads the log behind the carried cursors: so much of it takes some 0.2 s. Retention
# keeps it as well, so it is no more than a segment.
_BEHIND_BYTES_MAX = 8 << 20


class DelayedMessages(Protocol):
    """The levels, as far as a change of leaders concerns them."""

    @property
    def waiting_from(self) -> int | None: ...
    def queue_offsets(self) -> dict[int, int]: ...
    def take_over(self, cursors: Mapping[int, int] | None, delivered: Delivered) -> None: ...
    def stop(self) -> None: ...
    def run(self, now_ms: int) -> None: ...


class GroupDelays:
    """Runs the delay levels while this member leads."""

    def __init__(
        self,
        store: MessageStore,
        delays: DelayedMessages,
        committed: Callable[[], JsonValue],
        *,
        read: Callable[[MessageStore, int], Delivered] = read_deliveries,
    ) -> None:
        """``committed`` has the cursors that the group's tables carry; None: there are none."""
        self._store = store
        self._delays = delays
        self._committed = committed
        self._read = read
        self._leads = False
        self._carried: tuple[int, dict[int, int]] | None = None

    def committed(self, physical_start: int, physical_end: int) -> None:
        """Cursors come with the tables, deliveries are looked for by the next leader."""

    async def lead(self, term: int) -> None:
        found = _parsed(self._committed())
        if found is None:
            # Of a folder that was a single broker's: its own cursors count.
            waiting_from = self._delays.waiting_from
            start = self._store.visible_end if waiting_from is None else waiting_from
            cursors = None
        else:
            start, cursors = found
        loop = asyncio.get_running_loop()
        delivered = await loop.run_in_executor(None, self._read, self._store, start)
        self._delays.take_over(cursors, delivered)
        self._carried = None
        self._leads = True

    def retention_limit(self) -> int:
        """The next leader reads the log from there on."""
        found = _parsed(self._committed())
        return 0 if found is None else found[0]

    def follow(self, term: int) -> None:
        self._leads = False
        self._delays.stop()

    def run(self, now_ms: int) -> None:
        if self._leads:
            self._delays.run(now_ms)

    def carried(self) -> JsonValue:
        """The cursors for the group's tables: new ones if any moved, or the log has grown much."""
        if not self._leads:
            return self._committed()
        cursors, physical_end = self._delays.queue_offsets(), self._store.physical_end
        known = self._carried
        bytes_max = min(_BEHIND_BYTES_MAX, self._store.segment_bytes)
        if known is None or known[1] != cursors or physical_end - known[0] > bytes_max:
            known = self._carried = (physical_end, cursors)
        levels: dict[str, JsonValue] = {str(level): one for level, one in known[1].items()}
        return {"physicalEnd": known[0], "levels": levels}


def _parsed(carried: JsonValue) -> tuple[int, dict[int, int]] | None:
    if carried is None:
        return None
    fields = Fields(carried, "the carried cursors of delay levels")
    levels = fields.integers("levels")
    return fields.integer("physicalEnd", 0), {int(level): one for level, one in levels.items()}
