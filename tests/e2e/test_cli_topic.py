"""``contrail topic`` against a running cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from contrail.testing import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as running:
        yield running


def contrail(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "contrail.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_topic_is_created_listed_and_found(cluster: LocalCluster) -> None:
    created = contrail("topic", "create", "orders", "--queues", "3", "-n", cluster.namesrv)
    assert created.returncode == 0, created.stderr
    assert "3 queues on broker-a, broker-b" in created.stdout
    assert "orders" in contrail("topic", "list", "-n", cluster.namesrv).stdout.split()
    route = contrail("topic", "route", "orders", "-n", cluster.namesrv).stdout
    assert "broker-a" in route and "broker-b" in route and "read and written" in route


def test_internal_topics_are_listed_when_asked_for(cluster: LocalCluster) -> None:
    assert "TBW102" not in contrail("topic", "list", "-n", cluster.namesrv).stdout.split()
    listed = contrail("topic", "list", "--internal", "-n", cluster.namesrv).stdout.split()
    assert "TBW102" in listed


@pytest.mark.proves("client.shared.errors")
def test_a_topic_that_is_not_there_says_how_to_make_it(cluster: LocalCluster) -> None:
    asked = contrail("topic", "route", "nowhere", "-n", cluster.namesrv)
    assert asked.returncode == 5
    assert "contrail topic create nowhere" in asked.stderr


def test_a_cluster_that_is_not_there_is_one_line() -> None:
    asked = contrail("topic", "list", "-n", "127.0.0.1:1")
    assert asked.returncode == 4
    assert asked.stderr.startswith("contrail: no NameServer answered: 127.0.0.1:1")
    assert "Traceback" not in asked.stderr
