"""Apache's ``mqadmin haStatus`` reads our master and our slave."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interop.mqadmin import MqAdmin
from tests.interop.replication.replicas import OURS, Replicas
from tests.interop.replication.story import sending

MESSAGE_COUNT = 50


async def send(replicas: Replicas) -> None:
    async with sending(replicas, seed=1) as sender:
        await sender.send(MESSAGE_COUNT)


def headings(printed: str) -> dict[str, str]:
    """The lines that name one value: its heading and the value."""
    lines = (line.split("\t") for line in printed.splitlines() if line.startswith("#"))
    return {words[0]: words[1] for words in lines if len(words) == 2}


@pytest.mark.proves("replication.pair.people")
def test_ha_status_tells_of_our_master_and_of_our_slave(tmp_path: Path) -> None:
    with Replicas(OURS, [OURS], tmp_path) as replicas:
        asyncio.run(send(replicas))
        # Timers and delayed messages are delivered by then, and no byte follows.
        with MqAdmin(replicas.namesrv, tmp_path / "mqadmin") as mqadmin:
            end = replicas.wait_until_equal("after all messages")
            at_master = mqadmin.run("haStatus", "-b", replicas.master.address)
            at_slave = mqadmin.run("haStatus", "-b", replicas.slaves[0].address)
            of_cluster = mqadmin.run("haStatus", "-c", "DefaultCluster")
    told = headings(at_master)
    assert told["#MasterAddr"] == replicas.master.address
    assert (told["#SlaveNum"], told["#InSyncSlaveNum"]) == ("1", "1")
    assert int(told["#MasterCommitLogMaxOffset"]) >= end
    (row,) = [line.split() for line in at_master.splitlines() if " OK " in line]
    address, acknowledged_end, behind = row[:3]
    assert address.startswith("127.0.0.1:")
    assert int(acknowledged_end) + int(behind) >= end
    assert headings(at_slave)["#MasterAddr"] == replicas.master.ha_address
    assert int(headings(at_slave)["#CommitLogMaxOffset"]) >= end
    assert headings(of_cluster)["#MasterAddr"] == replicas.master.address
