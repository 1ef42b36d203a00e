"""Remembers which bytes of the log were verified a moment ago and need no new checksum.

A checksum finds bytes that a disk changed after they left memory. Bytes that this process wrote or
verified within the last minute (``contrailSoundFor``) are taken to be in memory still, so their
checksum would be equal. Older bytes are verified when they are read.
"""

from __future__ import annotations

from collections import deque

from contrail.store.state.sound_stretches import SoundStretches

_SAMPLE_MS = 1000
# Further than any log reaches.
_NO_END = (1 << 63) - 1


class SoundMemory:
    """Knows the end of the log a minute ago, and the stretches verified since."""

    def __init__(self, physical_end: int, *, sound_ms: int, now_ms: int) -> None:
        self._sound_ms = sound_ms
        # This process has not verified the records that were in the log at the start.
        self._old_end = physical_end
        self._last_ms = now_ms
        self._ends: deque[tuple[int, int]] = deque()
        self._stretches = SoundStretches()
        # When ``observe`` must be called again; until then readers need not ask for the log's end.
        self.sample_due_ms = now_ms
        # Grows whenever bytes are found to have left memory; ``QueueRuns`` drop their windows then.
        self.left_count = 0

    def observe(self, physical_end: int, now_ms: int) -> None:
        """The log reaches ``physical_end`` now; call this when ``sample_due_ms`` has come."""
        ends = self._ends
        if not 0 <= now_ms - self._last_ms <= self._sound_ms:
            # No sample for longer than ``sound_ms``: bytes written meanwhile may be older than it.
            self._old_end = physical_end
            ends.clear()
        while ends and now_ms - ends[0][0] > self._sound_ms:
            self._old_end = max(self._old_end, ends.popleft()[1])
        ends.append((now_ms, physical_end))
        self._last_ms = now_ms
        self.sample_due_ms = now_ms + _SAMPLE_MS
        self._stretches.forget(now_ms - self._sound_ms)

    def verified(self, physical_offset: int, byte_count: int, now_ms: int) -> None:
        """Note that these bytes were verified."""
        self._stretches.add(physical_offset, physical_offset + byte_count, now_ms)

    def left_memory(self, physical_offset: int, byte_count: int) -> None:
        """These bytes were not in memory: verify them again when they come back from the disk."""
        self.left_count += 1
        self._stretches.remove(physical_offset, physical_offset + byte_count)

    def is_sound(self, physical_offset: int, byte_count: int, now_ms: int) -> bool:
        """Whether these bytes may be handed out unverified; ``observe`` must not be overdue."""
        return self.sound_around(physical_offset, byte_count, now_ms) is not None

    def sound_around(
        self, physical_offset: int, byte_count: int, now_ms: int
    ) -> tuple[int, int, int] | None:
        """The bytes around these that may be handed out unverified, and until when.

        None if these bytes may not. A call of ``left_memory`` ends the permission early.
        """
        if not self._sound_ms:
            return None
        if physical_offset >= self._old_end:
            return self._old_end, _NO_END, self.sample_due_ms
        found = self._stretches.around(physical_offset, physical_offset + byte_count)
        if found is None or not 0 <= now_ms - found[2] < self._sound_ms:
            return None
        return found[0], found[1], found[2] + self._sound_ms
