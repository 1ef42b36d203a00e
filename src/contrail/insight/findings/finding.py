"""A finding: the problem, its evidence, its cause, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Errors first, in the order in which findings are told."""

    # Something does not work now.
    ERROR = "error"
    # It works, but not for all, or not for long.
    WARNING = "warning"
    # Possibly intended; worth knowing.
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. ``fix`` is a whole command line."""

    id: str
    severity: Severity
    about: str
    text: str
    cause: str
    fix: str
    evidence: tuple[str, ...] = ()


def few(names: list[str], most: int = 5) -> str:
    """Names for a sentence: all of them, or the first and how many more there are."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"
