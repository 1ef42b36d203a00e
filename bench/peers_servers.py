"""Both RocketMQ brokers under measurement, ours and Apache's: started, read and ended alike.

Each make runs a NameServer and a broker in processes of their own, with the same settings, on
loopback, storing in the suite's folder. ``RocketServer`` reads what a broker process costs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from bench.client_peers import _had
from bench.harness import REPOSITORY, BenchError, Figures
from bench.wire_frames import BROKER_NAME, send_frame
from bench.wire_parts import (
    HOST,
    Flush,
    Server,
    ask,
    free_broker_port,
    free_port,
    running,
    tail,
)
from contrail.client.blocking.admin import Admin
from contrail.protocol.bodies.ha_status import decode_ha_status
from tests.interop.differential.raw import RawConnection
from tests.interop.peers import JavaPeer, java_peer, own_environment

Name = Literal["contrail", "apache"]

HEAP = "4g"
NAMES: tuple[Name, ...] = ("contrail", "apache")

_NAMESRV_HEAP = "512m"
_START_TIMEOUT_S = 300
_POLL_S = 0.005
_ADMIN_TIMEOUT_MS = 60_000
_SCANNED_BYTES = 1 << 20
_GET_ROUTE_INFO_BY_TOPIC = 105
_GET_BROKER_CLUSTER_INFO = 106
_GET_BROKER_HA_STATUS = 907
_DEFAULT_TOPIC = "TBW102"
_QUIET_LOGS = REPOSITORY / "tests" / "interop" / "java" / "quiet_logback.xml"

# Settings of both brokers beside their addresses and their flush. All others are defaults.
_BROKER_PROPERTIES = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": BROKER_NAME,
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "brokerIP1": HOST,
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    # A machine that is busy with the benchmark itself must not turn sends away.
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
    "diskMaxUsedSpaceRatio": "95",
}

# As runserver.sh and runbroker.sh of Apache's distribution have them, but for the heap's size.
_JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:-UseLargePages",
)
_BROKER_JVM_OPTIONS = (
    "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseBiasedLocking",
    "-XX:+IgnoreUnrecognizedVMOptions",
)
# Flags of Java 17 that let Apache unmap its files.
_OPENED = ("java.nio", "sun.nio.ch", "jdk.internal.ref")


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketServer:
    """A running NameServer and broker of one make."""

    name: Name
    namesrv: str
    broker_address: str
    process: subprocess.Popen[bytes]
    nameserver_process: subprocess.Popen[bytes]
    folder: Path
    started_s: float
    """When the first of both processes was started, on ``time.perf_counter``'s clock."""
    slave: subprocess.Popen[bytes] | None = None
    """The broker that copies this one's log, where there is one: both are charged together."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def nameserver_pid(self) -> int:
        return self.nameserver_process.pid

    @property
    def port(self) -> int:
        return int(self.broker_address.rpartition(":")[2])

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def under_load(self) -> Server:
        """The broker as the C load knows servers."""
        return Server(port=self.port, process=self.process, log=_log(self.folder, "broker"))

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The broker, and its slave."""
        return [self.process] if self.slave is None else [self.process, self.slave]

    def cpu_s(self) -> float:
        """CPU of the whole broker process since it began, all threads, and of its slave."""
        return sum(process_cpu_s(process.pid) for process in self.processes)

    def private_bytes(self) -> int:
        """The memory of the broker alone, the pages of files that only it maps included."""
        return self._rollup("Private_Clean") + self._rollup("Private_Dirty")

    def anonymous_bytes(self) -> int:
        """The same without pages of files: memory that is in use until the broker ends."""
        return self._rollup("Anonymous")

    def disk_bytes(self) -> int:
        """Used bytes of the store.

        Both makes make files of their full size ahead, so sizes say nothing: of the log, its own
        end counts, and of queue and index files everything up to the last byte that is not zero.
        """
        with Admin(self.namesrv, timeout_ms=_ADMIN_TIMEOUT_MS) as admin:
            told = admin.broker_runtime(BROKER_NAME).values
        log_bytes = int(told["commitLogMaxOffset"]) - int(told["commitLogMinOffset"])
        folders = (self.store / "consumequeue", self.store / "index")
        files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
        return log_bytes + sum(map(_used_bytes, files))

    def _rollup(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
        raise BenchError(f"this kernel has no {field} of a process: it must be 4.14 or newer")


def process_cpu_s(pid: int) -> float:
    # The kernel's own way to name another process's CPU clock, as in clock_getcpuclockid(3).
    return time.clock_gettime(~pid << 3 | 2)


def _used_bytes(file: Path) -> int:
    """How far into the file the last byte is that is not zero."""
    end = file.stat().st_size
    with file.open("rb") as opened:
        while end > 0:
            begin = max(0, end - _SCANNED_BYTES)
            opened.seek(begin)
            found = opened.read(end - begin).rstrip(b"\0")
            if found:
                return begin + len(found)
            end = begin
    return 0


# Starts.


class _Make(NamedTuple):
    """How a make's servers are started; each gets its folder and its properties file."""

    name: Name
    nameserver: Callable[[Path, Path], list[str]]
    broker: Callable[[Path, Path], list[str]]


@cache
def apache_peer() -> JavaPeer:
    """Apache's servers and client; ``Absent`` where they cannot be had."""
    return _had(lambda: java_peer("apache-5-server"))


def running_contrail(
    folder: Path, *, flush: Flush, pinned: bool = True, properties: Mapping[str, str] | None = None
) -> AbstractContextManager[RocketServer]:
    """Ours, as its own command starts it, in a new ``folder``."""
    make = _Make("contrail", partial(_contrail, "namesrv"), partial(_contrail, "broker"))
    return _started(make, folder, flush, pinned, properties or {})


def running_apache(
    folder: Path,
    *,
    flush: Flush,
    heap: str = HEAP,
    is_touched: bool = True,
    pinned: bool = True,
    properties: Mapping[str, str] | None = None,
) -> AbstractContextManager[RocketServer]:
    """Apache's, with its scripts' flags.

    Its script touches the whole heap at the start; ``is_touched=False`` leaves that out and sets
    the largest size only, which is the least memory that Apache can be had with.
    """
    sized = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+AlwaysPreTouch"] if is_touched else [f"-Xmx{heap}"]
    broker = partial(_apache, "broker.BrokerStartup", [*sized, *_BROKER_JVM_OPTIONS])
    nameserver = partial(_apache, "namesrv.NamesrvStartup", [f"-Xmx{_NAMESRV_HEAP}"])
    return _started(_Make("apache", nameserver, broker), folder, flush, pinned, properties or {})


@contextmanager
def both(
    folder: Path,
    *,
    flush: Flush,
    heap: str = HEAP,
    pinned: bool = True,
    properties: Mapping[str, str] | None = None,
) -> Iterator[dict[Name, RocketServer]]:
    """Both makes side by side in folders of ``folder``."""
    ours = running_contrail(folder / "contrail", flush=flush, pinned=pinned, properties=properties)
    theirs = running_apache(
        folder / "apache", flush=flush, heap=heap, pinned=pinned, properties=properties
    )
    with ours as contrail, theirs as apache:
        yield {"contrail": contrail, "apache": apache}


@contextmanager
def with_slave(
    master: RocketServer, *, heap: str = HEAP, properties: Mapping[str, str]
) -> Iterator[RocketServer]:
    """The same broker once a slave of its make has joined it, on the same core."""
    folder = master.folder / "slave"
    folder.mkdir()
    address = f"{HOST}:{free_broker_port()}"
    settings = _broker_settings(folder, master.namesrv, address)
    settings |= {"brokerId": "1", "brokerRole": "SLAVE", **properties}
    file = _write(folder / "broker.conf", settings)
    if master.name == "contrail":
        command = _contrail("broker", folder, file)
    else:
        sized = [f"-Xms{heap}", f"-Xmx{heap}", "-XX:+AlwaysPreTouch"]
        options = [*sized, *_BROKER_JVM_OPTIONS]
        command = _apache("broker.BrokerStartup", options, folder, file)
    with ExitStack() as started:
        is_ready = partial(_has_slave, master)
        slave = _process(started, folder, True, "broker", command, is_ready)
        yield replace(master, slave=slave)


def _has_slave(master: RocketServer) -> bool:
    """Whether a slave of the master has all of its log."""
    try:
        with RawConnection(master.broker_address) as connection:
            answer = connection.ask(_GET_BROKER_HA_STATUS)
    except OSError:
        return False
    return answer.code == 0 and decode_ha_status(answer.body).in_sync_slaves > 0


def others(server: RocketServer, servers: Mapping[Name, RocketServer]) -> list[RocketServer]:
    """All of them but one."""
    return [other for other in servers.values() if other is not server]


@contextmanager
def standing_still(servers: Sequence[RocketServer]) -> Iterator[None]:
    """Let brokers do nothing at all while another one is measured on their core.

    One that was loaded before may work on for long, or begin to after a pause, as Apache's does
    after delayed and transactional sends.
    """
    with ExitStack() as stopped:
        for process in (process for server in servers for process in server.processes):
            process.send_signal(signal.SIGSTOP)
            stopped.callback(process.send_signal, signal.SIGCONT)
        yield


def time_to_first_send(start: Callable[[], AbstractContextManager[RocketServer]]) -> Figures:
    """From the start of the NameServer until the broker is routed to and has taken a message.

    The broker starts once the NameServer answers, as an operator would have it. Every wait asks
    again after 5 ms, and the topic is made by the message itself.
    """
    with start() as server:
        frame = send_frame()
        _wait_until(lambda: _takes(server, frame), server.process, _log(server.folder, "broker"))
        wall_s = time.perf_counter() - server.started_s
        return {"wall_s": wall_s, "cpu_s": server.cpu_s(), "record_count": 1}


def make_topics(server: RocketServer, topics: Sequence[str], *, queues: int = 8) -> None:
    """Create topics by Contrail's admin client, and wait until routes have the last one."""
    with Admin(server.namesrv, timeout_ms=_ADMIN_TIMEOUT_MS) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=queues)
    routed = partial(_is_routed, server.namesrv, topics[-1], server.broker_address)
    _wait_until(routed, server.process, _log(server.folder, "broker"))


# How it is started.


@contextmanager
def _started(
    make: _Make, folder: Path, flush: Flush, pinned: bool, properties: Mapping[str, str]
) -> Iterator[RocketServer]:
    folder.mkdir(parents=True)
    namesrv, broker_address = f"{HOST}:{free_port()}", f"{HOST}:{free_broker_port()}"
    settings = _broker_settings(folder, namesrv, broker_address) | {"flushDiskType": flush}
    nameserver_file = _write(folder / "namesrv.conf", _nameserver_settings(folder, namesrv))
    broker_file = _write(folder / "broker.conf", settings | dict(properties))
    nameserver_command = make.nameserver(folder, nameserver_file)
    with ExitStack() as started:
        started_s = time.perf_counter()
        start = partial(_process, started, folder, pinned)
        nameserver = start("namesrv", nameserver_command, lambda: _answers(namesrv))
        routed = partial(_is_routed, namesrv, _DEFAULT_TOPIC, broker_address)
        broker = start("broker", make.broker(folder, broker_file), routed)
        yield RocketServer(
            name=make.name,
            namesrv=namesrv,
            broker_address=broker_address,
            process=broker,
            nameserver_process=nameserver,
            folder=folder,
            started_s=started_s,
        )


def _process(
    started: ExitStack,
    folder: Path,
    pinned: bool,
    name: str,
    command: list[str],
    is_ready: Callable[[], bool],
) -> subprocess.Popen[bytes]:
    """Start a process that ends with ``started``, and wait until it is ready."""
    process = started.enter_context(running(command, _log(folder, name), is_pinned=pinned))
    # Nothing of it is worth a graceful stop.
    started.callback(process.kill)
    _wait_until(is_ready, process, _log(folder, name))
    return process


def _contrail(command: str, folder: Path, settings: Path) -> list[str]:
    return [sys.executable, "-m", "contrail.cli", command, "-c", str(settings)]


def _apache(main: str, options: list[str], folder: Path, settings: Path) -> list[str]:
    kept = own_environment(folder) | {"ROCKETMQ_HOME": str(folder)}
    clean = ["env", "-i", f"--chdir={folder}", *(f"{name}={value}" for name, value in kept.items())]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    gc_log = f"-Xlog:gc*:file={folder / main}.gc.log:time,tags:filecount=5,filesize=30M"
    named = [f"-Duser.home={folder}", f"-Drmq.logback.configurationFile={_QUIET_LOGS}"]
    java = ["java", *options, *_JVM_OPTIONS, *opened, gc_log, *named]
    java += ["-cp", apache_peer().class_path, f"org.apache.rocketmq.{main}"]
    return [*clean, *java, "-c", str(settings)]


def _nameserver_settings(folder: Path, namesrv: str) -> dict[str, str]:
    kept = folder / "namesrv"
    kept.mkdir()
    return {
        "listenPort": namesrv.rpartition(":")[2],
        **_bound(),
        "kvConfigPath": str(kept / "kvConfig.json"),
        "configStorePath": str(kept / "namesrv.properties"),
    }


def _broker_settings(folder: Path, namesrv: str, broker_address: str) -> dict[str, str]:
    store = folder / "store"
    return _BROKER_PROPERTIES | {
        "namesrvAddr": namesrv,
        "listenPort": broker_address.rpartition(":")[2],
        **_bound(),
        "haListenPort": str(free_port()),
        "storePathRootDir": str(store),
        "storePathCommitLog": str(store / "commitlog"),
    }


def _bound() -> dict[str, str]:
    """Loopback only: Apache reads the first name, ours the second."""
    return {"bindAddress": HOST, "listenAddress": HOST}


def _write(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{k}={v}\n" for k, v in settings.items()), encoding="utf-8")
    return path


def _log(folder: Path, name: str) -> Path:
    return folder / f"{name}.log"


# Whether it has started.


def _wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"a server did not become ready:\n{tail(log)}")
        time.sleep(_POLL_S)


def _answers(namesrv: str) -> bool:
    try:
        with RawConnection(namesrv) as connection:
            return connection.ask(_GET_BROKER_CLUSTER_INFO).code == 0
    except OSError:
        return False


def _is_routed(namesrv: str, topic: str, broker_address: str) -> bool:
    try:
        with RawConnection(namesrv) as connection:
            answer = connection.ask(_GET_ROUTE_INFO_BY_TOPIC, {"topic": topic})
    except OSError:
        return False
    return answer.code == 0 and broker_address.encode() in answer.body


def _takes(server: RocketServer, frame: bytes) -> bool:
    try:
        ask(server.under_load, frame)
    except (OSError, BenchError):
        return False
    return True
