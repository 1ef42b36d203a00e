"""Kills a master and its slave again and again, and throws masters' disks away.

``SEND_OK`` of a ``SYNC_MASTER`` promises that the slave has the message. When a master is lost with
its disk, and its slave is started as the master, every message that was answered 0 is there. Other
statuses (10, 11, 12) are unknown outcomes; they are counted.

A reader may see messages that only the master has, as in Apache's classic mode. No message is read
between the last time the slave had everything and the loss of a disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalBroker
from tests.e2e.replica_waits import has_tables
from tests.history.campaign import Campaign

_PROPERTIES = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": "2",
    # A jump of the clock by days must not end links that are alive.
    "haHousekeepingInterval": str(2_000_000_000),
}
# A slave connects again after 5 s; the clock is moved over them.
_RECONNECT_MS = 5_100


@dataclass(slots=True)
class PairFigures:
    """The faults that a campaign gave its pair, and the answers its sends got."""

    master_kills: int = 0
    slave_kills: int = 0
    disks_lost: int = 0
    acknowledged: int = 0
    flush_late: int = 0
    slave_absent: int = 0
    slave_late: int = 0
    unanswered: int = 0
    refused: int = 0

    @property
    def unknown(self) -> int:
        return self.flush_late + self.slave_absent + self.slave_late + self.unanswered


class ReplicatedCampaign(Campaign):
    """A master and a slave; ``burst`` sends what is under way when a disk is lost."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        properties: Mapping[str, str] | None = None,
        *,
        kill_count: int,
        kills_per_disk: int = 10,
    ) -> None:
        """A disk is lost after each ``kills_per_disk`` kills, and at the end of ``kill_count``."""
        super().__init__(folder, seed, {**_PROPERTIES, **(properties or {})}, slaves=1)
        self.slave = self.cluster.slaves[0]
        self.burst: Callable[[], None] = lambda: None
        self.master_kills = self.slave_kills = self.disks_lost = 0
        self._down: list[LocalBroker] = []
        self._kill_count = kill_count
        self._kills_per_disk = kills_per_disk
        self._next_loss = min(kill_count, kills_per_disk)

    @property
    def kills_to_repeat(self) -> int:
        return self._kill_count

    def figures(self) -> PairFigures:
        """The figures so far."""
        codes = self.send_codes
        known = {
            "acknowledged": ResponseCode.SUCCESS,
            "flush_late": ResponseCode.FLUSH_DISK_TIMEOUT,
            "slave_absent": ResponseCode.SLAVE_NOT_AVAILABLE,
            "slave_late": ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "unanswered": None,
        }
        counts = {name: codes[code] for name, code in known.items()}
        refused = codes.total() - sum(counts.values())
        return PairFigures(
            self.master_kills, self.slave_kills, self.disks_lost, **counts, refused=refused
        )

    # Kills and restarts.

    def kill_while_busy(self) -> None:
        """Kill the master, the slave, or both in either order."""
        self.let_some_moment_pass()
        victims = [self.broker, self.slave]
        self.random.shuffle(victims)
        if self.random.random() < 0.75:
            del victims[1]
        if victims == [self.slave] and self.slave in self._down:
            victims = [self.broker]
        for victim in victims:
            self._kill_one(victim)

    def _kill_one(self, victim: LocalBroker) -> None:
        if victim in self._down:
            return
        self._down.append(victim)
        if victim is self.broker:
            self.kill()
            self.master_kills += 1
        else:
            victim.kill()
            self.kill_count += 1
            self.slave_kills += 1

    def restart(self) -> None:
        """Start what is down, in some order; the slave may stay away for another round."""
        self.random.shuffle(self._down)
        stays_away = self.random.random() < 0.25
        for broker in list(self._down):
            if broker is self.broker or not stays_away:
                self._start_one(broker)
        if self.random.random() < 0.7:
            self.catch_up()
        if self.kill_count >= self._next_loss:
            self._lose_master()

    def _start_one(self, broker: LocalBroker) -> None:
        self._down.remove(broker)
        if broker is self.broker:
            super().restart()
            # A server drops connections that ask for nothing while a slow machine starts the slave.
            self._ha_status()
        else:
            broker.start()

    # The end of a disk.

    def catch_up(self) -> None:
        """Wait until the slave has acknowledged the whole log and has the master's tables."""
        if self.slave in self._down:
            self._start_one(self.slave)
        self.advance(ms=_RECONNECT_MS)
        self.wait_until(self._is_level, "the slave has everything")

    def _is_level(self) -> bool:
        return self._has_log() and has_tables(self.cluster.caller, self.broker, self.slave)

    def _has_log(self) -> bool:
        links = self._ha_status().slaves
        return any(link.state == "receiving" and link.lag_bytes == 0 for link in links)

    def _ha_status(self) -> HaStatus:
        answer = self.client.call(RequestCode.GET_BROKER_HA_STATUS, {})
        assert answer is not None and answer.code == ResponseCode.SUCCESS, answer
        return decode_ha_status(answer.body)

    def _lose_master(self) -> None:
        """Kill both while sends are under way, remove the master's files, promote the slave."""
        self._next_loss = min(self._kill_count, self.kill_count + self._kills_per_disk)
        self.catch_up()
        self.burst()
        self.let_some_moment_pass()
        victims = [self.broker, self.slave]
        self.random.shuffle(victims)
        for victim in victims:
            self._kill_one(victim)
        shutil.rmtree(self.broker.folder / "store")
        self.disks_lost += 1
        self.broker, self.slave = self.slave, self.broker
        self.broker.broker_id, self.slave.broker_id = 0, 1
        self._start_one(self.broker)
        self.catch_up()
