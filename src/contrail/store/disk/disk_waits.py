"""Reads that must not wait for the disk say what they lack instead.

Who reads on the event loop's thread does so inside ``with waits:``. A read that needs something
that is not in memory ends there and names it; another thread brings it in, and the read is made
again from its beginning. So only what reads before it changes anything may be done that way.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from contrail.runtime.files import FilePart


class NotInMemory(BaseException):
    """Some of what a read needs is on the disk only: bring in ``parts``, and read again.

    It is no error, so that no ``except Exception`` on its way takes it for one.
    """

    def __init__(self, parts: list[FilePart]) -> None:
        super().__init__(f"{len(parts)} parts of files are not in memory, the first is {parts[0]}")
        self.parts = parts


class DiskWaits:
    """Whether reads may wait for the disk; inside ``with`` they may not."""

    __slots__ = ("are_forbidden",)

    def __init__(self) -> None:
        self.are_forbidden = False

    def __enter__(self) -> Self:
        self.are_forbidden = True
        return self

    def __exit__(self, *_: object) -> None:
        self.are_forbidden = False


class AbsentParts:
    """Goes on past reads that lack something, to name all of it at once.

    Each read is made inside ``with absent:``, and ``require_none`` comes behind the last.
    """

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[FilePart] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if not isinstance(error, NotInMemory):
            return False
        self.parts += error.parts
        return True

    def require_none(self) -> None:
        """Raises ``NotInMemory`` if some read lacked something."""
        if self.parts:
            raise NotInMemory(list(dict.fromkeys(self.parts)))


def require_present(part: FilePart | None) -> None:
    """Raises ``NotInMemory`` if there is something to bring in."""
    if part is not None:
        raise NotInMemory([part])
