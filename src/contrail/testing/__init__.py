"""A real cluster for tests: NameServers and brokers on free loopback ports, and a way to wait.

The names are resolved on first use: pytest loads the plugin in this room for every run, also for
runs that never start a broker.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrail.testing.caller import BlockingCaller as BlockingCaller
    from contrail.testing.cluster import LocalBroker as LocalBroker
    from contrail.testing.cluster import LocalCluster as LocalCluster
    from contrail.testing.cluster import LocalNameServer as LocalNameServer
    from contrail.testing.moved_clock import MovedClock as MovedClock
    from contrail.testing.waiting import eventually as eventually
    from contrail.testing.waiting import eventually_async as eventually_async

# public name -> the module that defines it
_PUBLIC = {
    "BlockingCaller": "contrail.testing.caller",
    "LocalBroker": "contrail.testing.cluster",
    "LocalCluster": "contrail.testing.cluster",
    "LocalNameServer": "contrail.testing.cluster",
    "MovedClock": "contrail.testing.moved_clock",
    "eventually": "contrail.testing.waiting",
    "eventually_async": "contrail.testing.waiting",
}

__all__ = [
    "BlockingCaller",
    "LocalBroker",
    "LocalCluster",
    "LocalNameServer",
    "MovedClock",
    "eventually",
    "eventually_async",
]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'contrail.testing' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
