"""Requests as values: their bytes, server, connection and purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

NAMESRV = "namesrv"
BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Reference:
    """A value known only when running: a field of the answer to the request with that label."""

    label: str
    name: str
    # The value to send in place of the field: itself, or the physical offset inside a message id.
    # The name ``record`` stands for the first record of a pull, and its physical offset.
    physical: bool = False
    # Points beside the message: only with ``physical``.
    beside: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A text with ``{at}`` for a time that is known only when running, in ms from then."""

    text: str
    after_ms: int
    # As a recall handle is: in base 64 as a whole.
    encoded: bool = False


FieldValue = str | int | bool | None | Reference | Moment
Body = bytes | Callable[["Facts"], bytes]


@dataclass(frozen=True, slots=True)
class Facts:
    """Values that differ between the two clusters and may stand in a request."""

    broker_address: str
    broker_name: str
    cluster_name: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the differential run."""

    target: str
    code: int
    fields: Mapping[str, FieldValue] | None = None
    body: Body = b""
    what: str = "valid"
    header: Mapping[str, Any] = field(default_factory=dict)
    connection: str = "main"
    one_way: bool = False
    binary: bool = False
    label: str | None = None
    # Repeated until it succeeds: the server needs a moment to get there.
    awaited: bool = False
    # No answer is expected, and not much time is spent on waiting for one.
    unanswered: bool = False

    def __str__(self) -> str:
        named = {key: _short(value) for key, value in (self.fields or {}).items()}
        body = self.body if isinstance(self.body, bytes) else b"<made>"
        extra = f" header={dict(self.header)}" if self.header else ""
        extra += " binary" * self.binary + " one-way" * self.one_way
        return (
            f"{self.target} {self.code} ({self.what}) {named}"
            f"{f' body={body[:300]!r}' if body else ''}{extra}"
        )


def _short(value: FieldValue) -> FieldValue:
    return (
        f"{value[:40]}... ({len(value)})" if isinstance(value, str) and len(value) > 80 else value
    )
