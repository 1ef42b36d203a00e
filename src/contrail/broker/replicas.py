"""A broker's part in replication, put together from its settings.

A master's side sends the log to slaves and holds answers back until enough of them have it; a
slave's side follows its master's log and tables. A broker that admits no peers has no side.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.apache_master import ask_first_offset, ask_ha_address
from contrail.broker.services.cluster_secret import read_cluster_secret
from contrail.broker.services.slave_tables import SlaveTables
from contrail.broker.state.rebuilding import rebuild_command
from contrail.broker.state.replica_lag import SAMPLE_INTERVAL_MS, ReplicaLag
from contrail.clock import Clock
from contrail.protocol.bodies.ha_status import HaStatus, LastRefusal, MasterLink, SlaveLink
from contrail.replication.config import BrokerIdentity, HaMasterConfig, HaSlaveConfig, LinkTrust
from contrail.replication.services.ha_master import HaMaster
from contrail.replication.services.ha_slave import HaSlave
from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.in_sync import InSyncRules
from contrail.replication.state.refusals import Refusal
from contrail.replication.status import SlaveStatus
from contrail.runtime.schedule import Schedule
from contrail.store import MessageStore, StoreConfig
from contrail.wire.caller import Caller
from contrail.wire.router import parse_networks
from contrail.wire.tls import TlsFiles

_log = logging.getLogger(__name__)

# A Contrail master tells its slaves its other port with the welcome.
_ADDRESS_FACT = "brokerAddress"
_TABLES_INTERVAL_MS = 100
_SECOND_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasNeed:
    """The parts that both sides of replication are made from."""

    config: BrokerConfig
    replication: ReplicationConfig
    store: MessageStore
    store_config: StoreConfig
    clock: Clock
    address: str
    ha_port: int
    tls_files: TlsFiles | None


def link_trust(
    config: BrokerConfig, replication: ReplicationConfig, tls_files: TlsFiles | None
) -> LinkTrust:
    """The terms of links. Peers of Apache do not speak TLS, so ``contrailHaCompat`` ends it.

    Raises:
        ConfigError: the file of the secret is missing, unusable or open to others.
    """
    path = replication.cluster_secret_path
    is_encrypted = tls_files is not None and not replication.compat
    return LinkTrust(
        secret=read_cluster_secret(Path(path)) if path else None,
        takes_plain=replication.compat,
        networks=parse_networks(config.cluster_allow_list),
        takes_unsealed=replication.unsealed_accepted,
        server_tls=tls_files.context if is_encrypted and tls_files is not None else None,
        server_certificate=tls_files.certificate_der() if is_encrypted and tls_files else b"",
        client_tls=_client_tls() if is_encrypted else None,
    )


def _client_tls() -> ssl.SSLContext:
    """No authority is asked: the handshake proves the secret for this very certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _limits(replication: ReplicationConfig) -> HaLimits:
    return HaLimits(
        heartbeat_interval_ms=replication.heartbeat_interval_ms,
        housekeeping_interval_ms=replication.housekeeping_interval_ms,
        transfer_batch_bytes=replication.transfer_bytes_max,
    )


def _identity(config: BrokerConfig) -> BrokerIdentity:
    return BrokerIdentity(
        cluster=config.cluster_name, broker_name=config.broker_name, broker_id=config.broker_id
    )


class MasterSide:
    """A master with a port for slaves."""

    def __init__(self, need: ReplicasNeed, *, on_progress: Callable[[], None]) -> None:
        """``on_progress`` is called when slaves came, went or have more of the log."""
        config, replication = need.config, need.replication
        self._need = need
        self.required_count = replication.required_replicas(config.role)
        rules = InSyncRules(
            is_synchronous=config.role is BrokerRole.SYNC_MASTER,
            in_sync_replicas=self.required_count,
            min_in_sync_replicas=replication.in_sync_replicas_min,
            is_automatic=replication.in_sync_replicas_auto,
            gap_bytes_max=replication.gap_bytes_max,
        )
        self.ha = HaMaster(
            need.store,
            HaMasterConfig(
                identity=_identity(config),
                trust=link_trust(config, replication, need.tls_files),
                limits=_limits(replication),
                in_sync=rules,
                listen_address=config.listen_address,
                listen_port=need.ha_port,
                facts={_ADDRESS_FACT: need.address},
            ),
            need.clock,
            on_progress=on_progress,
        )
        self._lag = ReplicaLag()
        self._sent: dict[str, tuple[int, int]] = {}

    async def start(self) -> None:
        # Under SYNC_FLUSH slaves get flushed bytes only, so appends need not be told.
        if not self._need.store_config.syncs_before_ack:
            self._need.store.when_written(self.ha.appended)
        await self.ha.start()

    async def stop(self) -> None:
        self._need.store.when_written(None)
        await self.ha.stop()

    def register(self, schedule: Schedule) -> None:
        """Have the end of the log noted, from which lags are told."""
        schedule.every(SAMPLE_INTERVAL_MS, self._sample, name="ends of the log")

    def _sample(self, now_ms: int) -> None:
        self._lag.sample(self._need.clock.elapsed_ms(), self._need.store.physical_end)

    @property
    def lacks_slaves(self) -> bool:
        """Whether answers wait for slaves and there is none."""
        return self.required_count > 1 and self.ha.slave_count == 0 and self.ha.needed_count > 1

    def status(self) -> HaStatus:
        found = self.ha.status()
        slaves = tuple(self._slave(one) for one in found.slaves)
        return HaStatus(
            is_master=True,
            physical_end=found.physical_end,
            in_sync_slaves=sum(one.in_sync for one in slaves),
            slaves=slaves,
            role=self._need.config.role.value,
            acknowledged_end=self._need.store.acknowledged_end,
            required_replicas=found.needed_count,
            total_replicas=self._need.replication.total_replicas,
            refusals=found.refusals,
            last_refusal=self._last_refusal(found.last_refusal),
        )

    def _last_refusal(self, found: Refusal | None) -> LastRefusal | None:
        if found is None:
            return None
        return LastRefusal(found.reason, found.text, self._need.clock.elapsed_ms() - found.at_ms)

    def _slave(self, found: SlaveStatus) -> SlaveLink:
        elapsed_ms = self._need.clock.elapsed_ms()
        lag_ms = self._lag.lag_ms(found.acknowledged_end, elapsed_ms) if found.lag_bytes else 0
        return SlaveLink(
            address=found.address,
            acknowledged_end=found.acknowledged_end,
            lag_bytes=found.lag_bytes,
            in_sync=found.is_in_sync,
            bytes_per_second=self._rate(found, elapsed_ms),
            sent_end=found.next_offset,
            broker_id=found.broker_id,
            lag_ms=lag_ms,
            state="receiving" if found.is_receiving else "greeting",
        )

    def _rate(self, found: SlaveStatus, elapsed_ms: int) -> int:
        """Bytes a second since the status was asked for before, at least a second ago."""
        since_ms, sent_bytes = self._sent.get(found.address, (elapsed_ms, found.sent_bytes))
        passed_ms = elapsed_ms - since_ms
        if found.address not in self._sent or passed_ms >= _SECOND_MS:
            self._sent[found.address] = (elapsed_ms, found.sent_bytes)
        return (found.sent_bytes - sent_bytes) * _SECOND_MS // passed_ms if passed_ms else 0


class SlaveSide:
    """A slave that follows the log and the tables of its master."""

    def __init__(
        self,
        need: ReplicasNeed,
        tables: SlaveTables,
        caller: Caller,
        *,
        on_appended: Callable[[], None],
    ) -> None:
        """``on_appended`` is called after records of the master were written."""
        self._need = need
        self._tables = tables
        self._caller = caller
        replication = need.replication
        self._is_plain = replication.follows_plainly
        self._fixed = replication.fixed_master_address
        folders = need.store_config.log_folders
        self._rebuild_command = rebuild_command(need.store_config.root, folders)
        self.ha = HaSlave(
            need.store,
            HaSlaveConfig(
                identity=_identity(need.config),
                trust=link_trust(need.config, replication, need.tls_files),
                limits=_limits(replication),
                is_plain=self._is_plain,
            ),
            need.clock,
            rebuild_command=self._rebuild_command,
            on_appended=on_appended,
            on_welcome=self._welcomed,
        )
        self._finding: asyncio.Task[None] | None = None
        # The Apache master that has been asked.
        self._asked = ""
        # A slave that answers for its master knows more than the master's old tables.
        self.tables_rest: Callable[[], bool] = lambda: False

    async def start(self) -> None:
        if self._fixed is not None and not (self._is_plain and self._need.store.is_empty):
            self.ha.follow(self._fixed)
        await self.ha.start()

    async def stop(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        await self._tables.close()
        await self.ha.stop()

    def register(self, schedule: Schedule) -> None:
        schedule.every(_TABLES_INTERVAL_MS, self._follow_tables, name="tables of the master")

    def _follow_tables(self, now_ms: int) -> None:
        """A diverged slave stays as it is, its tables too, for the person who decides."""
        if not (self.ha.has_diverged or self.tables_rest()):
            self._tables.run(now_ms)

    def take_master(self, ha_address: str, address: str) -> None:
        """A NameServer, or the master itself, says where the master of this name is."""
        wanted = self._fixed or ha_address
        if self._is_plain and address:
            self._tables.follow(address, is_contrail=False)
            if self._asked != address or self._need.store.is_empty:
                self._ask_soon(wanted, address)
                return
        if wanted:
            self.ha.follow(wanted)

    def _ask_soon(self, ha_address: str, address: str) -> None:
        if self._finding is None or self._finding.done():
            self._finding = asyncio.get_running_loop().create_task(
                self._ask_master(ha_address, address), name="questions to the master"
            )

    async def _ask_master(self, ha_address: str, address: str) -> None:
        """Ask an Apache master what a Contrail one says with its welcome, then follow it."""
        told = await ask_ha_address(self._caller, address)
        wanted = ha_address or told
        if not wanted:
            return
        if self._need.store.is_empty:
            first = await ask_first_offset(self._caller, address)
            if first is not None:
                self.ha.begin_at(first)
        self._asked = address
        self.ha.follow(wanted)

    def _welcomed(self, facts: Mapping[str, str]) -> None:
        address = facts.get(_ADDRESS_FACT, "")
        if address:
            self._tables.follow(address, is_contrail=True)

    @property
    def sends_readers_back(self) -> bool:
        """Whether clients should read at the master: it is alive, or this is another log."""
        return self.ha.is_connected or self.ha.has_diverged

    def status(self) -> HaStatus:
        found, now_ms = self.ha.status(), self._need.clock.now_ms()
        link = MasterLink(
            master_address=found.master_address,
            physical_end=found.physical_end,
            last_read_ms=now_ms - found.last_received_ms,
            last_write_ms=now_ms - found.last_sent_ms,
            master_flushed_end=found.master_end or 0,
            is_active=found.is_connected,
            state=found.phase,
            problem=self._problem(found.problem),
            problem_reason=found.problem_reason,
            rebuild_command=self._rebuild_command if self.ha.has_diverged else "",
        )
        return HaStatus(
            is_master=False,
            physical_end=found.physical_end,
            master=link,
            role=self._need.config.role.value,
            acknowledged_end=found.reported_end,
        )

    def _problem(self, problem: str) -> str:
        if not self.ha.has_diverged:
            return problem
        return f"{problem}; to rebuild: stop it, run `{self._rebuild_command}`, start it again"
