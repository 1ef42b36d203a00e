"""Each cluster is started once for all scenarios; each scenario gets names of its own.

Every scenario runs on ours and on Apache's newest. On 4.9, ``make test`` runs the first scenario of
each file, and ``make test-all`` all of them.
"""

from __future__ import annotations

import itertools
import re
from contextlib import ExitStack

import pytest

from tests.interop.scenarios.clusters import KINDS, OLD, RunningCluster, open_cluster
from tests.interop.scenarios.scene import Scene

_NAME_CHARACTERS = 40
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set()
    for item in items:
        if _is_scenario(item) and _kind_of(item) == OLD:
            if item.path in seen:
                item.add_marker(pytest.mark.matrix)
            seen.add(item.path)


def _is_scenario(item: pytest.Item) -> bool:
    return "interop/scenarios" in item.path.as_posix()


def _kind_of(item: pytest.Item) -> object:
    call = getattr(item, "callspec", None)
    return call.params.get("cluster") if call else None


class _Clusters:
    """A cluster of each kind, started when it is first needed."""

    def __init__(self) -> None:
        self._started: dict[str, RunningCluster] = {}
        self._stack = ExitStack()

    def of(self, kind: str, folders: pytest.TempPathFactory) -> RunningCluster:
        if kind not in self._started:
            opened = open_cluster(kind, folders.mktemp(kind))
            self._started[kind] = self._stack.enter_context(opened)
        return self._started[kind]

    def stop(self) -> None:
        self._started.clear()
        self._stack.close()


_clusters = _Clusters()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop all clusters with the last scenario: even idle, Apache's brokers cost something."""
    if nextitem is None or not _is_scenario(nextitem):
        _clusters.stop()


@pytest.fixture(scope="module", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> RunningCluster:
    return _clusters.of(request.param, tmp_path_factory)


@pytest.fixture
def scene(cluster: RunningCluster, request: pytest.FixtureRequest) -> Scene:
    name = re.sub(r"\W+", "_", request.node.originalname.removeprefix("test_"))
    return Scene(cluster, f"{next(_numbers)}_{name[:_NAME_CHARACTERS]}")
