"""Asks other members for the records that this member's reads or its scrubber found damaged.

Below the commit all members have the same bytes. One range is asked for at a time, of one member
after the other; the store verifies the bytes before it writes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from contrail.protocol.group_frames import FETCH_BYTES_MAX, REPAIRS
from contrail.protocol.group_messages import Fetch, Fetched
from contrail.replication.services.member_links import MemberLinks
from contrail.store import MessageStore

_INTERVAL_MS = 1_000
_PATIENCE_MS = 5_000
_log = logging.getLogger(__name__)


class PeerRepair:
    """Belongs to the event loop's thread; ``repaired`` counts ranges."""

    def __init__(self, store: MessageStore, links: MemberLinks, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._links = links
        self._now_ms = now_ms
        self._due_ms = 0
        self._asked: Fetch | None = None
        # How often each range was asked for: another member is asked the next time.
        self._tries: dict[int, int] = {}
        self.repaired = 0

    def run(self) -> None:
        """Ask for the next damaged range, unless an answer is awaited."""
        now_ms = self._now_ms()
        if now_ms < self._due_ms or not len(self._store.damage.records):
            return
        self._due_ms = now_ms + _INTERVAL_MS
        settled_end = self._store.settled_end
        for one in self._store.damage.known():
            size = one.physical_end - one.physical_start
            if one.physical_end <= settled_end and 0 < size <= FETCH_BYTES_MAX:
                if self._ask(Fetch(one.physical_start, one.physical_end)):
                    self._due_ms = now_ms + _PATIENCE_MS
                return

    def _ask(self, fetch: Fetch) -> bool:
        links = [self._links.link_to(self_id) for self_id in sorted(self._links.hellos())]
        able = [link for link in links if link is not None and REPAIRS in link.features]
        if not able:
            return False
        tries = self._tries.get(fetch.physical_start, 0)
        self._tries[fetch.physical_start] = tries + 1
        self._asked = fetch
        able[tries % len(able)].send(fetch)
        return True

    def serve(self, fetch: Fetch, commit: int) -> Fetched:
        """The bytes that another member lacks; none if this one cannot have them for sure."""
        store, start, end = self._store, fetch.physical_start, fetch.physical_end
        is_here = store.physical_min <= start < end <= min(commit, store.flushed_end)
        is_one_segment = start // store.segment_bytes == (end - 1) // store.segment_bytes
        if not is_here or not is_one_segment or end - start > FETCH_BYTES_MAX:
            return Fetched(start, b"")
        return Fetched(start, store.log_bytes(start, end - start))

    def fetched(self, self_id: str, found: Fetched) -> None:
        """Write what a member sent, if it is what was asked for and whole."""
        asked, self._asked = self._asked, None
        self._due_ms = self._now_ms() + _INTERVAL_MS
        if asked is None or asked.physical_start != found.physical_start:
            return
        if not self._store.repair(found.physical_start, found.data):
            _log.warning(
                "member %s has no sound copy of bytes %d to %d of the log",
                self_id,
                asked.physical_start,
                asked.physical_end,
            )
            return
        self._due_ms = 0
        self.repaired += 1
        self._tries.pop(asked.physical_start, None)
        _log.warning(
            "bytes %d to %d of the log were damaged, and are written anew from member %s",
            asked.physical_start,
            asked.physical_end,
            self_id,
        )
