"""A log fed in pieces cut anywhere becomes the master's: log, queues and index byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from tests.fault.raw_log import cut, derived_files, feed, master_log, open_slave
from tests.fault.store_setup import small_config


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("master")
    (folder / "log").write_bytes(master_log(folder / "store", 90))
    return folder


@pytest.mark.proves("replication.ground.any-chunks")
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9000), max_size=60),
    restarts=st.sets(st.integers(0, 59), max_size=3),
    flush=st.sampled_from(list(FlushDiskType)),
)
def test_a_log_cut_anywhere_becomes_the_masters(
    master: Path, sizes: list[int], restarts: set[int], flush: FlushDiskType
) -> None:
    log = (master / "log").read_bytes()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slave = open_slave(folder, flush_disk_type=flush)
        held = bytearray()
        for number, piece in enumerate(cut(log, sizes)):
            held += piece
            del held[: slave.append_raw(slave.physical_end, held)]
            slave.dispatch()
            if number in restarts:
                # A slave that restarts asks for the rest of its last record again.
                slave.close()
                slave = open_slave(folder, flush_disk_type=flush)
        assert not held and slave.physical_end == len(log)
        slave.close()
        assert derived_files(folder) == derived_files(master / "store")


def test_the_comparison_notices_a_row_too_few(master: Path, tmp_path: Path) -> None:
    log = (master / "log").read_bytes()
    with open_slave(tmp_path) as slave:
        feed(slave, log, [log[: len(log) // 2]])
    assert derived_files(tmp_path) != derived_files(master / "store")
    with MessageStore.open(small_config(tmp_path)) as reopened:
        assert reopened.physical_end < len(log)
