"""The client instances of this process: one per event loop and cluster, shared and counted."""

from __future__ import annotations

import asyncio
import os
import select

from contrail.client.instance import ClientInstance
from contrail.client.settings import ClientSettings

_by_loop: dict[asyncio.AbstractEventLoop, dict[ClientSettings, ClientInstance]] = {}


def join(settings: ClientSettings) -> ClientInstance:
    """The running loop's instance for a cluster, made if there is none; ``leave`` when done."""
    _forget_closed_loops()
    instances = _by_loop.setdefault(asyncio.get_running_loop(), {})
    instance = instances.get(settings)
    if instance is None or instance.is_closed:
        instance = instances[settings] = ClientInstance(settings)
        instance.start()
    instance.user_count += 1
    return instance


async def leave(instance: ClientInstance) -> None:
    """Stop using an instance; its last user closes it.

    Raises:
        ClientError: it belongs to another event loop.
    """
    if instance.is_inherited:
        return
    instance.require_own_loop()
    instance.user_count -= 1
    if instance.user_count == 0:
        instances = _by_loop.get(instance.loop, {})
        if instances.get(instance.settings) is instance:
            del instances[instance.settings]
        if not instances:
            _by_loop.pop(instance.loop, None)
        await instance.close()


def _forget_closed_loops() -> None:
    """Programs that run ``asyncio.run`` for every call may forget to close their clients."""
    for loop in [loop for loop in _by_loop if loop.is_closed()]:
        for instance in _by_loop.pop(loop).values():
            instance.is_closed = True


# Forks.


def _part_from_parent() -> None:
    """A child of a fork must not use inherited sockets, nor disturb its parent by closing them.

    It shares the parent's sockets, and the epoll table of the parent's loops: closing a socket here
    would remove it from the parent's table. The child therefore puts other files under their
    numbers.
    """
    inherited = list(_by_loop.items())
    _by_loop.clear()
    for loop, instances in inherited:
        _replace_listening(loop)
        for instance in instances.values():
            instance.is_closed = True
            for socket_number in instance.caller.socket_numbers():
                _replace_by_nothing(socket_number)
    # Never freed here: Python would complain of loops and sockets that were not closed.
    _inherited.extend(inherited)


_inherited: list[object] = []


def _replace_listening(loop: asyncio.AbstractEventLoop) -> None:
    number = _listening_number(loop)
    if number is not None and hasattr(select, "epoll"):
        with select.epoll() as nobodys:
            os.dup2(nobodys.fileno(), number, inheritable=False)


def _listening_number(loop: asyncio.AbstractEventLoop) -> int | None:
    """The file by which a loop listens; neither asyncio nor uvloop has a public name for it."""
    selector = getattr(loop, "_selector", None)
    find = getattr(selector, "fileno", None) or getattr(loop, "_get_backend_id", None)
    return int(find()) if find is not None and not loop.is_closed() else None


def _replace_by_nothing(number: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, number, inheritable=False)
    finally:
        os.close(nothing)


os.register_at_fork(after_in_child=_part_from_parent)
