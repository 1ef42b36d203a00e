"""The members of a failover group in one process: real stores, real links over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contrail.broker.services.group_retention import GroupRetention
from contrail.clock import Clock, SystemClock
from contrail.errors import CallFailed
from contrail.model.message import MessageDraft
from contrail.replication.config import BrokerIdentity, GroupConfig, LinkTrust
from contrail.replication.services.group_runner import GroupRunner
from contrail.replication.services.member_files import MemberFiles
from contrail.replication.services.member_folder import prepare_folder
from contrail.replication.services.replica_log import ReplicaLog
from contrail.replication.state.group_effects import RoleChanged
from contrail.replication.state.member_log import MemberTimes
from contrail.runtime.files import FileSystem
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from contrail.testing.cluster import free_port
from contrail.testing.waiting import eventually_async
from contrail.wire.cluster_port import Link, LinkUser, dial

SEGMENT_BYTES = 64 << 10
TOPIC = b"orders"
# The intervals of the product, shortened: tests wait for many elections.
TIMES = MemberTimes(
    beat_ms=100,
    election_ms_min=400,
    election_ms_max=800,
    heard_ms=400,
    quorum_ms=800,
    lease_ms=300,
)


@dataclass
class LocalMember:
    """One member; it keeps its folder and port over restarts."""

    trio: Trio
    self_id: str
    folder: Path
    is_cut_off: bool = False
    store: MessageStore | None = None
    runner: GroupRunner | None = None
    leads: bool = False
    failures: list[Exception] = field(default_factory=list)
    new_starts: int = 0
    restarting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.leads = False

        def flushed(physical_end: int) -> None:
            loop.call_soon_threadsafe(self._flushed)

        config = StoreConfig(
            root=self.folder,
            segment_bytes=SEGMENT_BYTES,
            queue_file_bytes=20_000,
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
        )
        prepare_folder(FileSystem(), config.root, config.log_folders)
        self.store = MessageStore.open(config, on_flushed=flushed, in_group=True)
        clock = self.trio.clocks.get(self.self_id, SystemClock())
        self.runner = GroupRunner(
            GroupConfig(
                identity=BrokerIdentity(
                    cluster="c", broker_name="b", broker_id=int(self.self_id[1:]) + 1, group="g"
                ),
                self_id=self.self_id,
                peers=self.trio.peers,
                trust=LinkTrust(secret=self.trio.secret),
                listen_address="127.0.0.1",
                listen_port=int(self.trio.peers[self.self_id].rpartition(":")[2]),
                address=f"client-address-of-{self.self_id}",
                facts=self.trio.facts.get(self.self_id, {}),
            ),
            ReplicaLog(self.store, clock.now_ms),
            MemberFiles(FileSystem(), self.folder),
            clock,
            self,
            times=TIMES,
        )
        self.runner.links.dial = self._dial
        self.retention = GroupRetention(self.store, self, self.runner)
        await self.runner.start()

    async def _dial(self, user: LinkUser, address: str, *, tls: object = None) -> Link:
        if self.is_cut_off or self.trio.is_cut_off(address):
            raise CallFailed(f"{address} cannot be reached: cut off by the test")
        return await dial(user, address)

    def cut_off(self) -> None:
        """Lose every link, and get none, until ``rejoin``."""
        self.is_cut_off = True
        assert self.runner is not None
        self.runner.links.end_all("cut off")

    def rejoin(self) -> None:
        self.is_cut_off = False

    async def stop(self) -> None:
        """Like a kill for the group: nothing is handed over."""
        if self.runner is not None and self.store is not None:
            await self.runner.stop()
            await asyncio.to_thread(self.store.close)
        self.runner = self.store = None
        self.leads = False

    # Of the runner.

    def role_changed(self, change: RoleChanged) -> None:
        assert self.store is not None
        if self.leads and not change.is_serving:
            self.leads = False
            self.store.stop_leading()
        if change.is_serving and not self.leads:
            self._lead_if_derived()

    def committed(self) -> None:
        self._lead_if_derived()

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def begin_anew(self) -> None:
        self.new_starts += 1
        self.restarting = asyncio.get_running_loop().create_task(self.restart())

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    # As the group's tables, for retention.

    snapshot_start: int | None = None

    def removed_before(self, physical_min: int) -> None:
        pass

    def _flushed(self) -> None:
        if self.runner is not None:
            self.runner.flushed()
            self._lead_if_derived()

    def _lead_if_derived(self) -> None:
        store, runner = self.store, self.runner
        if store is None or runner is None or runner.member is None:
            return
        store.dispatch()
        is_derived = store.dispatched_end == store.physical_end
        if runner.member.is_serving and not self.leads and is_derived:
            store.lead({})
            self.leads = True

    # Of tests.

    def append(self, *bodies: bytes) -> int:
        """Append messages as leader; returns their end."""
        assert self.store is not None
        return self.store.append([MessageDraft(TOPIC, 0, body) for body in bodies]).physical_end

    @property
    def visible_end(self) -> int:
        assert self.store is not None
        return self.store.visible_end

    def bodies(self) -> list[bytes]:
        """The messages that consumers of this member can read."""
        store = self.store
        assert store is not None
        store.dispatch()
        found: list[bytes] = []
        first = store.queue_offset_min(TOPIC, 0)
        while first + len(found) < store.queue_offset_max(TOPIC, 0):
            found += [one.body for one in store.get(TOPIC, 0, first + len(found)).messages]
        return found

    def log_bytes(self) -> bytes:
        """The whole log as it stands."""
        store = self.store
        assert store is not None
        starts = range(store.physical_min, store.physical_end, SEGMENT_BYTES)
        return b"".join(
            store.log_bytes(start, min(SEGMENT_BYTES, store.physical_end - start))
            for start in starts
        )


class Trio:
    """A failover group, of three members unless told otherwise."""

    def __init__(self, folder: Path, *, size: int = 3) -> None:
        self.secret = b"the secret of a group"
        self.peers = {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(size)}
        # Settings that shape the log, by member.
        self.facts: dict[str, dict[str, str]] = {}
        # Clocks other than the system's, by member.
        self.clocks: dict[str, Clock] = {}
        self.members = {
            self_id: LocalMember(self, self_id, folder / self_id) for self_id in self.peers
        }

    def is_cut_off(self, address: str) -> bool:
        return any(
            self.members[self_id].is_cut_off
            for self_id, own in self.peers.items()
            if own == address
        )

    def __iter__(self) -> Iterator[LocalMember]:
        return iter(self.members.values())

    @property
    def leader(self) -> LocalMember | None:
        leading = [one for one in self if one.leads]
        return max(
            leading,
            key=lambda one: one.runner.member.term if one.runner and one.runner.member else 0,
            default=None,
        )

    async def led(self, *, besides: LocalMember | None = None) -> LocalMember:
        """The leader, once there is one other than ``besides``."""
        await eventually_async(
            lambda: any(one.leads for one in self if one is not besides), "a member leads"
        )
        return next(one for one in self if one.leads and one is not besides)

    async def has_voters(self, count: int) -> None:
        """Wait until all running members know of so many voters."""

        def known() -> bool:
            return all(
                one.runner.member is not None and len(one.runner.member.log.voters.now) == count
                for one in self
                if one.runner is not None
            )

        await eventually_async(known, f"{count} members vote")

    async def committed(self, physical_end: int, *, at: list[LocalMember] | None = None) -> None:
        members = list(self) if at is None else at
        await eventually_async(
            lambda: all(one.visible_end >= physical_end for one in members),
            lambda: f"{physical_end} is committed: {[one.visible_end for one in members]}",
        )


@contextlib.asynccontextmanager
async def failover_group(folder: Path, *, size: int = 3) -> AsyncIterator[Trio]:
    """A group of which no member has started yet; all are stopped at the end."""
    trio = Trio(folder, size=size)
    try:
        yield trio
    finally:
        for member in trio:
            await member.stop()
        assert not [failure for member in trio for failure in member.failures]
