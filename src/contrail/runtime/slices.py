"""Long work on the event loop, cut into slices so that nobody waits for all of it."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.002


class Slices:
    """Tells when it is time to give way."""

    def __init__(self, slice_s: float = SLICE_S) -> None:
        self._slice_s = slice_s
        self._began_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began_s > self._slice_s

    async def give_way(self) -> None:
        """Let everything run that is ready; then a new slice begins."""
        await asyncio.sleep(0)
        self._began_s = time.monotonic()

    async def breathe(self) -> None:
        """Give way if it is time to."""
        if self.is_over:
            await self.give_way()
