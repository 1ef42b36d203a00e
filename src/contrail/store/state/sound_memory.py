"""Which bytes of the log need not be verified again because they were a moment ago.

A checksum finds what a disk did to bytes that left memory and came back. Bytes that this process
wrote or verified within the last minute (``contrailSoundFor``) have not left it, so their checksum
would only be computed to be equal. Everything older is verified when it is read.
"""

from __future__ import annotations

from collections import deque

from contrail.store.state.sound_stretches import SoundStretches

_SAMPLE_MS = 1000


class SoundMemory:
    """Knows the end of the log a minute ago, and the stretches verified since."""

    def __init__(self, physical_end: int, *, sound_ms: int, now_ms: int) -> None:
        self._sound_ms = sound_ms
        # What was in the log at the start has not been seen by this process.
        self._old_end = physical_end
        self._last_ms = now_ms
        self._ends: deque[tuple[int, int]] = deque()
        self._stretches = SoundStretches()
        # When ``observe`` wants to hear again; until then nobody needs to ask for the end.
        self.sample_due_ms = now_ms

    def observe(self, physical_end: int, now_ms: int) -> None:
        """The log reaches ``physical_end`` now; to be called when ``sample_due_ms`` has come."""
        ends = self._ends
        if not 0 <= now_ms - self._last_ms <= self._sound_ms:
            # Nobody looked for so long that what was written meanwhile may be as old as that.
            self._old_end = physical_end
            ends.clear()
        while ends and now_ms - ends[0][0] > self._sound_ms:
            self._old_end = max(self._old_end, ends.popleft()[1])
        ends.append((now_ms, physical_end))
        self._last_ms = now_ms
        self.sample_due_ms = now_ms + _SAMPLE_MS
        self._stretches.forget(now_ms - self._sound_ms)

    def verified(self, physical_offset: int, byte_count: int, now_ms: int) -> None:
        """These bytes were found whole."""
        self._stretches.add(physical_offset, physical_offset + byte_count, now_ms)

    def is_sound(self, physical_offset: int, byte_count: int, now_ms: int) -> bool:
        """Whether these bytes may be handed out unverified; ``observe`` has seen this second."""
        if not self._sound_ms:
            return False
        if physical_offset >= self._old_end:
            return True
        verified_ms = self._stretches.verified_ms(physical_offset, physical_offset + byte_count)
        return verified_ms is not None and 0 <= now_ms - verified_ms < self._sound_ms
