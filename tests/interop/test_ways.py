"""The clusters of the interop suites take both ways, unless they are told which one."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode
from contrail.testing import LocalCluster
from contrail.testing.cluster import FAST_PATH_VARIABLE
from tests.interop import ways
from tests.interop.clients.topics import create_topic
from tests.interop.ways import FAST_PATH, general_at_last


def chosen(cluster: LocalCluster) -> list[str]:
    return [broker.properties()[FAST_PATH] for broker in cluster.brokers]


@pytest.mark.parametrize(
    ("way", "brokers", "found"),
    [
        (None, 2, ["on", "off"]),
        (None, 3, ["on", "on", "off"]),
        (None, 1, ["on"]),
        ("on", 2, ["on", "on"]),
        ("off", 2, ["off", "off"]),
    ],
)
def test_the_last_of_several_brokers_leaves_the_fast_path_off(
    way: str | None,
    brokers: int,
    found: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "WAY_OF_ALL", way)
    monkeypatch.delenv(FAST_PATH_VARIABLE, raising=False)
    if way is not None:
        monkeypatch.setenv(FAST_PATH_VARIABLE, way)
    assert chosen(general_at_last(LocalCluster(brokers=brokers, folder=tmp_path))) == found


@pytest.mark.proves("broker.fast.both-ways-interop")
def test_each_broker_says_which_way_it_takes(tmp_path: Path) -> None:
    with general_at_last(LocalCluster(brokers=2, folder=tmp_path)) as cluster:
        create_topic(cluster, "both-ways")
        for broker, way in zip(cluster.brokers, chosen(cluster), strict=True):
            answer = cluster.caller.call(broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)
            assert f'"{FAST_PATH}":"{way}"' in answer.body.decode()
