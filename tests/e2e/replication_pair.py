"""A master's and a slave's store in one process, joined over loopback sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrail.clock import Clock, SystemClock
from contrail.replication.config import BrokerIdentity, HaMasterConfig, HaSlaveConfig, LinkTrust
from contrail.replication.services.ha_master import HaMaster
from contrail.replication.services.ha_slave import HaSlave
from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.in_sync import InSyncRules
from contrail.store.config import FlushDiskType, StoreConfig
from contrail.store.log import MessageStore
from contrail.testing.waiting import eventually_async

SECRET = b"a secret of these tests"
# Links come back at once, so that a story with many cuts is short.
LIMITS = HaLimits(reconnect_ms=1)


def identity(broker_id: int, **changes: Any) -> BrokerIdentity:
    named: dict[str, Any] = {"cluster": "c", "broker_name": "b", "broker_id": broker_id}
    return BrokerIdentity(**{**named, **changes})


def store_config(root: Path, **changes: Any) -> StoreConfig:
    settings: dict[str, Any] = {
        "root": root,
        "segment_bytes": 1 << 20,
        "queue_file_bytes": 20_000,
        "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
    }
    return StoreConfig(**{**settings, **changes})


@dataclass
class Pair:
    """Both stores and services; the slave reaches its master through ``proxy``."""

    master_store: MessageStore
    slave_store: MessageStore
    master: HaMaster
    slave: HaSlave
    proxy: CuttingProxy
    events: list[str] = field(default_factory=list)

    def append(self, drafts: list[Any]) -> None:
        self.master_store.append(drafts)
        self.master.appended()

    async def caught_up(self) -> None:
        """Wait until the slave has reported the end of the master's log, durably or not."""
        end = self.master_store.physical_end
        await eventually_async(
            lambda: (
                [slave.acknowledged_end for slave in self.master.status().slaves] == [end]
                and self.slave_store.physical_end == end
            ),
            lambda: f"{self.master.status()} {self.slave.status()}",
        )


class CuttingProxy:
    """Passes bytes to the master's port; cuts each connection after as many as it is told."""

    def __init__(self, seed: int | None, bytes_max: int = 400_000) -> None:
        self._random = random.Random(seed) if seed is not None else None
        self._bytes_max = bytes_max
        self._server: asyncio.Server | None = None
        # Each connection of a slave, from the moment it is accepted.
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._changes_next = False
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self.target_port = 0
        self.cut_count = 0

    async def listen(self, target_port: int) -> int:
        self.target_port = target_port
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def heal(self) -> None:
        """Cut no more."""
        self._random = None

    def change_next(self) -> None:
        """Change a byte of what the master sends next."""
        self._changes_next = True

    def hold(self) -> None:
        """Let nothing pass, but cut nothing."""
        self._may_pass.clear()

    def release(self) -> None:
        self._may_pass.set()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called as the connection is made: a task that ``close`` cancels may never have begun."""
        if self._is_closed:
            writer.transport.abort()
            return
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = self._random.randrange(1, self._bytes_max) if self._random is not None else None
        try:
            up_reader, up_writer = await self._connect()
            ways = (
                asyncio.create_task(self._pass(up_reader, writer, limit, is_down=True)),
                asyncio.create_task(self._pass(reader, up_writer, None)),
            )
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # First of all: ``close`` may cancel this task while it waits for the ways.
                up_writer.transport.abort()
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opening = asyncio.create_task(asyncio.open_connection("127.0.0.1", self.target_port))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # A connection that is made while the proxy closes would be left open.
            with contextlib.suppress(OSError):
                (await opening)[1].transport.abort()
            raise

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        limit: int | None,
        *,
        is_down: bool = False,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(64 << 10):
                await self._may_pass.wait()
                if is_down and self._changes_next:
                    self._changes_next = False
                    data = data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]
                if limit is not None:
                    data, limit = data[:limit], limit - len(data)
                writer.write(data)
                await writer.drain()
                if limit is not None and limit <= 0:
                    self.cut_count += 1
                    return

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()


@contextlib.asynccontextmanager
async def pair_of(
    folder: Path,
    *,
    is_plain: bool = False,
    seed: int | None = None,
    limits: HaLimits = LIMITS,
    master_changes: dict[str, Any] | None = None,
    slave_changes: dict[str, Any] | None = None,
    trust: LinkTrust | None = None,
    slave_trust: LinkTrust | None = None,
    in_sync: InSyncRules | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Pair]:
    """A pair whose slave begins to follow at once; the settings of its stores may differ."""
    clock = clock or SystemClock()
    trust = trust or LinkTrust(secret=SECRET, takes_plain=is_plain)
    loop = asyncio.get_running_loop()
    master_store = MessageStore.open(
        store_config(folder / "master", **(master_changes or {})),
        on_flushed=lambda end: loop.call_soon_threadsafe(master.flushed),
    )
    slave_store = MessageStore.open(
        store_config(folder / "slave", **(slave_changes or {})),
        follows=True,
        on_flushed=lambda end: loop.call_soon_threadsafe(slave.flushed),
    )
    master = HaMaster(
        master_store,
        HaMasterConfig(
            identity=identity(0),
            trust=trust,
            limits=limits,
            in_sync=in_sync or InSyncRules(),
            listen_address="127.0.0.1",
            listen_port=0,
        ),
        clock,
    )
    slave = HaSlave(
        slave_store,
        HaSlaveConfig(
            identity=identity(1), trust=slave_trust or trust, limits=limits, is_plain=is_plain
        ),
        clock,
        on_appended=lambda: slave_store.dispatch() and None,
    )
    proxy = CuttingProxy(seed)
    try:
        port = await proxy.listen(await master.start())
        slave.follow(f"127.0.0.1:{port}")
        await slave.start()
        yield Pair(master_store, slave_store, master, slave, proxy)
    finally:
        await slave.stop()
        await proxy.close()
        await master.stop()
        # The last callbacks of the flushers run before their stores close.
        await asyncio.sleep(0)
        slave_store.close()
        master_store.close()
