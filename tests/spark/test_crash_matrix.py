"""Driver, executor or broker is killed in a read, a write or a commit, and the copy is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.testing import LocalCluster
from tests.seeds import seeds_asked_for
from tests.spark.crash_matrix import (
    MODES,
    MOMENTS,
    SEVERAL_PROCESSES,
    VICTIMS,
    Cell,
    SparkChildren,
    run_cell,
)

# The driver that takes over from one that was killed serves the next cell too.
CORE = [
    Cell("driver", "write", "dedupe"),
    Cell("driver", "commit", "transactional", restart_on=SEVERAL_PROCESSES),
    Cell("executor", "write", "dedupe"),
    Cell("broker", "commit", "transactional"),
    Cell("broker", "read", "dedupe"),
]
# A seed draws when exactly it happens. The first goes through every cell; more are for long nights.
SEEDS = seeds_asked_for(range(int(os.environ.get("CONTRAIL_CRASH_SEEDS", "1"))))
ALL = [
    Cell(victim, moment, mode, seed)
    for victim in VICTIMS
    for moment in MOMENTS
    for mode in MODES
    for seed in SEEDS
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers, one of them the coordinator; both can be killed."""
    with LocalCluster(brokers=2, in_children=True) as running:
        yield running


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkChildren]:
    running = SparkChildren(tmp_path_factory.mktemp("drivers"))
    yield running
    running.end()


@pytest.mark.proves("spark.sink.sharding-keys", "spark.shown.crash-matrix")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cell", CORE, ids=str)
def test_a_crash_leaves_the_copy_whole(
    cell: Cell, cluster: LocalCluster, children: SparkChildren, tmp_path: Path
) -> None:
    run_cell(cell, cluster, children, tmp_path)


@pytest.mark.proves("spark.shown.crash-matrix")
@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cell", ALL, ids=str)
def test_any_crash_leaves_the_copy_whole(
    cell: Cell, cluster: LocalCluster, children: SparkChildren, tmp_path: Path
) -> None:
    run_cell(cell, cluster, children, tmp_path)
