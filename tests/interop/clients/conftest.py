"""One cluster for all clients, and a driver for each process that a test starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.clients.driver import Driver
from tests.interop.clients.registry import DRIVERS
from tests.interop.clients.target import Cluster, two_brokers


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with two_brokers(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, whose brokers it may stop."""
    with two_brokers(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    """The driver of the client that the test is run for."""
    return DRIVERS[request.param](tmp_path / "client")


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test of the cluster uses."""
    return re.sub(r"\W+", "_", request.node.name).strip("_")
