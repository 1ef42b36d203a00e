"""The servers of ``contrail dev``: one event loop and one folder; replicas are children."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrail.broker.app import Broker
from contrail.broker.replication_config import HA_PORT_DISTANCE
from contrail.broker.settings import BrokerSettings, read_broker_settings
from contrail.cli.dev_replicas import (
    GROUP_PROPERTIES,
    PAIR_PROPERTIES,
    Replicas,
    free_broker_port,
    free_port,
    leader_among,
    plan_members,
    plan_replicas,
)
from contrail.cli.serving import end_at_once
from contrail.clock import clock_for
from contrail.errors import ConfigError
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.wire.limits import Limits
from contrail.wire.server import FAST_PORT_DISTANCE, bind

if TYPE_CHECKING:
    from contrail.console.app import Console

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_USUAL_BROKER_PORT = 10911
_USUAL_METRICS_PORT = 5557
_REMOVALS_MAX = 50
_REMOVAL_PAUSE_S = 0.01
# Within the number of files that a process may open by default, beside those of the store.
_LIMITS = Limits(connection_count_max=256)

# Small files are made in little time and easy to look into; a send is answered before the flush.
DEV_PROPERTIES: Mapping[str, str] = {
    "autoCreateTopicEnable": "true",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 20_000),
    "mappedFileSizeTimerLog": str(4 << 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    "contrailOpenFilesMax": "256",
    "contrailPrepareSegments": "false",
    # A busy laptop must not have sends refused.
    "brokerFastFailureEnable": "false",
    "traceTopicEnable": "true",
}
# Settings that this command decides itself; a second source would contradict it.
_DECIDED = {
    "listenAddress": "it listens on this host only; run `contrail broker` for others",
    "listenPort": "say --broker-port",
    "namesrvAddr": "it brings its own NameServer; say --port",
    "storePathRootDir": "say --folder",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command line."""

    folder: Path | None
    port: int
    broker_port: int | None
    settings: Mapping[str, str]
    replicas: int = 0
    restart_after_s: float = 20.0
    console: bool = False
    failover: bool = False


class DevServers:
    """All servers as one: started and stopped together."""

    broker: Broker

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        _require_free_to_say(wanted.settings)
        self._is_temporary = wanted.folder is None
        self._folder = (
            Path(tempfile.mkdtemp(prefix="contrail-dev-"))
            if wanted.folder is None
            else wanted.folder.absolute()
        )
        self._clock = clock_for(os.environ)
        self._nameserver: NameServer | None = None
        self._replicas: Replicas | None = None
        self._console: Console | None = None
        self._login_link: str | None = None
        # The member that led a failover group when all was ready; else the master.
        self._leader_id = 0

    async def start(self) -> None:
        """Start the NameServer, then the broker or brokers; return once they know each other.

        Raises:
            ConfigError: a port or a folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            await self._start_nameserver()
            await self._start_brokers()
            if self._wanted.console:
                await self._start_console()
            gc.freeze()
            gc.enable()
        except BaseException:
            await self._undo()
            raise

    async def _start_brokers(self) -> None:
        if self._wanted.failover:
            await self._start_members()
        elif self._wanted.replicas:
            await self._start_replicas()
        else:
            await self._start_broker()

    async def stop(self) -> None:
        """Stop all with a clean shutdown; a temporary folder is removed."""
        self._end_at_once_on_signal()
        print("stopping; Ctrl-C once more ends at once", file=sys.stderr)
        await self._stop_console()
        if self._replicas is None:
            await self.broker.stop()
        await self._undo()

    @property
    def failed(self) -> asyncio.Event | None:
        """Set when the broker of this process must not go on."""
        return self.broker.failed if self._replicas is None else None

    def facts(self) -> dict[str, Any]:
        """Addresses and folder of the running servers."""
        assert self._nameserver is not None
        replicas = [] if self._replicas is None else self._replicas.facts()
        # The leader first, as a master is.
        replicas.sort(key=lambda one: one["broker_id"] != self._leader_id)
        return {
            "namesrv": self._nameserver.address,
            "broker": replicas[0]["broker"] if replicas else self.broker.address,
            "broker_name": self._settings.broker.broker_name,
            "cluster": self._settings.broker.cluster_name,
            "metrics": replicas[0]["metrics"] if replicas else self._metrics(),
            "console": self._console_facts(),
            "replicas": replicas,
            "folder": str(self._folder),
            "temporary": self._is_temporary,
            "pid": os.getpid(),
        }

    def _metrics(self) -> str | None:
        metrics = self.broker.metrics
        return None if metrics is None else f"http://{_LOOPBACK}:{metrics.port}/metrics"

    def _console_facts(self) -> dict[str, Any] | None:
        if self._console is None:
            return None
        return {"url": self._console.url, "login_link": self._login_link}

    async def _start_console(self) -> None:
        """A console of its own over this cluster, at its usual port if that is free."""
        from contrail.client.admin import Admin
        from contrail.console.app import Console
        from contrail.console.config import PORT, ConsoleConfig

        assert self._nameserver is not None
        config = ConsoleConfig(folder=self._folder / "console", port=self._usual_or_free(PORT))
        admin = Admin(self._nameserver.address, instance_name="contrail-dev-console")
        console = Console(config, clock=self._clock, admin=admin)
        await console.start()
        self._console, self._login_link = console, console.login_link()

    async def _stop_console(self) -> None:
        console, self._console = self._console, None
        if console is not None:
            await console.stop()

    async def _start_nameserver(self) -> None:
        files = self._folder / "namesrv"
        files.mkdir(exist_ok=True)
        config = NameServerConfig(
            listen_address=_LOOPBACK,
            listen_port=self._wanted.port,
            kv_config_path=files / "kvConfig.json",
            config_store_path=files / "namesrv.properties",
            metrics_port=0,
        )
        nameserver = NameServer(config, clock=self._clock, limits=_LIMITS)
        try:
            await nameserver.start()
        except ConfigError as error:
            raise _port_refused(error, self._wanted.port, "--port") from error
        self._nameserver = nameserver

    async def _start_broker(self) -> None:
        self._settings = read = self._read_settings()
        self.broker = Broker(
            read.broker,
            read.store,
            clock=self._clock,
            limits=_LIMITS,
            tls_mode=read.tls_mode,
            tls_files=read.tls_files,
            replication=read.replication,
            access=read.access,
        )
        try:
            await self.broker.start()
        except ConfigError as error:
            raise _port_refused(error, read.broker.listen_port, "--broker-port") from error

    async def _start_replicas(self) -> None:
        """A master and slaves as processes; they need ports that stay when they are killed."""
        port = self._broker_port(HA_PORT_DISTANCE) or free_broker_port()
        metrics_port = self._usual_or_free(_USUAL_METRICS_PORT) or free_port()
        properties = self._properties(port, metrics_port, more=PAIR_PROPERTIES)
        plans = plan_replicas(self._folder, properties, self._wanted.replicas)
        self._settings = read_broker_settings(plans[0].properties)
        self._replicas = Replicas(plans, self._wanted.restart_after_s)
        await self._replicas.start()

    async def _start_members(self) -> None:
        """A failover group: three processes, of which any may be killed."""
        port = self._broker_port(HA_PORT_DISTANCE) or free_broker_port()
        metrics_port = self._usual_or_free(_USUAL_METRICS_PORT) or free_port()
        properties = self._properties(port, metrics_port, more=GROUP_PROPERTIES)
        plans = plan_members(self._folder, properties)
        self._settings = read_broker_settings(plans[0].properties)
        self._replicas = Replicas(plans, self._wanted.restart_after_s)
        await self._replicas.start()
        self._leader_id = await leader_among(plans)

    def _properties(
        self, port: int, metrics_port: int, *, more: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """This command's own settings, given settings, and defaults; the first are strongest."""
        assert self._nameserver is not None
        return {
            **DEV_PROPERTIES,
            **(more or {}),
            "metricsPromExporterPort": str(metrics_port),
            **self._wanted.settings,
            "brokerIP1": _LOOPBACK,
            "listenAddress": _LOOPBACK,
            "listenPort": str(port),
            "namesrvAddr": self._nameserver.address,
            "storePathRootDir": str(self._folder / "store"),
        }

    def _read_settings(self) -> BrokerSettings:
        read = read_broker_settings(
            self._properties(self._broker_port(), self._usual_or_free(_USUAL_METRICS_PORT))
        )
        if read.notes:
            raise ConfigError("; ".join(read.notes))
        for note in read.moved:
            _log.warning("%s", note)
        return read

    def _broker_port(self, *distances: int) -> int:
        """The port, 0 for a free one; ``distances`` lead to ports that must be free as well."""
        if self._wanted.broker_port is not None:
            return self._wanted.broker_port
        beside = (_USUAL_BROKER_PORT + distance for distance in (-FAST_PORT_DISTANCE, *distances))
        return self._usual_or_free(_USUAL_BROKER_PORT, *beside)

    def _usual_or_free(self, port: int, *beside: int) -> int:
        """0, for a free port, when a port is taken or free ones are requested."""
        is_usual = self._wanted.port != 0 and all(map(_is_free, (port, *beside)))
        return port if is_usual else 0

    async def _undo(self) -> None:
        await self._stop_console()
        if self._replicas is not None:
            await self._replicas.stop()
        if self._nameserver is not None:
            await self._nameserver.stop()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if not self._is_temporary:
            return
        for _ in range(_REMOVALS_MAX):
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return
            # A thread of the broker still wrote to the folder.
            time.sleep(_REMOVAL_PAUSE_S)

    def _end_at_once_on_signal(self) -> None:
        """Remove the temporary folder also after a second Ctrl-C, which does not await the stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end_at_once, number)

    def _end_at_once(self, number: signal.Signals) -> None:
        if self._replicas is not None:
            self._replicas.kill()
        self._remove_temporary()
        end_at_once(128 + number)


def _require_free_to_say(settings: Mapping[str, str]) -> None:
    for name, instead in _DECIDED.items():
        if name in settings:
            raise ConfigError(f"--set {name} is not for `contrail dev`: {instead}")


def _is_free(port: int) -> bool:
    try:
        bind(_LOOPBACK, port).close()
    except ConfigError:
        return False
    return True


def _port_refused(error: ConfigError, port: int, flag: str) -> ConfigError:
    """The error with its fix: most often another `contrail dev` runs already."""
    if not isinstance(error.__cause__, OSError | OverflowError):
        return error
    return ConfigError(
        f"port {port} cannot be listened on ({error.__cause__}): end the process that has it, such "
        f"as another `contrail dev`, or choose another port with {flag}; {flag} 0 takes a free one"
    )
