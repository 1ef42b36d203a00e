"""Joining a group and leaving it: the life of a consumer that a program asks for messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from contrail.client import instances
from contrail.client.instance import ClientInstance, require_same_process
from contrail.client.settings import ClientSettings
from contrail.errors import ClientClosed


class Member(Protocol):
    """A consumer at work in its group."""

    @property
    def instance(self) -> ClientInstance: ...

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


M = TypeVar("M", bound=Member)


async def join_group(settings: ClientSettings, make: Callable[[ClientInstance], M]) -> M:
    """Start a member on the client instance that the process shares.

    Raises:
        GroupTaken: the process already consumes for the group.
    """
    instance = instances.join(settings)
    try:
        member = make(instance)
        await member.start()
    except BaseException:
        await instances.leave(instance)
        raise
    return member


async def leave_group(member: Member) -> None:
    try:
        await member.stop()
    finally:
        await instances.leave(member.instance)


def require_running(member: M | None, process_id: int, consumer: str) -> M:
    """The member; ``consumer`` names its consumer in errors.

    Raises:
        ClientClosed: there is none, or another process has it.
    """
    require_same_process(process_id, consumer)
    if member is None:
        raise ClientClosed(
            f"{consumer} is not running: use it inside its `with` block, or between start() and "
            "close()"
        )
    return member
