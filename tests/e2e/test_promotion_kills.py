"""A slave that is killed while it starts as the new master: the next start finds everything."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import ManualClock
from contrail.testing import LocalCluster, eventually
from contrail.testing.faulty_broker import CuttableDisk
from tests.e2e.test_replica_tables import (
    DELAYS,
    FIVE_SECONDS,
    HOUR_MS,
    ONE_HOUR,
    PROPERTIES,
    START_MS,
    Side,
    commit,
    follow,
    make_group,
    sides,
)

# A promoted start changes some 20 things on the disk; those behind come while it serves.
STEPS = [7, 20, *(pytest.param(step, marks=pytest.mark.matrix) for step in range(40))]


class Killed(BaseException):
    """The end of the process, in place of one of its changes on the disk."""


class EndingDisk(CuttableDisk):
    """A disk whose process is killed before one of its changes."""

    steps_left = 0

    def _step(self) -> None:
        EndingDisk.steps_left -= 1
        if EndingDisk.steps_left < 0 and not self._is_cut:
            self.cut()
            raise Killed

    def pwrite(self, *arguments: Any) -> int:
        self._step()
        return super().pwrite(*arguments)

    def truncate(self, *arguments: Any) -> None:
        self._step()
        super().truncate(*arguments)

    def rename(self, *arguments: Any) -> None:
        self._step()
        super().rename(*arguments)

    def unlink(self, *arguments: Any) -> None:
        self._step()
        super().unlink(*arguments)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a slave whose master was killed: deliveries done, and deliveries due."""
    folder = tmp_path_factory.mktemp("pair")
    clock = ManualClock(START_MS)
    with LocalCluster(slaves=1, folder=folder, clock=clock, properties=PROPERTIES) as cluster:
        master, slave = sides(cluster)
        master.send_kind("delayed", DELAY=FIVE_SECONDS)
        master.send_kind("timed", TIMER_DELIVER_MS=str(START_MS + 6_000))
        master.send_kind("in an hour", DELAY=ONE_HOUR)
        cluster.advance(ms=8_000)
        master.wait_for("delayed", "timed")
        make_group(master)
        commit(master, 1)
        master.send_kind("left", DELAY=FIVE_SECONDS)
        master.send_kind("left timed", TIMER_DELIVER_MS=str(START_MS + 20_000))
        follow(cluster)
        eventually(
            lambda: (
                slave.done(DELAYS, {}).body == master.done(DELAYS, {}).body
                or cluster.advance(ms=100)
            ),
            "the slave knows the delay offsets",
        )
        master.broker.kill()
        slave.broker.kill()
    return folder / "broker-a-1"


@pytest.mark.proves("replication.shown.promotion-kills")
@pytest.mark.parametrize("step", STEPS)
def test_a_promotion_that_is_killed_loses_and_repeats_nothing(
    copied: Path, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(copied, tmp_path / "broker-a")
    clock = ManualClock(START_MS + 9_000)
    settings = {"folder": tmp_path, "clock": clock, "properties": PROPERTIES}
    with monkeypatch.context() as patch:
        patch.setattr("contrail.testing.faulty_broker.CuttableDisk", EndingDisk)
        EndingDisk.steps_left = step
        with suppress(Killed), LocalCluster(**settings) as cluster:
            cluster.brokers[0].kill()
    with LocalCluster(**settings) as cluster:
        promoted = Side(cluster, cluster.brokers[0])
        cluster.advance(ms=20_000)
        once = ("delayed", "timed", "left", "left timed")
        promoted.wait_for(*once)
        cluster.advance(ms=HOUR_MS)
        promoted.wait_for(*once, "in an hour")
