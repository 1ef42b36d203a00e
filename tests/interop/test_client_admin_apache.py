"""The admin client against Apache's own servers: the same parts as against ours."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.e2e.admin_scenario import PARTS, Part, Place
from tests.interop.apache_cluster import ApacheCluster

_PEERS = {"apache-5-server": 2, "apache-4-server": 1}


@pytest.fixture(scope="module", params=_PEERS, ids=list(_PEERS))
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    peer: str = request.param
    with ApacheCluster(peer=peer, brokers=_PEERS[peer]) as cluster:
        yield Place(cluster.namesrv, is_old=peer == "apache-4-server")


@pytest.mark.proves("client.programs.admin", "broker.system-names.paged-reads")
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_an_operator_sees_the_cluster(place: Place, part: Part) -> None:
    asyncio.run(part(place, f"w{PARTS.index(part)}"))
