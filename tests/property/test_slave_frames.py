"""A slave's log becomes its master's, however large the frames are and wherever they are cut."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrail.clock import ManualClock
from contrail.protocol.ha_frames import encode_report, encode_transfer_header
from contrail.replication.config import BrokerIdentity, HaSlaveConfig, LinkTrust
from contrail.replication.services.ha_slave import HaSlave
from contrail.wire.cluster_port import Link
from tests.fault.raw_log import cut, derived_files, master_log, open_slave

# Two segments' ends are passed; frames are as large as those of a busy master.
LOG: dict[str, Any] = {"segment_bytes": 256 << 10}


class KeptReports:
    """The slave's side of a link, without a connection."""

    is_encrypted = False
    is_this_host = True

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = ""

    def send(self, parts: list[bytes]) -> None:
        self.sent += parts

    def close(self, reason: str) -> None:
        self.closed = reason


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("master")
    (folder / "log").write_bytes(master_log(folder / "store", 1_200, **LOG))
    return folder


def fill(slave: HaSlave, link: Link, data: bytes) -> None:
    """Hand bytes to a slave as its connection does."""
    while data:
        room = slave.room(link)
        taken = min(len(room), len(data))
        room[:taken] = data[:taken]
        slave.filled(link, taken)
        data = data[taken:]


@pytest.mark.proves("replication.ground.any-chunks", "replication.pair.ha-slave")
@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.one_of(st.integers(1, 4_000), st.integers(60_000, 200_000)), max_size=20))
def test_frames_of_any_size_make_the_masters_log(master: Path, sizes: list[int]) -> None:
    log = (master / "log").read_bytes()
    with tempfile.TemporaryDirectory() as name:
        store = open_slave(Path(name), **LOG)
        config = HaSlaveConfig(
            identity=BrokerIdentity(cluster="c", broker_name="b", broker_id=1),
            trust=LinkTrust(takes_plain=True),
            is_plain=True,
        )
        slave, link, at = HaSlave(store, config, ManualClock()), KeptReports(), 0
        slave.opened(cast(Link, link))
        for piece in cut(log, sizes):
            fill(slave, cast(Link, link), encode_transfer_header(at, len(piece)) + piece)
            at += len(piece)
            store.dispatch()
        assert not link.closed and link.sent[-1] == encode_report(store.kept_end)
        assert slave.status().held_bytes == 0 and store.physical_end == len(log)
        store.close()
        assert derived_files(Path(name)) == derived_files(master / "store")
