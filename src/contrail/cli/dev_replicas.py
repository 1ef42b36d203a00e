"""Brokers of one name for ``contrail dev``: a process each, so that any of them can be killed.

A broker that ends by itself is started again after a while. All end with this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrail.broker.config import BrokerRole
from contrail.broker.replication_config import HA_PORT_DISTANCE
from contrail.broker.services.cluster_secret import SECRET_BYTES, write_cluster_secret
from contrail.broker.settings import read_broker_settings
from contrail.errors import ConfigError
from contrail.protocol.bodies.ha_status import decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.wire.caller import Caller
from contrail.wire.server import FAST_PORT_DISTANCE, bind, bind_together

REPLICAS_MAX = 8
MEMBER_COUNT = 3
# Settings of a pair that shows what it can do; `--set` changes them.
PAIR_PROPERTIES: Mapping[str, str] = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "true"}
# A majority has each message on the disk before it is acknowledged.
GROUP_PROPERTIES: Mapping[str, str] = {"flushDiskType": "SYNC_FLUSH"}
_SECRET = "contrailClusterSecretFile"
_READY_MARK = b"is ready at"
_STOP_TIMEOUT_S = 60.0
_LOG_TAIL_BYTES = 4000
_LEADER = "LEADER"
_POLL_S = 0.05
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One broker: its number in the group, its settings, and where its files are."""

    broker_id: int
    properties: Mapping[str, str]
    config_path: Path
    log_path: Path

    @property
    def address(self) -> str:
        return f"{self.properties['brokerIP1']}:{self.properties['listenPort']}"

    @property
    def name(self) -> str:
        return f"{self.properties['brokerName']}:{self.broker_id}"

    @property
    def metrics(self) -> str | None:
        if self.properties.get("metricsExporterType") == "DISABLE":
            return None
        return f"http://{self.properties['brokerIP1']}:{self.properties['metricsPromExporterPort']}/metrics"


def plan_replicas(
    folder: Path, properties: Mapping[str, str], slave_count: int
) -> list[ReplicaPlan]:
    """The master first; ``properties`` are its own, with its ports and its folder.

    Raises:
        ConfigError: a setting is refused, or contradicts that this is a master with slaves.
    """
    master = {"brokerName": "broker-a", _SECRET: str(folder / "cluster.secret"), **properties}
    if master["brokerRole"] == BrokerRole.SLAVE or master.get("brokerId", "0") != "0":
        raise ConfigError(
            "--set brokerRole=SLAVE and --set brokerId are not for `contrail dev`: the settings "
            "are its master's, and its slaves come by --replicas"
        )
    plans = []
    for broker_id in range(slave_count + 1):
        found = master if not broker_id else {**master, **_slave_properties(folder, broker_id)}
        read = read_broker_settings(found)
        if read.notes:
            raise ConfigError("; ".join(read.notes))
        stem = f"{found['brokerName']}-{broker_id}"
        plans.append(ReplicaPlan(broker_id, found, folder / f"{stem}.conf", folder / f"{stem}.log"))
    return plans


def plan_members(folder: Path, properties: Mapping[str, str]) -> list[ReplicaPlan]:
    """The members of a failover group; ``properties`` are those of all, with the first one's ports.

    Raises:
        ConfigError: a setting is refused, or contradicts that this is a failover group.
    """
    ids = [f"n{number}" for number in range(MEMBER_COUNT)]
    group = {
        "brokerName": "broker-a",
        _SECRET: str(folder / "cluster.secret"),
        **properties,
        "enableDLegerCommitLog": "true",
        "dLegerPeers": ";".join(f"{one}-127.0.0.1:{free_port()}" for one in ids),
    }
    plans = []
    for number, self_id in enumerate(ids):
        found = {
            **group,
            "dLegerSelfId": self_id,
            "storePathRootDir": str(folder / f"member-{self_id}"),
        }
        if number:
            found["listenPort"] = str(free_broker_port())
            found["metricsPromExporterPort"] = str(free_port())
        read = read_broker_settings(found)
        if read.notes:
            raise ConfigError("; ".join(read.notes))
        stem = f"{found['brokerName']}-{self_id}"
        plans.append(
            ReplicaPlan(number + 1, found, folder / f"{stem}.conf", folder / f"{stem}.log")
        )
    return plans


async def leader_among(plans: list[ReplicaPlan]) -> int:
    """The id of the member that leads, once all members vote."""
    caller = Caller()
    try:
        while True:
            for plan in plans:
                answer = await caller.call(plan.address, RequestCode.GET_BROKER_HA_STATUS)
                status = decode_ha_status(answer.body)
                if status.role == _LEADER and status.in_sync_slaves == len(plans) - 1:
                    return plan.broker_id
            await asyncio.sleep(_POLL_S)
    finally:
        await caller.close()


def _slave_properties(folder: Path, broker_id: int) -> dict[str, str]:
    return {
        "brokerId": str(broker_id),
        "brokerRole": "SLAVE",
        "listenPort": str(free_broker_port()),
        "metricsPromExporterPort": str(free_port()),
        "storePathRootDir": str(folder / f"slave-{broker_id}"),
    }


def free_port() -> int:
    """A free port of this host."""
    with bind("127.0.0.1", 0) as found:
        return int(found.getsockname()[1])


def free_broker_port() -> int:
    """A port whose fast port and HA port are free too."""
    found = bind_together("127.0.0.1", 0, (-FAST_PORT_DISTANCE, HA_PORT_DISTANCE))
    port = int(found[0].getsockname()[1])
    for one in found:
        one.close()
    return port


class Replicas:
    """The processes of brokers of one name."""

    def __init__(self, plans: list[ReplicaPlan], restart_after_s: float) -> None:
        self.plans = plans
        self._restart_after_s = restart_after_s
        self._processes: dict[int, Process] = {}
        self._watches: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the brokers in their order; return once they serve and are registered.

        Raises:
            ConfigError: one of them does not start.
        """
        secret = Path(self.plans[0].properties[_SECRET])
        if not secret.exists():
            write_cluster_secret(secret, secrets.token_bytes(SECRET_BYTES))
        for plan in self.plans:
            lines = (f"{name}={value}\n" for name, value in plan.properties.items())
            plan.config_path.write_text("".join(lines), encoding="utf-8")
            await self._start_one(plan)
        self._watches = [asyncio.create_task(self._watch(plan)) for plan in self.plans]

    def facts(self) -> list[dict[str, Any]]:
        """Addresses and processes, in the order of their start."""
        return [
            {
                "broker_id": plan.broker_id,
                "broker": plan.address,
                "pid": self._processes[plan.broker_id].pid,
                "metrics": plan.metrics,
                "config": str(plan.config_path),
            }
            for plan in self.plans
        ]

    async def stop(self) -> None:
        """End all with a clean shutdown: the master first, while its slaves still acknowledge."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for process in self._processes.values():
            _signal(process, signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
            except TimeoutError:
                _signal(process, signal.SIGKILL)
                await process.wait()

    def kill(self) -> None:
        """End all at once."""
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)

    async def _start_one(self, plan: ReplicaPlan) -> None:
        command = ("-m", "contrail.cli", "broker", "-c", str(plan.config_path))
        with plan.log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                # Ctrl-C is for this process, which then ends its brokers in order.
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )
        self._processes[plan.broker_id] = process
        assert process.stdout is not None
        line = await process.stdout.readline()
        if _READY_MARK not in line:
            code = await process.wait()
            told = plan.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode("utf-8", "replace")
            last = told.strip().rpartition("\n")[2].removeprefix("contrail: ")
            raise ConfigError(
                f"broker {plan.name} did not start ({code}), see {plan.log_path}: {last}"
            )

    async def _watch(self, plan: ReplicaPlan) -> None:
        """Start a broker again that was killed, after a while without it."""
        while True:
            code = await self._processes[plan.broker_id].wait()
            after_s = self._restart_after_s
            print(
                f"broker {plan.name} has ended ({code}) and is started again in {after_s:g} s",
                file=sys.stderr,
            )
            await asyncio.sleep(after_s)
            try:
                await self._start_one(plan)
            except ConfigError as error:
                print(f"contrail: {error}", file=sys.stderr)
                return
            pid = self._processes[plan.broker_id].pid
            print(f"broker {plan.name} is back as process {pid}", file=sys.stderr)


def _signal(process: Process, number: signal.Signals) -> None:
    # It may have ended already.
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _end_with_parent() -> None:
    """In the child, before its program: have Linux end it when its parent is gone."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() == 1:
        os._exit(1)
