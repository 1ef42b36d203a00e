"""Reads that must not wait for the disk raise ``NotInMemory`` with the parts they lack.

Requests on the event loop's thread read inside ``with waits:``. A read that needs bytes that are
not in memory ends there and names them; another thread brings them in, and the request is carried
out again from its beginning. Such a request must therefore do all its reads before its first
change.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from contrail.runtime.files import FilePart


class NotInMemory(BaseException):
    """A read needs bytes that are on the disk only: bring in ``parts``, and read again.

    A ``BaseException``, so that no ``except Exception`` on its way catches it.
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
    """Collects the missing parts of several reads, so that one error names all of them.

    Each read is made inside ``with absent:``; call ``require_none`` after the last.
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
        """Raises ``NotInMemory`` if a read lacked parts."""
        if self.parts:
            raise NotInMemory(list(dict.fromkeys(self.parts)))


def require_present(part: FilePart | None) -> None:
    """Raises ``NotInMemory`` if ``part`` is to be brought in."""
    if part is not None:
        raise NotInMemory([part])
