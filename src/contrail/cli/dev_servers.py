"""The NameServer and the broker of ``contrail dev``: one process, one event loop, one folder."""

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
from typing import Any

from contrail.broker.app import Broker
from contrail.broker.settings import BrokerSettings, read_broker_settings
from contrail.cli.serving import end_at_once
from contrail.clock import clock_for
from contrail.errors import ConfigError
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.wire.limits import Limits
from contrail.wire.server import FAST_PORT_DISTANCE, bind

_log = logging.getLogger(__name__)

_LOOPBACK = "127.0.0.1"
_USUAL_BROKER_PORT = 10911
_USUAL_METRICS_PORT = 5557
_REMOVALS_MAX = 50
_REMOVAL_PAUSE_S = 0.01
# Within the number of files that a process may open by default, beside those of the store.
_LIMITS = Limits(connection_count_max=256)

# Small files are quick to make and easy to look into; a message is answered before the disk has it.
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
    # A laptop that is busy with something else must not turn sends away.
    "brokerFastFailureEnable": "false",
    "traceTopicEnable": "true",
}
# What this command decides itself; two places to say it would contradict each other.
_DECIDED = {
    "listenAddress": "it listens on this host only; run `contrail broker` for others",
    "listenPort": "say --broker-port",
    "namesrvAddr": "it brings its own NameServer; say --port",
    "storePathRootDir": "say --folder",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line asks for."""

    folder: Path | None
    port: int
    broker_port: int | None
    settings: Mapping[str, str]


class DevServers:
    """Both servers as one: started and stopped together."""

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

    async def start(self) -> None:
        """Start the NameServer, then the broker; return once they know each other.

        Raises:
            ConfigError: a port or a folder cannot be used.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            await self._start_nameserver()
            await self._start_broker()
            gc.freeze()
            gc.enable()
        except BaseException:
            await self._undo()
            raise

    async def stop(self) -> None:
        """Stop both and write everything down; a temporary folder goes away."""
        self._end_at_once_on_signal()
        print("stopping; Ctrl-C once more ends at once", file=sys.stderr)
        await self.broker.stop()
        await self._undo()

    def facts(self) -> dict[str, Any]:
        """Where everything is."""
        assert self._nameserver is not None
        return {
            "namesrv": self._nameserver.address,
            "broker": self.broker.address,
            "broker_name": self._settings.broker.broker_name,
            "cluster": self._settings.broker.cluster_name,
            "metrics": self._metrics(),
            "folder": str(self._folder),
            "temporary": self._is_temporary,
            "pid": os.getpid(),
        }

    def _metrics(self) -> str | None:
        metrics = self.broker.metrics
        return None if metrics is None else f"http://{_LOOPBACK}:{metrics.port}/metrics"

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
        )
        try:
            await self.broker.start()
        except ConfigError as error:
            raise _port_refused(error, read.broker.listen_port, "--broker-port") from error

    def _read_settings(self) -> BrokerSettings:
        assert self._nameserver is not None
        read = read_broker_settings(
            {
                **DEV_PROPERTIES,
                "metricsPromExporterPort": str(self._usual_or_free(_USUAL_METRICS_PORT)),
                **self._wanted.settings,
                "brokerIP1": _LOOPBACK,
                "listenAddress": _LOOPBACK,
                "listenPort": str(self._broker_port()),
                "namesrvAddr": self._nameserver.address,
                "storePathRootDir": str(self._folder / "store"),
            }
        )
        if read.notes:
            raise ConfigError("; ".join(read.notes))
        for note in read.moved:
            _log.warning("%s", note)
        return read

    def _broker_port(self) -> int:
        if self._wanted.broker_port is not None:
            return self._wanted.broker_port
        return self._usual_or_free(_USUAL_BROKER_PORT, _USUAL_BROKER_PORT - FAST_PORT_DISTANCE)

    def _usual_or_free(self, port: int, *beside: int) -> int:
        """0, for a free one, when somebody has a port or free ones are asked for."""
        is_usual = self._wanted.port != 0 and all(map(_is_free, (port, *beside)))
        return port if is_usual else 0

    async def _undo(self) -> None:
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
            # A thread of the broker still wrote there.
            time.sleep(_REMOVAL_PAUSE_S)

    def _end_at_once_on_signal(self) -> None:
        """Whoever does not want to wait for the stop still leaves no temporary folder behind."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end_at_once, number)

    def _end_at_once(self, number: signal.Signals) -> None:
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
    """The error with its fix: most often another one of these runs already."""
    if not isinstance(error.__cause__, OSError | OverflowError):
        return error
    return ConfigError(
        f"port {port} cannot be listened on ({error.__cause__}): end who has it, such as another "
        f"`contrail dev`, or choose another port with {flag}; {flag} 0 takes a free one"
    )
