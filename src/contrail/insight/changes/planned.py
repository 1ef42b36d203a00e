"""The shape of a change: planned from facts that are asked now, run only while they still hold."""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from contrail.client.admin import Admin
from contrail.client.message import Message, SendReceipt
from contrail.errors import ClientError

T = TypeVar("T")

DONE = "done"
FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan in words. Equal facts make equal plans: a plan that differs later has lost its facts.

    ``command`` is the same change at the command line; None where no command does it.
    """

    title: str
    steps: list[str]
    warnings: list[str] = field(default_factory=list)
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one part of a change: ``done`` or ``failed``, with the reason."""

    target: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Hands:
    """The means of changes: the admin client, and a producer that sends one message."""

    admin: Admin
    send: Callable[[Message], Awaitable[SendReceipt]]


class Change(ABC):
    """One change. ``action`` and ``target`` are what an audit log notes of it."""

    action: str

    @property
    @abstractmethod
    def target(self) -> str: ...

    @abstractmethod
    async def plan(self, admin: Admin) -> Planned:
        """Raises ``ClientError`` for a change that cannot be made; nothing is changed by it."""

    @abstractmethod
    async def run(self, hands: Hands) -> list[Outcome]:
        """Make the change; a part that fails has its outcome and does not raise."""


async def tried(target: str, work: Awaitable[object], detail: str = "") -> Outcome:
    """The outcome of a part of a change."""
    try:
        await work
    except ClientError as error:
        return Outcome(target, FAILED, str(error))
    return Outcome(target, DONE, detail)


def command(words: Iterable[str | None]) -> str:
    """A line of the command line; words that are None are left out."""
    return shlex.join(["contrail", *(word for word in words if word is not None)])


def option(name: str, value: object | None) -> list[str]:
    """``--name value``, or nothing for None."""
    return [] if value is None else [name, str(value)]


def flag(name: str, value: bool | None) -> list[str]:
    """``--name`` or ``--no-name``, or nothing for None."""
    return [] if value is None else [f"--{name}" if value else f"--no-{name}"]
