"""The NameServer put together: tables, handlers, periodic jobs and the listening port."""

from __future__ import annotations

import asyncio
import logging
import time

from contrail.clock import Clock
from contrail.model.host import Host
from contrail.nameserver.changes import ROWS_PER_TURN, RouteChanges, RunningLoop, WorkerThread
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.handlers import (
    KvChanges,
    KvHandlers,
    RegistrationHandlers,
    RouteHandlers,
    SettingsChanges,
    SettingsHandlers,
)
from contrail.nameserver.metrics import NameServerMetrics
from contrail.nameserver.saver import FileSaver
from contrail.nameserver.state.kv import KvTable, decode_kv
from contrail.nameserver.state.routes import RouteTables
from contrail.nameserver.state.settings import RuntimeSettings
from contrail.protocol.bodies.properties_text import render_properties
from contrail.protocol.command import ReceivedResponse, Request
from contrail.protocol.frames import Frames
from contrail.protocol.prometheus_text import MetricsExporter
from contrail.runtime.durable_changes import DurableChanges
from contrail.runtime.files import FileSystem
from contrail.runtime.quarantine import quarantine
from contrail.runtime.schedule import Schedule
from contrail.runtime.state_file import read_state
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.peer import Handler, Peer
from contrail.wire.request_times import RequestTimes
from contrail.wire.router import RequestRouter, parse_networks
from contrail.wire.server import Arrived, Server
from contrail.wire.sliced_requests import SlicedRequests
from contrail.wire.text_endpoint import TextEndpoint, open_metrics
from contrail.wire.tls import TlsFiles, TlsMode

_log = logging.getLogger(__name__)

_TLS_RELOAD_INTERVAL_MS = 10_000
# The longest wait for the next job: an injected clock may be moved at any time.
_SCHEDULE_POLL_S_MAX = 1.0


class NameServer:
    """One NameServer. NameServers do not call each other; brokers register with each."""

    def __init__(
        self,
        config: NameServerConfig,
        *,
        clock: Clock,
        files: FileSystem | None = None,
        limits: Limits | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        tls_files: TlsFiles | None = None,
    ) -> None:
        self._clock = clock
        self._files = files or FileSystem()
        self._settings = RuntimeSettings(config)
        self._kv = KvTable()
        self._kv_saver = FileSaver(config.kv_config_path, self._kv_document, self._files)
        self._kv_changes: KvChanges = DurableChanges(self._kv_saver.when_written)
        self._settings_saver = FileSaver(
            config.config_store_path, self._settings_document, self._files
        )
        self._setting_changes: SettingsChanges = DurableChanges(self._settings_saver.when_written)
        self._port: int | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._tls_files = tls_files
        loop = RunningLoop()
        self.changes = RouteChanges(loop, WorkerThread())
        self._sliced = SlicedRequests(loop, rows_per_turn=ROWS_PER_TURN)
        self.tables = RouteTables(self.changes.clean)
        self.handlers = self._make_handlers()
        self.router = RequestRouter(
            self.handlers,
            cluster_networks=parse_networks(config.cluster_allow_list),
            in_flight_count_max=(limits or Limits()).in_flight_count_max,
        )
        self.changes.replies_by(self.router.finish, self.router.handle)
        self._sliced.replies_by(self.router.finish)
        self.server = Server(self, limits=limits, tls_mode=tls_mode, tls_files=tls_files)
        self.metrics: TextEndpoint | None = None
        self.schedule = self._make_schedule()

    @property
    def config(self) -> NameServerConfig:
        """The current settings."""
        return self._settings.config

    @property
    def address(self) -> str:
        """``ip:port`` of the listening socket; only after ``start``."""
        assert self._port is not None
        return str(Host(self.config.listen_address, self._port))

    async def start(self) -> None:
        """Load the KV table, then listen.

        Raises:
            ConfigError: the address cannot be listened on.
            StateFileDamaged: the KV file and its backup are both unreadable.
        """
        await self._load_kv()
        times = self._make_times()
        self._port = await self.server.listen(self.config.listen_address, self.config.listen_port)
        self._ticker = asyncio.create_task(self._run_schedule(), name="nameserver-schedule")
        if times is not None:
            await self._open_metrics(times)
        _log.info("NameServer listens on %s", self.address)

    def _make_times(self) -> RequestTimes | None:
        if self.config.metrics_exporter is MetricsExporter.PROM:
            self.server.times = RequestTimes(time.monotonic)
        return self.server.times

    async def _open_metrics(self, times: RequestTimes) -> None:
        config = self.config
        metrics = NameServerMetrics(
            self.tables,
            self.server,
            times,
            self.router.counts,
            node_id=self.address,
            labels=config.metrics_labels,
        )
        self.metrics = await open_metrics(
            metrics.pieces, address=config.metrics_address, port=config.metrics_port
        )

    async def stop(self) -> None:
        """Tell clients to go away, finish the running file writes, close all connections."""
        self.router.is_going_away = True
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self.metrics is not None:
            await self.metrics.stop()
        await self._kv_saver.drain()
        await self._settings_saver.drain()
        self.changes.close()
        self._sliced.close()
        await self.server.stop()

    # Called by the server.

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        """No request to a NameServer joins a run."""
        return at

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        """Every request to a NameServer waits for the tick."""
        return frames

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        if peer.is_closed:
            # A broker that registered and closed its connection must not stay in the routes.
            return len(frames)
        for count, frame in enumerate(frames, start=1):
            if isinstance(frame, Request):
                self.changes.take(frame, peer)
            elif not isinstance(frame, ReceivedResponse):
                # A send that the kernel took apart: refused like every code without a handler.
                opaque, flag, version, code = frame[:4]
                self.changes.take(Request(code, opaque, {}, flag=flag, version=version), peer)
            if self.server.monotonic_s() >= until_s:
                return count
        return len(frames)

    def end_of_tick(self) -> None:
        """Nothing is left to do: the handlers have answered every request of the tick."""

    def connection_opened(self, peer: Connection) -> None:
        """A peer is unknown until it registers."""

    def connection_closed(self, peer: Peer, reason: str = "") -> None:
        """A broker that loses its connection is out of all routes at once."""
        for key in self.tables.disconnect(peer):
            _log.warning("broker %r of cluster %r is gone: %s", key.address, key.cluster, reason)

    def _make_handlers(self) -> dict[int, Handler]:
        families = (
            RegistrationHandlers(self.tables, self._kv, self._settings, self._clock, self.changes),
            RouteHandlers(
                self.tables,
                self._kv,
                self._settings,
                self._clock,
                self.changes,
                self._sliced.handler,
            ),
            KvHandlers(self._kv, self._kv_changes),
            SettingsHandlers(self._settings, self._setting_changes),
        )
        return {code: handler for family in families for code, handler in family.table().items()}

    def _kv_document(self) -> bytes:
        changes = self._kv_changes.planned()
        return self._kv.encode(entry for change in changes for entry in change.entries.items())

    def _settings_document(self) -> bytes:
        texts = self.config.to_properties()
        for change in self._setting_changes.planned():
            texts |= {name: text for name, text in change.entries.items() if text is not None}
        return render_properties(texts).encode()

    def _make_schedule(self) -> Schedule:
        schedule = Schedule(self._clock.now_ms())
        schedule.every(self.config.scan_interval_ms, self._evict_silent, name="evict brokers")
        if self._tls_files is not None:
            schedule.every(
                _TLS_RELOAD_INTERVAL_MS, self._reload_certificates, name="reload certificates"
            )
        return schedule

    def _evict_silent(self, now_ms: int) -> None:
        for key, connection in self.tables.expire(now_ms):
            _log.warning("broker %r of cluster %r is silent: evicted", key.address, key.cluster)
            connection.close("heartbeat_missing")

    def _reload_certificates(self, now_ms: int) -> None:
        assert self._tls_files is not None
        if self._tls_files.reload_if_changed():
            _log.info("new certificates are in use")

    async def _load_kv(self) -> None:
        path = self.config.kv_config_path
        found = await asyncio.to_thread(
            read_state, self._files, path, sealed=False, parse=decode_kv
        )
        if found.problem is not None:
            _log.warning("%s", found.problem)
        if found.value is not None:
            await asyncio.to_thread(quarantine, self._files, path, found.value.refused)
            self._kv.fill(found.value.namespaces)

    async def _run_schedule(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            self.schedule.run_due(now_ms)
            wait_s = self.schedule.due_in_ms(now_ms) / 1000
            await asyncio.sleep(min(max(wait_s, 0.01), _SCHEDULE_POLL_S_MAX))
