"""Slices of queues read as raw records from Apache's own broker: the same scenes as from ours."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from contrail.client.raw_pulls import IDLE_CONNECTIONS
from tests.e2e.raw_pull_scenes import SCENES, Scene, make_queue, of, offsets
from tests.interop.apache_cluster import ApacheCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[ApacheCluster]:
    with ApacheCluster(brokers=1) as running:
        yield running


@pytest.fixture(autouse=True)
def no_idle_connections() -> Iterator[None]:
    yield
    IDLE_CONNECTIONS.close()


@pytest.mark.proves("spark.shown.apache")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_slice_is_read(cluster: ApacheCluster, scene: Scene) -> None:
    scene(cluster.namesrv)


def test_a_broker_that_is_killed_and_started_again_is_read_on(cluster: ApacheCluster) -> None:
    queue = make_queue(cluster.namesrv, "killed")
    queue.fill(1_000, body_bytes=16_000)
    chunks = queue.chunks(0, 1_000, timeout_ms="30000")
    found = of(next(chunks))
    broker = cluster.brokers[0]
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        for chunk in chunks:
            found += of(chunk)
    finally:
        starting.join()
    assert offsets(found) == list(range(1_000))
