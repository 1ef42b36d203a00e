"""The cluster that clients are tested against: ours, or the original's with the same names.

``CONTRAIL_INTEROP_TARGET=apache`` chooses the original. A test that fails there is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast


class Broker(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Cluster(Protocol):
    @property
    def namesrv(self) -> str: ...
    @property
    def brokers(self) -> Sequence[Broker]: ...


def two_brokers(folder: Path) -> AbstractContextManager[Cluster]:
    """A NameServer and two brokers, each a process of its own, started by ``with``."""
    cluster: Any
    if os.environ.get("CONTRAIL_INTEROP_TARGET") == "apache":
        from tests.interop.apache_cluster import ApacheCluster

        cluster = ApacheCluster(brokers=2, folder=folder)
    else:
        from contrail.testing import LocalCluster
        from tests.interop.ways import general_at_last

        cluster = general_at_last(LocalCluster(brokers=2, in_children=True, folder=folder))
    return cast("AbstractContextManager[Cluster]", cluster)
