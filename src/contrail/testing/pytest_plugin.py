"""The pytest plugin: a real broker, or a whole cluster, for one test.

pytest loads this file in every run of an environment that has Contrail installed. Until a test asks
for a fixture, it imports nothing of Contrail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from contrail.testing.cluster import LocalBroker, LocalCluster

    ClusterFactory = Callable[..., LocalCluster]

_MARKER = "contrail"
_MARKER_HELP = (
    "contrail(brokers=1, slaves=0, nameservers=1, in_children=False, properties={...}): "
    "the servers of a test's cluster"
)
# A connected client is alive, however far a test moves the clock between two of its heartbeats.
_PLUGIN_PROPERTIES = {"channelExpiredTimeout": str((1 << 31) - 1)}
_SECTION = "contrail: what the cluster holds"
_clusters_of_test = pytest.StashKey["list[LocalCluster]"]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER_HELP)


@pytest.fixture
def contrail_cluster_factory(request: pytest.FixtureRequest) -> Iterator[ClusterFactory]:
    """Starts clusters with the arguments of each call; all end with the test."""
    running = request.node.stash.setdefault(_clusters_of_test, [])
    with ExitStack() as ending:

        def start(
            *,
            brokers: int = 1,
            slaves: int = 0,
            nameservers: int = 1,
            in_children: bool = False,
            properties: Mapping[str, str] | None = None,
        ) -> LocalCluster:
            made = _make(brokers, slaves, nameservers, in_children, dict(properties or {}))
            cluster = ending.enter_context(made)
            running.append(cluster)
            return cluster

        yield start
        # A stopped cluster cannot be dumped any more.
        running.clear()


@pytest.fixture
def contrail_cluster(
    request: pytest.FixtureRequest, contrail_cluster_factory: ClusterFactory
) -> LocalCluster:
    """A cluster of its own for this test; ``@pytest.mark.contrail`` gives its arguments."""
    return contrail_cluster_factory(**_marked(request.node))


@pytest.fixture
def contrail_broker(contrail_cluster: LocalCluster) -> LocalBroker:
    """The first broker of this test's cluster, its only one unless a marker says otherwise."""
    return contrail_cluster.brokers[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a dump of its clusters to the report of a failed test."""
    report = yield
    if report.failed and report.when != "teardown":
        for cluster in item.stash.get(_clusters_of_test, []):
            report.sections.append((_SECTION, _dumped(cluster)))
    return report


def _make(
    brokers: int, slaves: int, nameservers: int, in_children: bool, properties: dict[str, str]
) -> LocalCluster:
    from contrail.testing.cluster import LocalCluster
    from contrail.testing.moved_clock import MovedClock

    return LocalCluster(
        brokers=brokers,
        slaves=slaves,
        nameservers=nameservers,
        in_children=in_children,
        clock=None if in_children else MovedClock(),
        properties=_PLUGIN_PROPERTIES | properties,
    )


def _marked(node: pytest.Item) -> dict[str, object]:
    """The arguments of all markers; the nearer marker is the stronger."""
    options: dict[str, object] = {}
    for marker in reversed(list(node.iter_markers(_MARKER))):
        if marker.args:
            raise pytest.UsageError(f"@pytest.mark.contrail takes names only: {_MARKER_HELP}")
        options |= marker.kwargs
    return options


def _dumped(cluster: LocalCluster) -> str:
    from contrail.testing.message_dump import dump

    try:
        return dump(cluster)
    except Exception as error:
        # The test's failure matters more than a failure of the dump.
        return f"it cannot be told: {error!r}"
