"""Tables that others remember conclusions from: watchers are told of every change."""

from __future__ import annotations

from collections.abc import Callable


class Watched:
    """``epoch`` grows with each change, so that caches can tell; those that watch are told."""

    def __init__(self) -> None:
        self.epoch = 0
        self._watchers: list[Callable[[], None]] = []

    def watch(self, forget: Callable[[], None]) -> None:
        """Call ``forget`` at each change."""
        self._watchers.append(forget)

    def moved(self) -> None:
        """Something changed that others may have drawn conclusions from."""
        self.epoch += 1
        for forget in self._watchers:
            forget()
