"""One cluster for all clients, and a driver for each process that a test starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.clients.driver import Driver
from tests.interop.clients.kinds import Kinds, open_kinds
from tests.interop.clients.parties import JavaParty, Party, ProcessParty
from tests.interop.clients.registry import DRIVERS
from tests.interop.clients.session import PINS, JavaSession
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


@pytest.fixture(scope="package")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinds]:
    """The cluster of all tests of the message kinds; its clock is moved."""
    with open_kinds(tmp_path_factory.mktemp("kinds")) as started:
        yield started


@pytest.fixture(scope="package")
def sessions(
    kinds: Kinds, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], JavaSession]]:
    """One process per version of the Java client, started when it is first needed."""
    homes = tmp_path_factory.mktemp("sessions")
    started: dict[str, JavaSession] = {}
    with ExitStack() as stack:

        def session_of(client: str) -> JavaSession:
            if client not in started:
                one = JavaSession(client, kinds.namesrv, homes / client)
                started[client] = stack.enter_context(one)
            return started[client]

        yield session_of


@pytest.fixture
def client_name(request: pytest.FixtureRequest, client: Driver) -> str:
    """The key of the client that the test is run for."""
    return str(request.node.callspec.params["client"])


@pytest.fixture
def session(client_name: str, sessions: Callable[[str], JavaSession]) -> JavaSession:
    """The process of the Java client that the test is run for."""
    return sessions(client_name)


@pytest.fixture
def party(
    client_name: str,
    client: Driver,
    kinds: Kinds,
    sessions: Callable[[str], JavaSession],
    topic: str,
) -> Party:
    """The client that the test is run for, whichever it is."""
    if client_name in PINS:
        return JavaParty(sessions(client_name), topic)
    return ProcessParty(client, kinds)
