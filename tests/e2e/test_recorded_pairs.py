"""A master and a slave go on in the folders that an earlier commit wrote for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from contrail.testing import LocalBroker, LocalCluster, MovedClock, eventually
from tests.e2e.raw_client import RawClient
from tests.e2e.recorded_pairs import (
    ARCHIVES,
    COMMITTED,
    DELAYED,
    PROPERTIES,
    TOPICS,
    bodies,
    committed,
    pulled,
    send,
    unpack,
)

# No answer waits for a slave: a jump of the clock may cut the link for a moment.
ALONE = {**PROPERTIES, "brokerRole": "ASYNC_MASTER"}


def log_of(broker: LocalBroker) -> bytes:
    files = sorted((broker.folder / "store" / "commitlog").iterdir())
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def assert_serves(broker: LocalBroker, *expected: list[str]) -> None:
    """Each topic has these messages, in time, and the group its progress."""
    for topic, found in zip(TOPICS, expected, strict=True):
        asked = partial(pulled, broker, topic)
        eventually(partial(_is, asked, found), partial(_end_of, asked))
    assert committed(broker) == COMMITTED


def _is(asked: Callable[[], list[str]], expected: list[str]) -> bool:
    return asked() == expected


def _end_of(asked: Callable[[], list[str]]) -> list[str]:
    return asked()[-3:]


@pytest.mark.proves("replication.shown.recorded-folders")
@pytest.mark.parametrize("archive", sorted(ARCHIVES.iterdir()), ids=lambda path: path.name)
def test_a_pair_goes_on_in_the_folders_of_an_earlier_commit(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path)
    clock = MovedClock()
    with LocalCluster(slaves=1, folder=tmp_path, properties=ALONE, clock=clock) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        cluster.wait_for_slaves()
        cluster.advance(hours=3)
        with RawClient(master.port) as client:
            send(client, TOPICS[1], "of today")
        for broker in (master, slave):
            later = [*bodies(TOPICS[0]), DELAYED], [*bodies(TOPICS[1]), "of today"]
            assert_serves(broker, *later)
        cluster.wait_for_slaves()
        assert log_of(master) == log_of(slave)


@pytest.mark.proves("replication.shown.recorded-folders")
@pytest.mark.parametrize("archive", sorted(ARCHIVES.iterdir()), ids=lambda path: path.name)
def test_a_slave_of_an_earlier_commit_is_promoted_by_hand(archive: Path, tmp_path: Path) -> None:
    unpack(archive, tmp_path)
    (tmp_path / "broker-a").rename(tmp_path / "lost")
    (tmp_path / "broker-a-1").rename(tmp_path / "broker-a")
    with LocalCluster(folder=tmp_path, properties=ALONE, clock=MovedClock()) as cluster:
        cluster.advance(hours=3)
        assert_serves(cluster.brokers[0], [*bodies(TOPICS[0]), DELAYED], bodies(TOPICS[1]))
