"""The client instances of this process: one per event loop and cluster, shared and counted."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakKeyDictionary

from contrail.client.instance import ClientInstance
from contrail.client.settings import ClientSettings

_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[ClientSettings, ClientInstance]] = (
    WeakKeyDictionary()
)


def _forget_all() -> None:
    """A child of a fork shares sockets with its parent: it must not use what it inherited."""
    for instances in list(_by_loop.values()):
        for instance in instances.values():
            instance.is_closed = True
    _by_loop.clear()


os.register_at_fork(after_in_child=_forget_all)


def join(settings: ClientSettings) -> ClientInstance:
    """The running loop's instance for a cluster, made if there is none; ``leave`` when done."""
    instances = _by_loop.setdefault(asyncio.get_running_loop(), {})
    instance = instances.get(settings)
    if instance is None or instance.is_closed:
        instance = instances[settings] = ClientInstance(settings)
        instance.start()
    instance.user_count += 1
    return instance


async def leave(instance: ClientInstance) -> None:
    """Stop using an instance; the last one closes it."""
    instance.user_count -= 1
    if instance.user_count == 0:
        instances = _by_loop.get(asyncio.get_running_loop(), {})
        if instances.get(instance.settings) is instance:
            del instances[instance.settings]
        await instance.close()
