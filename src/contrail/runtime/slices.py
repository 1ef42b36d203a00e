"""Long work on the event loop, cut into slices so that no request waits for all of it."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.002


class Slices:
    """Tells when a slice is over."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began_s > self._slice_s

    async def give_way(self) -> None:
        """Let the loop run everything that is ready; then a new slice begins."""
        await asyncio.sleep(0)
        self._began_s = time.monotonic()

    async def breathe(self) -> None:
        """Give way if the slice is over."""
        if self.is_over:
            await self.give_way()
