"""A failover group of real processes, each in a network namespace and on a disk of its own."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from contrail.clock import SharedClock
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import BlockingCaller, LocalBroker, LocalCluster
from contrail.testing.places import Place
from tests.fault.campaigns.io_errors import build_shim
from tests.interop.peers import unavailable
from tests.interop.private_network import Node, PrivateNetwork

MEMBER_COUNT = 3
_DISK_BYTES = 2 << 30
_MICROS = struct.Struct("<q")

PROPERTIES: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 2_000),
    "registerNameServerPeriod": "10000",
    "flushConsumerOffsetInterval": "1000",
    "messageDelayLevel": "1s 2s 3s 4s",
    # A clock that jumps by days must not have messages deleted that nobody has read.
    "fileReservedTime": str(20 * 365 * 24),
}


class Disk:
    """A partition in memory; how full it is and how long it takes to sync can be changed."""

    def __init__(self, folder: Path, slowness_path: Path) -> None:
        self.folder = folder
        slowness_path.write_bytes(_MICROS.pack(0))
        with slowness_path.open("r+b") as file:
            self._slowness = mmap.mmap(file.fileno(), _MICROS.size)

    def mount(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "contrail", str(self.folder))

    def unmount(self) -> None:
        _run("umount", "-l", str(self.folder))

    def fill(self) -> None:
        """Leave no room beside what is written already."""
        found = os.statvfs(self.folder)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        _run("mount", "-o", f"remount,size={used + 2 * found.f_frsize}", str(self.folder))

    def empty(self) -> None:
        """End ``fill``."""
        _run("mount", "-o", f"remount,size={_DISK_BYTES}", str(self.folder))

    def slow_down(self, sync_ms: float) -> None:
        """Have every sync take so much longer; 0 ends it."""
        _MICROS.pack_into(self._slowness, 0, round(1000 * sync_ms))


class NodeCaller(BlockingCaller):
    """An operator on the member's own host: no cut cable is in between."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        self._is_inside = False

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 10_000,
    ) -> ReceivedResponse:
        if not self._is_inside:
            self.enter(self._node.enter)
            self._is_inside = True
        return super().call(address, code, fields, body, timeout_ms=timeout_ms)


class ChaosMember:
    """One member, with all that can go wrong around it."""

    def __init__(self, broker: LocalBroker, node: Node, disk: Disk, clock: SharedClock) -> None:
        self.broker = broker
        self.node = node
        self.disk = disk
        self.clock = clock

    @property
    def name(self) -> str:
        return self.broker.self_id


class ChaosGroup:
    """Three members and a NameServer; a context manager."""

    def __init__(self, folder: Path, properties: Mapping[str, str] | None = None) -> None:
        names = [f"n{number}" for number in range(MEMBER_COUNT)]
        self.folder = folder
        self.network = PrivateNetwork(*names)
        self.cluster = LocalCluster(
            in_children=True,
            members=MEMBER_COUNT,
            folder=folder,
            properties={
                **PROPERTIES,
                "contrailClusterAllowList": self.network.subnet,
                **(properties or {}),
            },
        )
        nameserver = self.cluster.nameservers[0]
        nameserver.host = self.network.address
        nameserver.own_properties["contrailClusterAllowList"] = self.network.subnet
        library = build_shim(folder)
        self.members = [
            self._member(broker, self.network[name], library)
            for broker, name in zip(self.cluster.brokers, names, strict=True)
        ]
        self._stack = ExitStack()

    def _member(self, broker: LocalBroker, node: Node, library: Path) -> ChaosMember:
        clock = SharedClock(self.folder / f"{node.name}.clock")
        slowness = self.folder / f"{node.name}.slowness"
        environment = {"LD_PRELOAD": str(library), "FAULT_SLOWNESS": str(slowness)}
        prefix = tuple(node.command([]))
        broker.put_at(Place(node.address, prefix, environment, clock, NodeCaller(node)))
        return ChaosMember(broker, node, Disk(broker.folder / "store", slowness), clock)

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            unavailable("mounting a disk in memory needs root", "run the tests as root")
        with ExitStack() as stack:
            stack.enter_context(self.network)
            stack.callback(self._close_callers)
            for member in self.members:
                member.disk.mount()
                stack.callback(member.disk.unmount)
            stack.enter_context(self.cluster)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _close_callers(self) -> None:
        for member in self.members:
            member.broker.caller.close()

    def make_topic(self, topic: str, *, queues: int = 4) -> None:
        """Create a topic, from the leader's own host: other hosts may not."""
        fields = {"topic": topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
        fields |= {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
        fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
        leader = self.cluster.wait_for_leader()
        answer = leader.caller.call(leader.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def named(self, name: str) -> ChaosMember:
        return next(one for one in self.members if one.name == name)

    def others(self, member: ChaosMember) -> list[ChaosMember]:
        return [one for one in self.members if one is not member]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
