"""Our master with slaves of Apache's, our slaves under masters of Apache's, and ours with ours.

All live through the story that ``test_oracle`` tells of Apache's own brokers. Then logs and consume
queues are equal byte for byte, every key is found, offsets and timers are the same, and the other
implementation opens the slave's folder.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interop.replication.agreeing import agree
from tests.interop.replication.opening import open_elsewhere
from tests.interop.replication.replicas import APACHE_4, APACHE_5, OURS, Replicas
from tests.interop.replication.story import (
    QUICK_HOUSEKEEPING,
    faults_of_brokers,
    faults_of_links,
    live,
)

QUICK_COUNT, WHOLE_COUNT = 2_000, 20_000
SEED = 20_261_118


def live_and_agree(master: str, slaves: list[str], folder: Path, *, whole: bool = False) -> None:
    with Replicas(master, slaves, folder, properties=QUICK_HOUSEKEEPING) as replicas:
        faults = list(faults_of_brokers(replicas))
        if replicas.network is not None:
            faults += faults_of_links(replicas)
        # Twice over for many messages: the second round comes upon a long log.
        count = WHOLE_COUNT if whole else QUICK_COUNT
        sent = asyncio.run(live(replicas, count, faults * (1 + whole), seed=SEED))
        # A slave of 5.x takes its master's tables after a minute only.
        agreements = agree(replicas, sent, tables=whole or APACHE_5 not in replicas.kinds[1:])
        open_elsewhere(replicas, folder)
    for found in agreements:
        assert found.record_count > count
        assert found.segment_count > count // 400


@pytest.mark.proves(
    "replication.shown.slave-5",
    "replication.shown.links",
    "replication.pair.tables",
    "replication.pair.welcome",
)
def test_our_slave_agrees_with_a_master_of_5(tmp_path: Path) -> None:
    live_and_agree(APACHE_5, [OURS], tmp_path)


@pytest.mark.proves("replication.shown.slave-4", "replication.shown.links")
def test_our_slave_agrees_with_a_master_of_4_9(tmp_path: Path) -> None:
    live_and_agree(APACHE_4, [OURS], tmp_path)


@pytest.mark.proves(
    "replication.shown.master-5", "replication.shown.master-4", "replication.shown.links"
)
def test_slaves_of_5_and_4_9_agree_with_our_master(tmp_path: Path) -> None:
    live_and_agree(OURS, [APACHE_5, APACHE_4], tmp_path)


@pytest.mark.proves("replication.shown.processes")
def test_our_slave_agrees_with_our_master(tmp_path: Path) -> None:
    live_and_agree(OURS, [OURS], tmp_path)


@pytest.mark.matrix
@pytest.mark.proves("replication.shown.slave-5", "replication.shown.slave-4")
@pytest.mark.parametrize("master", [APACHE_5, APACHE_4])
def test_our_slaves_agree_after_20000_messages(tmp_path: Path, master: str) -> None:
    live_and_agree(master, [OURS], tmp_path, whole=True)


@pytest.mark.matrix
@pytest.mark.proves(
    "replication.shown.master-5", "replication.shown.master-4", "replication.shown.processes"
)
@pytest.mark.parametrize("slave", [APACHE_5, APACHE_4, OURS])
def test_our_master_agrees_after_20000_messages(tmp_path: Path, slave: str) -> None:
    live_and_agree(OURS, [slave], tmp_path, whole=True)
