"""Each cluster is started once for all scenarios; each scenario gets names of its own.

Every scenario runs on ours and on Apache's newest. On 4.9, ``make test`` runs the first scenario of
each file, and ``make test-all`` all of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.interop.scenarios.clusters import KINDS, OLD, RunningCluster, open_cluster
from tests.interop.scenarios.scene import Scene

_NAME_CHARACTERS = 40
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set()
    for item in items:
        if "interop/scenarios" in item.path.as_posix() and _kind_of(item) == OLD:
            if item.path in seen:
                item.add_marker(pytest.mark.matrix)
            seen.add(item.path)


def _kind_of(item: pytest.Item) -> object:
    call = getattr(item, "callspec", None)
    return call.params.get("cluster") if call else None


@pytest.fixture(scope="package")
def clusters(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], RunningCluster]]:
    """A cluster of each kind, started when it is first needed and stopped with the last scenario.

    Not later: brokers of Apache that have nothing to do take half a core.
    """
    started: dict[str, RunningCluster] = {}
    with ExitStack() as stack:

        def cluster_of(kind: str) -> RunningCluster:
            if kind not in started:
                opened = open_cluster(kind, tmp_path_factory.mktemp(kind))
                started[kind] = stack.enter_context(opened)
            return started[kind]

        yield cluster_of


@pytest.fixture(scope="package", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, clusters: Callable[[str], RunningCluster]
) -> RunningCluster:
    return clusters(request.param)


@pytest.fixture
def scene(cluster: RunningCluster, request: pytest.FixtureRequest) -> Scene:
    name = re.sub(r"\W+", "_", request.node.originalname.removeprefix("test_"))
    return Scene(cluster, f"{next(_numbers)}_{name[:_NAME_CHARACTERS]}")
