"""Each cluster is started once for all scenarios; each scenario gets names of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.interop.scenarios.clusters import KINDS, RunningCluster, open_cluster
from tests.interop.scenarios.scene import Scene

_NAME_CHARACTERS = 40
_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=KINDS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    with open_cluster(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def scene(cluster: RunningCluster, request: pytest.FixtureRequest) -> Scene:
    name = re.sub(r"\W+", "_", request.node.originalname.removeprefix("test_"))
    return Scene(cluster, f"{next(_numbers)}_{name[:_NAME_CHARACTERS]}")
