"""The groups that lose their leaders: ours, and Apache's two modes that elect by themselves.

Ours stand in network namespaces, so that a leader can be cut off; Apache's on loopback. All store
in memory: an election writes little, and a disk that is shared by three members would be measured
instead of the modes.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.harness import BenchError
from bench.peers_servers import _answers, _apache, _write
from bench.wire_parts import HOST, free_broker_port, free_port, running
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.protocol.codes import RequestCode
from contrail.testing import eventually
from contrail.testing.failover import leader_of
from tests.chaos.group import ChaosGroup, ChaosMember

_MEMBER_COUNT = 3
_HEAP = "768m"
_START_TIMEOUT_S = 240.0
_POLL_S = 0.02
_NAME = "failover"
T = TypeVar("T")


class OurGroup:
    """A group of ours; ``how`` is the fault that its leader suffers."""

    def __init__(self, group: ChaosGroup, how: str = "kill") -> None:
        self.group = group
        self.namesrv = group.cluster.namesrv
        self.how = how
        self._lost: ChaosMember | None = None

    def leader(self) -> ChaosMember:
        """The one member that leads; a former leader may take two seconds to step down."""

        def leaders() -> list[ChaosMember]:
            members = self.group.members
            return [one for one in members if leader_of([one.broker]) is not None]

        found = eventually(lambda: len(now := leaders()) == 1 and now, "one member leads")
        assert found
        return found[0]

    def lose_leader(self) -> float:
        member = self._lost = self.leader()
        if self.how == "transfer":
            began_s = time.monotonic()
            hand_over(self.group)
            return began_s
        if self.how == "kill":
            member.broker.kill()
        elif self.how == "stop":
            member.broker.pause()
        else:
            member.node.cut()
        # A send that is begun while a cable is being cut may still be answered.
        return time.monotonic()

    def bring_back(self) -> None:
        member = self._lost
        assert member is not None
        if self.how == "kill":
            member.broker.start()
        elif self.how == "stop":
            member.broker.resume()
        elif self.how == "cut":
            member.node.mend()
        self.leader()
        self.group.cluster.wait_for_voters()


def hand_over(group: ChaosGroup) -> None:
    """Have another member lead, as an operator does."""
    cluster = group.cluster
    leader = cluster.wait_for_leader()
    target = next(one for one in cluster.brokers if one is not leader)
    fields = {"brokerName": leader.name, "brokerId": str(int(target.self_id[1:]) + 1)}
    answer = leader.caller.call(leader.address, RequestCode.CONTROLLER_ELECT_MASTER, fields)
    if answer.code:
        raise BenchError(f"{leader.self_id} does not hand over: {answer.remark}")


class ApacheGroup:
    """Three brokers of Apache's under one NameServer; each keeps its command over restarts."""

    def __init__(self, namesrv: str, commands: list[list[str]], addresses: list[str]) -> None:
        self.namesrv = namesrv
        self._commands = commands
        self._addresses = addresses
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * len(commands)
        self._lost = 0

    def start(self, number: int) -> None:
        self._processes[number] = subprocess.Popen(
            self._commands[number],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        for process in self._processes:
            if process is not None:
                process.kill()
                process.wait()

    def master(self) -> int | None:
        """The broker that NameServers name under id 0."""
        try:
            with Admin(self.namesrv, timeout_ms=5_000) as admin:
                found = {one.address for one in admin.brokers() if one.broker_id == 0}
        except ClientError:
            return None
        return next((at for at, one in enumerate(self._addresses) if one in found), None)

    def member_count(self) -> int:
        try:
            with Admin(self.namesrv, timeout_ms=5_000) as admin:
                return len(list(admin.brokers()))
        except ClientError:
            return 0

    def lose_leader(self) -> float:
        master = wait_for(self.master, "a broker is master")
        process = self._processes[master]
        assert process is not None
        self._lost = master
        began_s = time.monotonic()
        process.send_signal(signal.SIGKILL)
        process.wait()
        return began_s

    def bring_back(self) -> None:
        self.start(self._lost)
        wait_for(lambda: self.member_count() == len(self._commands) or None, "all are back")


def wait_for(look: Callable[[], T | None], what: str) -> T:
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while (found := look()) is None:
        if time.monotonic() > deadline_s:
            raise BenchError(
                f"Apache's group did not come so far within {_START_TIMEOUT_S} s: {what}"
            )
        time.sleep(_POLL_S)
    return found


@contextmanager
def apache_group(folder: Path, mode: str) -> Iterator[ApacheGroup]:
    """``controller`` or ``dledger``: a NameServer and three brokers, level and ready."""
    folder.mkdir(parents=True)
    port = free_port()
    namesrv = f"{HOST}:{port}"
    controller_port = free_port()
    with ExitStack() as started:
        settings = {
            "listenPort": str(port),
            "bindAddress": HOST,
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
        }
        if mode == "controller":
            settings |= {
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "controllers",
                "controllerDLegerPeers": f"n0-{HOST}:{controller_port}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": str(folder / "controller"),
            }
        file = _write(folder / "namesrv.conf", settings)
        command = _apache("namesrv.NamesrvStartup", [f"-Xmx{_HEAP}"], folder, file)
        process = started.enter_context(running(command, folder / "namesrv.log", is_pinned=False))
        started.callback(process.kill)
        wait_for(partial(_or_none, namesrv), "the NameServer answers")
        ports = [free_broker_port() for _ in range(_MEMBER_COUNT)]
        peers = ";".join(f"n{at}-{HOST}:{free_port()}" for at in range(_MEMBER_COUNT))
        commands = []
        for at, broker_port in enumerate(ports):
            place = folder / f"n{at}"
            place.mkdir()
            own = {
                "namesrvAddr": namesrv,
                "brokerClusterName": "DefaultCluster",
                "brokerName": _NAME,
                "brokerIP1": HOST,
                "bindAddress": HOST,
                "listenPort": str(broker_port),
                "haListenPort": str(free_port()),
                "storePathRootDir": str(place / "store"),
                "storePathCommitLog": str(place / "store" / "commitlog"),
                "mappedFileSizeCommitLog": str(64 << 20),
                "brokerFastFailureEnable": "false",
                "flushDiskType": "SYNC_FLUSH",
            }
            if mode == "dledger":
                own |= {
                    "enableDLegerCommitLog": "true",
                    "dLegerGroup": _NAME,
                    "dLegerPeers": peers,
                    "dLegerSelfId": f"n{at}",
                }
            else:
                own |= {
                    "enableControllerMode": "true",
                    "controllerAddr": f"{HOST}:{controller_port}",
                    "allAckInSyncStateSet": "true",
                }
            broker_file = _write(place / "broker.conf", own)
            options = [f"-Xms{_HEAP}", f"-Xmx{_HEAP}", "-XX:MaxDirectMemorySize=2g"]
            commands.append(_apache("broker.BrokerStartup", options, place, broker_file))
        group = ApacheGroup(namesrv, commands, [f"{HOST}:{one}" for one in ports])
        started.callback(group.end)
        for at in range(_MEMBER_COUNT):
            group.start(at)
        wait_for(group.master, "a broker is master")
        wait_for(lambda: group.member_count() == _MEMBER_COUNT or None, "all are registered")
        yield group


def _or_none(namesrv: str) -> bool | None:
    return _answers(namesrv) or None
