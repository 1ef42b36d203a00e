"""The servers that the interop tests run against: ours, or Apache's to check the tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tests.interop.apache_cluster import ApacheCluster

TARGET = os.environ.get("CONTRAIL_INTEROP_TARGET", "contrail")


class Broker(Protocol):
    """One broker of a cluster."""

    name: str
    address: str


class Cluster(Protocol):
    """A NameServer list and the brokers registered there."""

    @property
    def namesrv(self) -> str: ...

    @property
    def brokers(self) -> Sequence[Broker]: ...


def open_cluster(
    folder: Path, *, brokers: int = 2, properties: Mapping[str, str] | None = None
) -> AbstractContextManager[Cluster]:
    """A cluster of the chosen kind; it runs inside the ``with``."""
    if TARGET == "apache":
        return ApacheCluster(brokers=brokers, folder=folder, properties=properties)
    return open_contrail(folder, brokers=brokers, properties=properties)


def open_contrail(
    folder: Path, *, brokers: int = 2, properties: Mapping[str, str] | None = None
) -> AbstractContextManager[Cluster]:
    """Our own servers as processes; SQL92 filters are on, as in Apache's cluster."""
    from contrail.testing import LocalCluster
    from tests.interop.ways import general_at_last

    settings = {"enablePropertyFilter": "true"} | dict(properties or {})
    cluster = LocalCluster(brokers=brokers, folder=folder, in_children=True, properties=settings)
    return general_at_last(cluster)
