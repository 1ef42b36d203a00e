"""The broker put together: store, tables, handlers, periodic jobs and the listening ports.

One event loop thread owns everything; the store's own threads flush, prepare and checkpoint. A
tick is: frames of all connections, one append run, wake-ups, one write per connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
import threading
import time

from contrail.broker.access_config import AccessConfig
from contrail.broker.access_copies import CopiesNeed
from contrail.broker.access_side import AccessSide, BrokerFacts, MeteredNeed
from contrail.broker.config import BrokerConfig, FastPath
from contrail.broker.families import FamiliesNeed, Family, handler_families
from contrail.broker.fast.path import FastNeed, fast_path
from contrail.broker.handlers.broker_admin import BrokerAdminHandlers
from contrail.broker.handlers.busy_pulls import BusyPulls
from contrail.broker.handlers.pull import PullHandler
from contrail.broker.handlers.relays import RelayHandlers
from contrail.broker.handlers.send import SendHandler
from contrail.broker.handlers.system_guard import guarded
from contrail.broker.intake import Intake
from contrail.broker.jobs import register_jobs
from contrail.broker.kinds_need import KindsNeed
from contrail.broker.message_kinds import MessageKinds
from contrail.broker.metric_sources import broker_metrics
from contrail.broker.pop_side import PopBegins
from contrail.broker.replica_side import SideNeed
from contrail.broker.replica_wiring import RoleTerms, replica_side
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.access_table import AccessTable, FirstUser, load_access_table
from contrail.broker.services.acknowledgements import FlushNews
from contrail.broker.services.creation_times import CreationTimes
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.deriving import Deriving
from contrail.broker.services.escape_ledger import load_escaped
from contrail.broker.services.far_reads import FarReads
from contrail.broker.services.group_changes import GroupChanges
from contrail.broker.services.kv_store import require_no_kv_store
from contrail.broker.services.pull_admission import PullAdmission
from contrail.broker.services.recall_key import load_recall_key
from contrail.broker.services.registration import Registration
from contrail.broker.services.route_cache import RouteCache
from contrail.broker.services.runtime_report import RuntimeReport
from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.services.send_dedupe import SendDedupe
from contrail.broker.services.sliced_requests import StoreSlicedRequests
from contrail.broker.services.topics import batch_topics
from contrail.broker.services.trace_records import TraceRecords
from contrail.broker.services.unique_ids import UniqueIds
from contrail.broker.state.placement import TimerRules
from contrail.broker.state.recall_seal import KEY_BYTES, RecallKey, RecallSeal
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.errors import RecordDamaged, StorePoisoned, StoreReadOnly
from contrail.model.host import Host, pack_host
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import ResponseCode
from contrail.protocol.json_style import MessageQueue
from contrail.protocol.prometheus_text import MetricsExporter
from contrail.runtime.files import FileSystem
from contrail.runtime.memory import memory_bytes
from contrail.runtime.schedule import Schedule
from contrail.store import Arrival, MessageStore, StoreConfig
from contrail.wire.caller import Caller
from contrail.wire.limits import Limits
from contrail.wire.peer import Handler
from contrail.wire.request_times import RequestTimes
from contrail.wire.router import RequestRouter, parse_networks
from contrail.wire.server import FAST_PORT_DISTANCE, Server, bind_pair, bind_together
from contrail.wire.text_endpoint import TextEndpoint, open_metrics
from contrail.wire.tls import TlsFiles, TlsMode

_log = logging.getLogger(__name__)

_SCHEDULE_POLL_S_MAX = 1.0
_LAST_FLUSH_MS_MAX = 30_000
# Of a first user's random password.
PASSWORD_BYTES = 24
_SCHEDULE_POLL_S_MIN = 0.001


class Broker:
    """One broker: one folder, one log, two ports."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock,
        files: FileSystem | None = None,
        limits: Limits | None = None,
        tls_mode: TlsMode = TlsMode.DISABLED,
        tls_files: TlsFiles | None = None,
        replication: ReplicationConfig | None = None,
        access: AccessConfig | None = None,
    ) -> None:
        self._config = config
        self._replication = replication or ReplicationConfig()
        self._store_config = store_config
        self._clock = clock
        self._files = files or FileSystem()
        self._limits = limits or Limits()
        self._tls_mode = tls_mode
        self._tls_files = tls_files
        self._role = RoleTerms(config, self._replication)
        self._access_config = access or AccessConfig()
        # The user that was made because there was none, for the operator.
        self.first_user: FirstUser | None = None
        # Quotas are counted over decoded requests.
        self._is_fast = (
            config.fast_path is FastPath.ON
            and self._role.may_go_fast
            and not self._access_config.quotas.is_on
        )
        self._ticker: asyncio.Task[None] | None = None
        self._flushes = FlushNews()
        self._tells_flushes = False
        self._flush_is_told = False
        self._abandoned = threading.Event()
        self._times: RequestTimes | None = None
        self.metrics: TextEndpoint | None = None
        self.failed: asyncio.Event = asyncio.Event()

    # Life.

    async def start(self) -> None:
        """Recover the store, listen, register with the NameServers.

        Raises:
            ConfigError: a port cannot be bound.
            StoreError: the store cannot be opened.
            OpeningAbandoned: ``abandon_start`` was called meanwhile.
        """
        config = self._config
        main, fast = self._bind()
        try:
            self.port = main.getsockname()[1]
            self.address = str(Host(config.broker_ip, self.port))
            self._loop = asyncio.get_running_loop()
            await self._loop.run_in_executor(None, self._open)
        except BaseException:
            main.close()
            fast.close()
            raise
        self._wire()
        try:
            await self.replicas.listen()
            await self._loop.run_in_executor(None, self._recall)
        except BaseException:
            main.close()
            fast.close()
            await self.replicas.close()
            await self._caller.close()
            await self._loop.run_in_executor(None, self.store.close)
            raise
        self._ticker = asyncio.create_task(self._run_schedule(), name="broker-schedule")
        try:
            await self.replicas.begin()
        except BaseException:
            main.close()
            fast.close()
            await self.stop()
            raise
        await self._serve(main, fast)
        await self._open_metrics()
        _log.info("broker %r serves %s", config.broker_name, self.address)
        await self.registration.register_now()

    def _bind(self) -> tuple[socket.socket, socket.socket]:
        """The main and the fast port; free ones are chosen so that peers' port is free too."""
        config, distances = self._config, self._role.port_distances
        if config.listen_port or not distances:
            return bind_pair(config.listen_address, config.listen_port)
        main, fast, *others = bind_together(
            config.listen_address, 0, (-FAST_PORT_DISTANCE, *distances)
        )
        for one in others:
            one.close()
        return main, fast

    def abandon_start(self) -> None:
        """Have ``start`` end soon, although the store is not open yet; any thread."""
        self._abandoned.set()

    async def _serve(self, main: socket.socket, fast: socket.socket) -> None:
        await self.server.serve(main)
        await self.server.serve(fast, is_fast_port=True)

    async def _open_metrics(self) -> None:
        if self._times is None:
            return
        config = self._config
        metrics = broker_metrics(
            tables=self.tables,
            store=self.store,
            store_config=self._store_config,
            stats=self.stats,
            kinds=self.kinds,
            far_reads=self.far_reads,
            ways=self.ways,
            creations=self._creations,
            times=self._times,
            clock=self._clock,
            work_sizes=lambda: {
                "send": len(self._acknowledgements),
                "pull": len(self.pulls.cold_reads),
                "query_message": len(self.far_reads),
            },
            replication=self.replicas.status,
        )
        self.metrics = await open_metrics(
            metrics.pieces, address=config.metrics_address, port=config.metrics_port
        )

    async def stop(self) -> None:
        """Leave the NameServers, answer waiting requests, write tables, close. Twice is once."""
        if self._ticker is None:
            return
        ticker, self._ticker = self._ticker, None
        await self.replicas.leave()
        await self.registration.unregister()
        self.intake.guards.go_away()
        ticker.cancel()
        await asyncio.gather(ticker, return_exceptions=True)
        if self.metrics is not None:
            await self.metrics.stop()
        await self.pulls.release_all()
        self.kinds.pop.stop()
        self._sliced.close()
        self.tables.expressions.close()
        self.far_reads.close()
        await self._relays.close()
        await self.access.close()
        await self.replicas.rest()
        await self.kinds.close()
        await self._settle()
        await self.tables.persistence.settled()
        await self.replicas.close()
        await self.server.stop()
        await self._caller.close()
        self._deriving.close()
        await self._loop.run_in_executor(None, self._make_durable)
        try:
            await self.tables.persistence.close()
        finally:
            await self._loop.run_in_executor(None, self.store.close)
        _log.info("broker %r has stopped", self._config.broker_name)

    async def _settle(self) -> None:
        """Answer sends that wait for their sync; their time is bounded by its timeout."""
        self.intake.store_collected()
        if self._traces is not None:
            self._traces.close()
        # By the loop's time: an injected clock may stand still.
        deadline_s = self._loop.time() + self._store_config.sync_flush_timeout_ms / 1000
        while self._acknowledgements and self._loop.time() < deadline_s:
            self.intake.take_flushed()
            await asyncio.sleep(0.002)
        if self.store.poisoned is None:
            self._acknowledgements.give_up()
        self._acknowledgements.fail()

    def _recall(self) -> None:
        """Learn from the log the state before the last stop; off the loop, for it may take long."""
        if self._role.delivers:
            self.tables.topics.restore(self.store.queues(), self._clock.now_ms())
        self.kinds.recover()
        self.store.go_on()
        self._dedupe.rebuild()

    def _make_durable(self) -> None:
        """Cursors are written only as far as the log is durable; Apache's broker reads no other."""
        try:
            self.store.wait_flushed(self.store.physical_end, _LAST_FLUSH_MS_MAX)
        except StorePoisoned:
            _log.warning("the log could not be made durable: cursors stay where they were")
        self.kinds.close_files()

    def _open(self) -> None:
        """Load the tables and recover the store; runs off the loop, for it may take long."""
        require_no_kv_store(self._files, self._store_config.root)
        self._role.prepare_folder(self._files, self._store_config)
        self.tables = Tables.load(self._config, self._store_config, self._files, self._clock)
        self._users = self._load_users() if self._access_config.is_on else None
        self._escaped = load_escaped(self._files, self._store_config.root)
        self._recall_seal = RecallSeal(self._recall_key(), secrets.token_bytes)
        self._store_host = pack_host(self._config.broker_ip, self.port)
        self.store = MessageStore.open(
            self._store_config,
            clock=self._clock,
            files=self._files,
            on_arrival=self._on_arrival,
            on_flushed=self._on_flushed,
            on_poisoned=self._on_poisoned,
            store_host=self._store_host,
            batch_topics=batch_topics(self.tables.topics.table.topics),
            is_abandoned=self._abandoned.is_set,
            follows=not self._role.leads,
            in_group=self._role.in_group,
        )
        self.tables.batch_topics.sink = self.store.add_batch_topic
        self.tables.batch_topics.check_sink = self.store.check_batch_topic

    def _load_users(self) -> AccessTable:
        key = self._access_config.wrapping_key()
        table, self.first_user = load_access_table(
            self._files,
            self._store_config.root,
            first_user=self._access_config.first_user,
            inner=self._access_config.inner,
            new_password=lambda: secrets.token_urlsafe(PASSWORD_BYTES),
            key=key,
        )
        return AccessTable(table, self.tables.persistence, key=key)

    def _recall_key(self) -> RecallKey:
        key = load_recall_key(
            self._files,
            self._store_config.root,
            now_ms=self._clock.now_ms(),
            new_secret=secrets.token_bytes(KEY_BYTES),
        )
        return self._role.recall_key(key)

    # Wiring.

    def _wire(self) -> None:
        if self._config.metrics_exporter is MetricsExporter.PROM:
            self._times = RequestTimes(time.monotonic)
        self._wire_access()
        self._wire_services()
        self._creations = CreationTimes(self.tables.topics.is_system)
        self._wire_replicas()
        handlers = guarded(self._handlers(), self.tables.topics.names)
        handlers = self.replicas.gated(handlers)
        handlers = self.tables.expressions.guarded(handlers)
        handlers = self.access.metered(
            MeteredNeed(
                pulls=self.pulls,
                pop=self.kinds.pop,
                loop=self._loop,
                finish=lambda request, peer, work: self.router.finish(request, peer, work),
            ),
            handlers,
        )
        self._wire_routers(self._creations.timed(handlers))
        self.intake = self._make_intake()
        self.intake.lacks_slaves = self.replicas.lacks_slaves
        self.server = Server(
            self.intake,
            limits=self._limits,
            property_suffix=self._admission.property_suffix,
            # Signatures are checked over decoded fields, or over bytes before the decoder.
            decodes_all=not self._is_fast or self._access_config.is_on,
            tls_mode=self._tls_mode,
            tls_files=self._tls_files,
        )
        self.server.times = self._times
        self.replicas.guard(self.intake.guards)
        self._wire_fast_path()
        self.access.guard(self.intake)
        self.schedule = self._make_schedule()

    def _wire_access(self) -> None:
        facts = BrokerFacts(
            cluster_name=self._config.cluster_name,
            has=lambda topic: self.tables.topics.table.get(topic) is not None,
            topics_of_sink=lambda sink_id: self.kinds.sinks.topics_of(sink_id),
        )
        self.access = AccessSide(
            self._access_config,
            self._users,
            facts,
            self._clock,
            root=self._store_config.root,
        )
        self.access.watch(self._rights_changed)

    def _rights_changed(self) -> None:
        self.pulls.held.check_held()
        self.kinds.pop.check_waiting(self.access.may_stay)

    def _make_intake(self) -> Intake:
        return Intake(
            self.router,
            self.kinds,
            self._deriving,
            self._acknowledgements,
            self._flushes,
            self.store,
            self.changes,
        )

    def _wire_fast_path(self) -> None:
        need = FastNeed(
            settings=self.tables.settings,
            store=self.store,
            stats=self.stats,
            server=self.server,
            router=self.router,
            deriving=self._deriving,
            acknowledgements=self._acknowledgements,
            consumer_offsets=self.tables.consumer_offsets,
            ways=self.ways,
            is_watched=self._traces is not None,
        )
        self.fast = fast_path(
            need,
            self.sends,
            self._admission,
            self.pulls,
            self._pull_admission,
            is_on=self._is_fast,
            guards=self.intake.guards,
            serve=self.intake.serve,
        )
        busy = BusyPulls(self.tables.settings, self.server)
        self.intake.begin(self.server, busy, self.fast)

    def _wire_routers(self, handlers: dict[int, Handler]) -> None:
        networks = parse_networks(self._config.cluster_allow_list)
        self.router = RequestRouter(
            self.far_reads.guarded(handlers),
            error_codes=_ERROR_CODES,
            cluster_networks=networks,
            admin_networks=parse_networks(self._access_config.admin_networks),
            in_flight_count_max=self._limits.in_flight_count_max,
        )
        # Requests resumed after a disk read were already admitted.
        again = RequestRouter(
            handlers,
            error_codes=_ERROR_CODES,
            cluster_networks=networks,
            admin_networks=parse_networks(self._access_config.admin_networks),
            in_flight_count_max=sys.maxsize,
        )
        again.counts = self.router.counts
        self.far_reads.begin(again.handle, self._loop)
        self._sliced.replies_by(self.router.finish)
        guarded = self.far_reads.guarded(handlers)
        self.kinds.pop.serve_by(
            lambda request, peer: again.finish(
                request,
                peer,
                lambda: self.access.served_again(guarded[request.code], request, peer),
            )
        )
        self.tables.expressions.begin(self._loop, self.router.finish)

    def _wire_services(self) -> None:
        tables, clock = self.tables, self._clock
        self.stats = BrokerStats(
            self._config.cluster_name,
            started_ms=clock.now_ms(),
            utc_offset_ms=_utc_offset_ms(),
            is_system=tables.topics.is_system,
        )
        self.ways = Ways()
        self._dedupe = SendDedupe(tables.topics, self.store, clock)
        self._admission = SendAdmission(
            tables.settings,
            tables.topics,
            tables.groups,
            tables.locks,
            UniqueIds(self._store_host[:-4], clock),
            clock,
            level_max=len(self._store_config.delay_table) - 1,
            timers=self._timer_rules(),
            seal=self._recall_seal,
            memories=self._dedupe.memories,
            remembers=self._is_fast,
            takes_plain_only=self._role.in_group,
        )
        self._acknowledgements = self._role.acknowledgements(self._store_config, clock)
        self.far_reads = FarReads(self.store, after=self._flush_tick)
        self.kinds = self._message_kinds()
        traces = self._config.broker_trace_enabled and self._role.delivers
        self._traces = self._trace_records() if traces else None
        self._caller = Caller(on_lost=self._lost_name_server, credentials=self._access_config.inner)
        self.registration = Registration(
            tables.settings,
            tables.topics,
            self._caller,
            address=self.address,
            ha_address=self._role.ha_address(self.port),
            now_ms=clock.now_ms,
            on_master=lambda *addresses: self.replicas.take_master(*addresses),
            terms=self._role.registration_terms,
        )
        self.changes = GroupChanges(
            producers=tables.producers,
            consumers=tables.consumers,
            filters=tables.filters,
            locks=tables.locks,
            settings=tables.settings,
            clock=clock,
        )
        tables.topics.on_change.append(self._topic_changed)
        tables.topics.before_delete.append(self._store_admitted)
        tables.topics.on_delete.append(self._topic_deleted)
        tables.groups.on_change.append(lambda group: tables.persistence.flush_soon())
        tables.groups.on_set.append(lambda group: self.pulls.held.check_held(group))
        tables.settings.watch(lambda: self.pulls.held.check_held())

    def _wire_replicas(self) -> None:
        self.replicas = replica_side(
            SideNeed(
                config=self._config,
                replication=self._replication,
                store=self.store,
                store_config=self._store_config,
                clock=self._clock,
                address=self.address,
                ha_address=self._role.ha_address(self.port),
                ha_port=self._replication.ha_port(self.port),
                tls_files=self._tls_files,
                tables=self.tables,
                kinds=self.kinds,
                deliveries=self._deliveries,
                caller=self._caller,
                registration=self.registration,
                acknowledgements=self._acknowledgements,
                flushes=self._flushes,
                tick=lambda: self.server.schedule_tick(),
                loop=self._loop,
                derive=lambda: self._deriving.catch_up(),
                derive_soon=lambda: self._deriving.after_tick(),
                fail=self.failed.set,
                files=self._files,
                dedupe=self._dedupe,
            )
        )
        self._tells_flushes = self.replicas.wants_flushes
        self.access.share(
            CopiesNeed(
                replication=self._replication,
                in_group=self._role.in_group,
                address=self.address,
                caller=self._caller,
                leader=self.replicas.leader_of_users,
                clock=self._clock,
            )
        )

    def _timer_rules(self) -> TimerRules:
        config = self._store_config
        return TimerRules(config.timer_enabled, config.timer_precision_ms, config.timer_delay_s_max)

    def _lost_name_server(self, address: str) -> None:
        self.registration.lost(address)

    def _make_deliveries(self) -> Deliveries:
        return self._role.deliveries(
            self.store,
            self.stats,
            self._escaped,
            self._clock,
            on_appended=self._flush_tick,
            caller=lambda: self._caller,
            name_servers=lambda: self.registration.name_servers,
        )

    def _message_kinds(self) -> MessageKinds:
        self._deliveries = self._make_deliveries()
        return MessageKinds(
            KindsNeed(
                tables=self.tables,
                store=self.store,
                store_config=self._store_config,
                files=self._files,
                admission=self._admission,
                deliveries=self._deliveries,
                escaped=self._escaped,
                answers=self._acknowledgements,
                far_reads=self.far_reads,
                stats=self.stats,
                clock=self._clock,
                address=self.address,
                store_host=self._store_host,
                timer_rules=self._timer_rules(),
                recall_seal=self._recall_seal,
                ways=self.ways,
                leads=self._role.delivers,
                in_group=self._role.in_group,
                records=self.access.records,
                may_check=self.access.may_check,
                busy_reason=lambda: self.sends.busy_reason(self.server.waited_s * 1000),
                # A flush asked for during a tick is part of it: the next tick comes after.
                wake=lambda: self._loop.call_soon(self._flush_tick),
            )
        )

    def _trace_records(self) -> TraceRecords:
        return TraceRecords(
            self.tables.settings,
            self.tables.topics,
            Deliveries(self.store, self.stats, on_appended=self._flush_tick),
            UniqueIds(self._store_host[:-4], self._clock),
            self._clock,
            store_host=self._store_host,
        )

    def _topics_changed(self) -> None:
        self.tables.persistence.flush_soon()
        self.registration.register_soon()

    def _topic_changed(self, config: TopicConfig) -> None:
        """Queues may be gone, or may not be read any more: answer the pulls held there."""
        self._topics_changed()
        self._wake_topic(config.topic.encode())

    def _wake_topic(self, topic: bytes) -> None:
        """Answer what waits for a topic: it was changed, reset or deleted."""
        self.pulls.held.wake_topic(topic)
        self.kinds.pop.wake_topic(topic.decode("utf-8", "replace"))

    def _store_admitted(self) -> None:
        """Store the admitted sends, so that a deletion takes them along."""
        self.intake.store_collected()
        self._deriving.catch_up()

    def _topic_deleted(self, topic: str) -> None:
        self._topics_changed()
        self._wake_topic(topic.encode())

    def _handlers(self) -> dict[int, Handler]:
        self.sends = self._send_handler()
        self.pulls = self._pull_handler()
        self.pulls.redirect = self.replicas.redirect
        self.pulls.require_still = self.access.require_still
        self.pulls.keeps_progress = self._role.leads
        held = self.pulls.held.parked
        self.kinds.pop.begin(PopBegins(read=self.pulls.read, watched=held, loop=self._loop))
        parked = held.by_queue
        self.store.watch(parked)
        self._deriving = Deriving(self.store, parked, self._loop, on_broken=self.failed.set)
        self._sliced = StoreSlicedRequests(self._loop, self.store.disk_waits, self.far_reads)
        self._relays = RelayHandlers(
            settings=self.tables.settings,
            consumers=self.tables.consumers,
            groups=self.tables.groups.table,
            topics=self.tables.topics.table,
            store=self.store,
            records=self.access.records,
        )
        need = FamiliesNeed(
            tables=self.tables,
            store=self.store,
            stats=self.stats,
            changes=self.changes,
            sliced=self._sliced,
            clock=self._clock,
            address=self.address,
            broker_name=self._config.broker_name,
            records=self.access.records,
            routes=self._route_cache(),
            wake=self._wake_topic,
            waiting=self.kinds.waiting,
            delete_queues=self.replicas.delete_queues,
            delete_unused=self.replicas.delete_unused,
        )
        families: tuple[Family, ...] = (
            self.sends,
            self.pulls,
            self._relays,
            self.replicas,
            *handler_families(need),
            self._admin_handlers(),
            self.access,
            self.kinds,
        )
        return {code: handler for family in families for code, handler in family.table().items()}

    def _route_cache(self) -> RouteCache:
        return RouteCache(
            lambda: self._caller,
            lambda: self.registration.name_servers,
            self._own_queues,
            self._clock,
        )

    def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        config = self.tables.topics.table.get(topic)
        if config is None or not config.readable:
            return None
        name = self._config.broker_name
        return [MessageQueue(topic, name, number) for number in range(config.read_queue_count)]

    def _send_handler(self) -> SendHandler:
        return SendHandler(
            self.tables.settings,
            self._admission,
            self.store,
            self._acknowledgements,
            self.stats,
            self._clock,
            store_host=self._store_host,
            on_stored=self._traces.watch if self._traces is not None else None,
            times=self._times,
            # With a checksum in every record a half message is not stored as it came.
            recent_halves=None
            if self._store_config.record_crc_enabled or not self._is_fast
            else self.kinds.transactions.recent,
            waited_ms=lambda: self.server.waited_s * 1000,
            ways=self.ways,
        )

    def _pull_handler(self) -> PullHandler:
        tables = self.tables
        self._pull_admission = PullAdmission(
            tables.settings,
            tables.topics,
            tables.groups,
            tables.consumers,
            tables.filters,
            self._clock,
            offsets=tables.consumer_offsets,
            remembers=self._is_fast and not self._access_config.is_on,
            expressions=tables.expressions,
        )
        return PullHandler(
            tables.settings,
            self._pull_admission,
            self.store,
            tables.consumer_offsets,
            self.stats,
            self._clock,
            self._loop,
            memory_bytes=memory_bytes(),
            ways=self.ways,
        )

    def _admin_handlers(self) -> BrokerAdminHandlers:
        tables = self.tables
        report = RuntimeReport(
            tables.settings,
            self.stats,
            self.store,
            self._store_config,
            files=self._files,
            work_sizes=lambda: {
                "send": len(self._acknowledgements),
                "pull": len(self.pulls.held.parked),
            },
            is_active=lambda: self.store.poisoned is None,
            delay_queue_offsets=self.kinds.delays.queue_offsets,
            damaged=self.store.damage.known,
            ways=self.ways,
        )
        return BrokerAdminHandlers(
            tables.settings,
            self.stats,
            tables.consumer_offsets,
            report,
            self._store_config,
            clock=self._clock,
            delay_offsets=self.kinds.delays.offset_table,
            log_end=lambda: self.store.physical_end,
            on_permission_changed=self._permission_changed,
            in_slices=self._sliced.handler,
            changes=tables.setting_changes,
            replication=self._replication,
        )

    def _permission_changed(self, now_ms: int) -> None:
        self.tables.topics.table.touch(now_ms)
        self.registration.register_soon()

    def _make_schedule(self) -> Schedule:
        schedule = Schedule(self._clock.now_ms())
        register_jobs(
            schedule,
            tables=self.tables,
            store=self.store,
            stats=self.stats,
            acknowledgements=self._acknowledgements,
            changes=self.changes,
            registration=self.registration,
            held=self.pulls.held,
            sweep_pulls=self.fast.pulls.sweep,
            clock=self._clock,
        )
        self.kinds.register(schedule)
        self.replicas.register(schedule)
        self.access.register(schedule)
        if self._traces is not None:
            self._traces.register(schedule)
        if self._tls_files is not None:
            schedule.every(10_000, self._reload_certificates, name="certificates")
        return schedule

    def _reload_certificates(self, now_ms: int) -> None:
        assert self._tls_files is not None
        if self._tls_files.reload_if_changed():
            _log.info("new certificates are in use")

    async def _run_schedule(self) -> None:
        while True:
            now_ms = self._clock.now_ms()
            self.run_due(now_ms)
            wait_s = self.schedule.due_in_ms(now_ms) / 1000
            await asyncio.sleep(min(max(wait_s, _SCHEDULE_POLL_S_MIN), _SCHEDULE_POLL_S_MAX))

    def run_due(self, now_ms: int) -> None:
        """Run the periodic jobs that are due; a test that moves the clock calls this after."""
        if self._deriving.is_behind:
            self._deriving.catch_up()
        self.schedule.run_due(now_ms)

    # Events of the store.

    def _on_arrival(self, arrivals: list[Arrival]) -> None:
        self.pulls.held.arrived(arrivals)
        self.kinds.pop.arrived(arrivals)

    def _on_flushed(self, physical_end: int) -> None:
        """Called on the flusher's thread."""
        if self._tells_flushes:
            if not self._flush_is_told:
                self._flush_is_told = True
                self._loop.call_soon_threadsafe(self._tell_replicas)
        elif self._store_config.syncs_before_ack and not self._flushes.is_noted:
            self._flushes.is_noted = True
            self._loop.call_soon_threadsafe(self._flush_tick)

    def _tell_replicas(self) -> None:
        """Peers first: most answers wait for them, and a sync that lets none go needs no tick."""
        self._flush_is_told = False
        self.replicas.flushed()
        if not self._store_config.syncs_before_ack:
            return
        if self._acknowledgements.lets_go(self.store.acknowledged_end) or (
            self.replicas.lacks_slaves()
        ):
            self._flushes.is_noted = True
            self._flush_tick()
        else:
            self._deriving.after_tick()

    def _flush_tick(self) -> None:
        self.server.schedule_tick()

    def _on_poisoned(self, failure: StorePoisoned) -> None:
        """Called on the thread that met the failure: nothing is acknowledged from now on."""
        _log.critical("%s", failure)
        self._loop.call_soon_threadsafe(self._after_poisoning)

    def _after_poisoning(self) -> None:
        self._acknowledgements.fail()
        self.failed.set()


_ERROR_CODES = {
    StorePoisoned: ResponseCode.SERVICE_NOT_AVAILABLE,
    StoreReadOnly: ResponseCode.SERVICE_NOT_AVAILABLE,
    RecordDamaged: ResponseCode.SYSTEM_ERROR,
}


def _utc_offset_ms() -> int:
    return time.localtime().tm_gmtoff * 1000
