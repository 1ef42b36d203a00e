"""``LocalCluster``: NameServers and brokers in this process, or in children of it.

In this process they share one event loop on a thread of its own, may be given a clock that the test
moves, and fail on request. In children they are started by the command line, as an operator would,
and can be killed for real. Everything listens on loopback, on free ports.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Self, TypeVar

from contrail.broker.access_config import AccessConfig
from contrail.broker.services.cluster_secret import SECRET_BYTES, write_cluster_secret
from contrail.broker.settings import read_broker_settings
from contrail.clock import (
    CLOCK_FILE_VARIABLE,
    Clock,
    ManualClock,
    SharedClock,
    SystemClock,
)
from contrail.errors import ContrailError
from contrail.model.settings import read_settings
from contrail.nameserver.app import NameServer
from contrail.nameserver.config import NameServerConfig
from contrail.nameserver.state.routes import BrokerKey
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.prometheus_text import MetricsExporter
from contrail.testing.caller import BlockingCaller
from contrail.testing.failover import leader_of, member_status
from contrail.testing.faulty_broker import FaultyBroker, Refusal
from contrail.testing.loop import LoopThread
from contrail.testing.moved_clock import MovedClock
from contrail.testing.places import LOOPBACK, Place
from contrail.testing.slaves import wait_for_slaves
from contrail.testing.waiting import PATIENCE_S, eventually

T = TypeVar("T")

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.02

# Below the ephemeral ports of the kernel, so that a killed server finds its port free again. A step
# leaves room for the fast port and the HA port.
_PORTS = range(12_000, 20_000)
_SHARE_SIZE = 2_000
_PORT_STEP = 4

# Small files, and answers before the flush: a test is to take little time.
TEST_PROPERTIES: Mapping[str, str] = {
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 20_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
    # A busy machine must not have a test's sends refused.
    "brokerFastFailureEnable": "false",
    # Clusters of many tests would collide on the one port.
    "metricsExporterType": "DISABLE",
}
# The ``contrailFastPath`` of brokers whose test names none: whole suites run either way.
FAST_PATH_VARIABLE = "CONTRAIL_FAST_PATH"
# Zeros written ahead are most of the cost of a short-lived broker.
_IN_PROCESS_PROPERTIES = {"contrailPrepareSegments": "false"}


class _Child:
    """A server in a process of its own, started by the command line."""

    def __init__(
        self, command: list[str], folder: Path, clock: Clock, place: Place | None = None
    ) -> None:
        place = place or Place()
        self._command = [*place.prefix, sys.executable, "-m", "contrail.cli", *command]
        self._log_path = folder / "process.log"
        self._environment = {**os.environ, **place.environment}
        clock = place.clock or clock
        if isinstance(clock, SharedClock):
            self._environment[CLOCK_FILE_VARIABLE] = str(clock.path)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def require_alive(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            tail = self._log_path.read_bytes()[-4000:].decode("utf-8", "replace")
            raise ContrailError(f"{self._command} ended with {self._process.returncode}:\n{tail}")

    def end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


class LocalNameServer:
    """One NameServer of a cluster."""

    def __init__(self, cluster: LocalCluster, number: int) -> None:
        self._cluster = cluster
        self.folder = cluster.folder / f"namesrv-{number}"
        self.port = free_port()
        self.host = LOOPBACK
        # Of a child; read at each start.
        self.own_properties: dict[str, str] = {}
        self.app: NameServer | None = None
        self._child: _Child | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else os.getpid()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._cluster.in_children:
            self._child = _Child(
                [
                    *("namesrv", "--folder", str(self.folder), "--port", str(self.port)),
                    *("--set", "metricsExporterType=DISABLE"),
                    *("--set", f"listenAddress={self.host}"),
                    *(
                        word
                        for name, value in self.own_properties.items()
                        for word in ("--set", f"{name}={value}")
                    ),
                ],
                self.folder,
                self._cluster.clock,
            )
            self._child.start()
            self._cluster.wait_for_port(self.address, self._child)
        else:
            config = NameServerConfig(
                listen_port=self.port,
                kv_config_path=self.folder / "kvConfig.json",
                config_store_path=self.folder / "namesrv.properties",
                metrics_exporter=MetricsExporter.DISABLE,
            )
            self.app = NameServer(config, clock=self._cluster.clock)
            self._cluster.run(self.app.start())

    def stop(self) -> None:
        """Stop gracefully."""
        if self._child is not None:
            self._child.end(signal.SIGTERM)
        if self.app is not None:
            app, self.app = self.app, None
            self._cluster.run(app.stop())

    def kill(self) -> None:
        assert self._child is not None, "only a child can be killed: in_children=True"
        self._child.end(signal.SIGKILL)


class LocalBroker:
    """One broker of a cluster; its folder and ports stay the same over restarts.

    A ``broker_id`` above 0 makes it a slave of the broker with the same number.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        number: int,
        broker_id: int = 0,
        *,
        member: int | None = None,
    ) -> None:
        """A ``member`` of the failover group of this number has an id like ``n0``."""
        self._cluster = cluster
        self.number = number
        self.name = f"broker-{chr(ord('a') + number)}" if number < 26 else f"broker-{number}"
        self.broker_id = broker_id
        self.self_id = "" if member is None else f"n{member}"
        suffix = self.self_id or (str(broker_id) if broker_id else "")
        self.folder = cluster.folder / (f"{self.name}-{suffix}" if suffix else self.name)
        self.port = free_port_pair()
        # Where the members of its group reach it.
        self.member_port = 0 if member is None else free_port()
        self.place = Place()
        self.address = f"{LOOPBACK}:{self.port}"
        # Beside those of the whole cluster; read at each start.
        self.own_properties: dict[str, str] = {}
        self.app: FaultyBroker | None = None
        self._is_cut_off = False
        self._child: _Child | None = None

    @property
    def pid(self) -> int:
        return self._child.pid if self._child is not None else os.getpid()

    @property
    def cluster(self) -> LocalCluster:
        return self._cluster

    @property
    def group(self) -> list[LocalBroker]:
        """All members of its failover group, itself among them."""
        return [one for one in self._cluster.brokers if one.number == self.number]

    def put_at(self, place: Place) -> None:
        """Run elsewhere from the next start on; for children."""
        self.place, self.address = place, f"{place.host}:{self.port}"

    @property
    def caller(self) -> BlockingCaller:
        """From where an operator reaches it."""
        return self.place.caller or self._cluster.caller

    @property
    def is_running(self) -> bool:
        return self.app is not None or (self._child is not None and self._child.is_running)

    @property
    def namesrv(self) -> str:
        """The NameServers of its cluster, for clients."""
        return self._cluster.namesrv

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0
    ) -> None:
        """Move the clock of its cluster; see ``LocalCluster.advance``."""
        self._cluster.advance(ms=ms, seconds=seconds, minutes=minutes, hours=hours)

    def properties(self) -> dict[str, str]:
        return {
            **TEST_PROPERTIES,
            **({} if self._cluster.in_children else _IN_PROCESS_PROPERTIES),
            "brokerName": self.name,
            "brokerIP1": self.place.host,
            "listenAddress": self.place.host,
            "listenPort": str(self.port),
            "namesrvAddr": self._cluster.namesrv,
            "storePathRootDir": str(self.folder / "store"),
            "contrailFastPath": os.environ.get(FAST_PATH_VARIABLE, "on"),
            **self._cluster.properties,
            **self._role_properties(),
            **self.own_properties,
        }

    def _role_properties(self) -> dict[str, str]:
        if self.self_id:
            peers = (f"{one.self_id}-{one.place.host}:{one.member_port}" for one in self.group)
            return {
                "flushDiskType": "SYNC_FLUSH",
                "enableDLegerCommitLog": "true",
                "dLegerGroup": self.name,
                "dLegerPeers": ";".join(peers),
                "dLegerSelfId": self.self_id,
                "contrailClusterSecretFile": str(self._cluster.secret_path),
            }
        if not self._cluster.slaves:
            return {}
        secret = {"contrailClusterSecretFile": str(self._cluster.secret_path)}
        if not self.broker_id:
            return secret
        return {**secret, "brokerRole": "SLAVE", "brokerId": str(self.broker_id)}

    def start(self) -> None:
        """Start, and return once it is registered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._cluster.in_children:
            self._start_child()
        else:
            settings = read_broker_settings(self.properties())
            self.app = FaultyBroker(
                settings.broker,
                settings.store,
                clock=self._cluster.clock,
                replication=settings.replication,
                access=settings.access,
            )
            self.app.is_cut_off = self._loses_master()
            self.app.may_reach = lambda address: self._cluster.may_reach(self, address)
            self._cluster.run(self.app.start())
        self._cluster.wait_for_routes(self)

    def _start_child(self) -> None:
        path = self.folder / "broker.conf"
        lines = (f"{name}={value}\n" for name, value in self.properties().items())
        path.write_text("".join(lines), encoding="utf-8")
        self._child = _Child(
            ["broker", "-c", str(path)], self.folder, self._cluster.clock, self.place
        )
        self._child.start()
        self._cluster.wait_for_port(self.address, self._child)

    def stop(self) -> None:
        """Stop gracefully."""
        if self._child is not None:
            self._child.end(signal.SIGTERM)
        if self.app is not None:
            app, self.app = self.app, None
            self._cluster.run(app.stop())

    def pause(self) -> None:
        """Stop a child in the middle of everything: its connections stay, nothing is answered."""
        os.kill(self._own_pid(), signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused child go on."""
        os.kill(self._own_pid(), signal.SIGCONT)

    def _own_pid(self) -> int:
        assert self._child is not None, "only a child can be paused: in_children=True"
        return self._child.pid

    def kill(self) -> None:
        """Kill the broker: it does not unregister and writes nothing more; ``start`` recovers.

        A child is killed for real. In this process the broker loses its connections and its disk.
        NameServers drop it from the routes as soon as they see their connection to it close.
        """
        if self._child is not None:
            self._child.end(signal.SIGKILL)
        if self.app is not None:
            app, self.app = self.app, None
            self._cluster.run(app.die())

    # Faults. They last until ``clear_faults`` or the end of this broker's life.

    def refuse_sends(
        self,
        code: int = ResponseCode.SYSTEM_BUSY,
        *,
        count: int | None = None,
        remark: str = "refused by the test",
    ) -> None:
        """Answer the next ``count`` sends with a response code, or all of them; store none."""
        refusal = Refusal(code, remark, count)
        self._meddle(lambda app: app.refuse_sends(refusal))

    def delay_answers(self, ms: int) -> None:
        """Carry out requests, and answer this much later; 0 ends it."""
        self._meddle(lambda app: app.delay_answers(ms))

    def lose_answers(self, count: int = 1) -> None:
        """Store the next ``count`` sends, and drop their connection instead of an answer."""
        self._meddle(lambda app: app.lose_answers(count))

    def drop_connections(self) -> None:
        """Drop all connections now; clients may come back."""
        self._meddle(lambda app: app.drop_connections())

    def cut_off(self) -> None:
        """Cut a slave off from its master, or a master from all of its slaves.

        Both notice at once. Clients and NameServers still reach both. It lasts until ``rejoin``,
        also over restarts of either side.
        """
        self._cut(True)

    def rejoin(self) -> None:
        """End ``cut_off``: slaves connect again."""
        self._cut(False)

    def _cut(self, is_cut_off: bool) -> None:
        if self._cluster.in_children:
            raise ContrailError(
                f"{self.name} does not run in this process and cannot be cut off: `pause` stops it "
                "with its connections open"
            )
        self._is_cut_off = is_cut_off
        for slave in self._cluster.slaves:
            if slave.name == self.name and slave.app is not None:
                slave._follow_cuts()

    def _follow_cuts(self) -> None:
        loses_master = self._loses_master()
        self._meddle(lambda app: app.cut_off(loses_master))

    @property
    def follows(self) -> bool:
        """Whether it runs as a slave that is not cut off."""
        return self.is_running and self.broker_id > 0 and not self._loses_master()

    def _loses_master(self) -> bool:
        masters = [one for one in self._cluster.brokers if one.name == self.name]
        return any(one._is_cut_off for one in (self, *masters))

    def clear_faults(self) -> None:
        """End all faults."""
        if self._is_cut_off:
            self.rejoin()
        self._meddle(lambda app: app.clear_faults())

    def _meddle(self, act: Callable[[FaultyBroker], None]) -> None:
        app = self.app
        if app is None:
            raise ContrailError(
                f"{self.name} does not run in this process: start it, without in_children=True"
            )

        async def on_loop() -> None:
            act(app)

        self._cluster.run(on_loop())


class LocalCluster:
    """Brokers under NameServers; a context manager."""

    def __init__(
        self,
        *,
        brokers: int = 1,
        nameservers: int = 1,
        folder: Path | None = None,
        in_children: bool = False,
        clock: Clock | None = None,
        properties: Mapping[str, str] | None = None,
        slaves: int = 0,
        members: int = 0,
    ) -> None:
        """``slaves`` is how many each broker has; ``brokers`` are the masters.

        With ``members`` each of the brokers is a failover group of so many, and ``brokers`` are all
        members of all groups.
        """
        if in_children and not isinstance(clock, SharedClock | None):
            raise ContrailError("children can share only a clock in a file: give a SharedClock")
        self._temporary = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = (
            Path(self._temporary.name) if self._temporary is not None else folder or Path()
        )
        self.in_children = in_children
        self.clock = clock or SystemClock()
        self.properties = dict(properties or {})
        self._thread: LoopThread | None = None
        self.nameservers = [LocalNameServer(self, number) for number in range(nameservers)]
        self.brokers = [
            LocalBroker(self, number, member=member)
            for number in range(brokers)
            for member in (range(members) if members else [None])
        ]
        self._has_secret = bool(slaves or members)
        # The members on one side of a partition.
        self._apart: set[int] = set()
        self.slaves = [
            LocalBroker(self, number, broker_id)
            for number in range(brokers)
            for broker_id in range(1, slaves + 1)
        ]
        self.secret_path = self.folder / "cluster.secret"
        # With access control it asks as brokers ask each other.
        self.caller = BlockingCaller(read_settings(AccessConfig, self.properties).inner)

    @property
    def namesrv(self) -> str:
        """The NameServers' addresses as clients take them."""
        return ";".join(server.address for server in self.nameservers)

    def start(self) -> None:
        """Start all servers; returns once all brokers are registered."""
        if not self.in_children:
            self._thread = LoopThread("local-cluster")
        for server in self.nameservers:
            server.start()
        if self._has_secret and not self.secret_path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_cluster_secret(self.secret_path, secrets.token_bytes(SECRET_BYTES))
        for broker in [*self.brokers, *self.slaves]:
            broker.start()
        for number in {one.number for one in self.brokers if one.self_id}:
            self.wait_for_voters(number)

    def leader(self, number: int = 0) -> LocalBroker | None:
        """The member that takes sends in a failover group; None while there is none."""
        members = [one for one in self.brokers if one.number == number and one.self_id]
        return leader_of([one for one in members if one.is_running])

    def wait_for_leader(
        self,
        number: int = 0,
        *,
        besides: LocalBroker | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> LocalBroker:
        """Wait until a member takes sends, another one than ``besides``."""
        found: list[LocalBroker] = []

        def is_there() -> bool:
            leader = self.leader(number)
            found[:] = [leader] if leader is not None and leader is not besides else []
            return bool(found)

        eventually(is_there, "a member of the failover group leads", timeout_s=timeout_s)
        return found[0]

    def wait_for_voters(self, number: int = 0, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all members of a failover group vote and have the log, besides the leader.

        Its founder is alone at first.
        """
        group = [one for one in self.brokers if one.number == number]

        def are_there() -> bool:
            leader = self.leader(number)
            status = member_status(leader.caller, leader) if leader is not None else None
            return status is not None and status.in_sync_slaves == len(group) - 1

        eventually(are_there, "all members of the failover group vote", timeout_s=timeout_s)

    def kill_leader(self, number: int = 0) -> LocalBroker:
        """Kill the member that takes sends, and return it; ``start`` takes it back."""
        leader = self.wait_for_leader(number)
        leader.kill()
        return leader

    def partition(self, *members: LocalBroker) -> None:
        """Cut these members off from the others of their groups; they still reach each other.

        Clients and NameServers reach all. It lasts until ``heal``, also over restarts.
        """
        self._apart = {id(member) for member in members}
        self._end_member_links()

    def heal(self) -> None:
        """End ``partition``: members link up again."""
        self._apart = set()
        self._end_member_links()

    def may_reach(self, member: LocalBroker, address: str) -> bool:
        """Whether a member of a group can link up with the one at an address."""
        apart = {
            f"{one.place.host}:{one.member_port}" for one in self.brokers if id(one) in self._apart
        }
        return (id(member) in self._apart) == (address in apart)

    def _end_member_links(self) -> None:
        if self.in_children:
            raise ContrailError("members in children cannot be cut off: `pause` stops one")

        async def end() -> None:
            for member in self.brokers:
                if member.app is not None:
                    member.app.end_member_links()

        self.run(end())

    def stop(self) -> None:
        """Stop all servers; a folder that was not given is removed.

        A server that fails to stop keeps no other from being stopped; its error is raised at the
        end.
        """
        errors: list[BaseException] = []
        for stop in self._stops():
            try:
                stop()
            except BaseException as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup("parts of the cluster could not be stopped", errors)

    def _stops(self) -> Iterator[Callable[[], None]]:
        """The servers to stop, in order."""
        yield from (broker.stop for broker in [*self.slaves, *self.brokers])
        yield from (server.stop for server in self.nameservers)
        yield self.caller.close
        if self._thread is not None:
            yield self._thread.close
        if self._temporary is not None:
            yield self._temporary.cleanup

    def _stop_after(self, error: BaseException) -> None:
        """Stop because of an error, which matters more than errors of the stop."""
        try:
            self.stop()
        except Exception as other:
            error.add_note(f"stopping the cluster failed too: {other!r}")

    def wait_for_slaves(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the running slaves have all that their masters have.

        All of their masters must run; a slave that is cut off is not waited for.
        """
        for master in self.brokers:
            slaves = [one for one in self.slaves if one.name == master.name and one.follows]
            if slaves:
                wait_for_slaves(self.caller, master, slaves, timeout_s)

    def advance(
        self, *, ms: int = 0, seconds: float = 0, minutes: float = 0, hours: float = 0
    ) -> None:
        """Move the clock this cluster was given, and run the jobs that are due then.

        Children read their clock many times a second.
        """
        clock = self.clock
        assert isinstance(clock, ManualClock | SharedClock | MovedClock), (
            "give the cluster a clock to move"
        )
        clock.advance(ms=ms + round(seconds * 1000 + minutes * 60_000), hours=hours)
        if not self.in_children:
            self.run(self._run_due(clock.now_ms()))

    async def _run_due(self, now_ms: int) -> None:
        for broker in [*self.brokers, *self.slaves]:
            if broker.app is not None:
                self._keep_registered(broker, now_ms)
                broker.app.run_due(now_ms)
        for server in self.nameservers:
            if server.app is not None:
                server.app.schedule.run_due(now_ms)

    def _keep_registered(self, broker: LocalBroker, now_ms: int) -> None:
        """Refresh registrations: a jump of the clock must not evict a running broker."""
        cluster = broker.properties().get("brokerClusterName", "DefaultCluster")
        for server in self.nameservers:
            if server.app is not None:
                server.app.tables.heard(BrokerKey(cluster, broker.address), now_ms)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's event loop."""
        assert self._thread is not None
        return self._thread.run(work)

    # Waiting for children.

    def wait_for_port(self, address: str, child: _Child) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        host, _, port = address.rpartition(":")
        while True:
            child.require_alive()
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    return
            if time.monotonic() > deadline:
                raise ContrailError(f"nothing listens at {address} after {_START_TIMEOUT_S} s")
            _pause()

    def wait_for_routes(self, broker: LocalBroker) -> None:
        """Wait until every NameServer knows the broker."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        for server in self.nameservers:
            while broker.address.encode() not in self._cluster_info(server):
                if time.monotonic() > deadline:
                    raise ContrailError(f"{broker.name} did not register with {server.address}")
                _pause()

    def _cluster_info(self, server: LocalNameServer) -> bytes:
        return self.caller.call(server.address, RequestCode.GET_BROKER_CLUSTER_INFO).body

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException as error:
            self._stop_after(error)
            raise
        return self

    def __exit__(
        self, kind: object = None, error: BaseException | None = None, trace: object = None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._stop_after(error)


def _pause() -> None:
    threading.Event().wait(_POLL_S)


def free_port() -> int:
    """A port without a listener at this moment; not given again soon."""
    return _free_port(0)


def free_port_pair() -> int:
    """A port whose fast port, two below it, and HA port, behind it, are free too."""
    return _free_port(0, -2, 1)


def _free_port(*shifts: int) -> int:
    for _ in range(_SHARE_SIZE // _PORT_STEP):
        port = next(_own_ports)
        if all(_is_free(port + shift) for shift in shifts):
            return port
    raise ContrailError(f"no free port near {port}: end what listens on so many")


def _is_free(port: int) -> bool:
    """Whether the port can be bound; connections that have just ended do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _share_of_ports() -> Iterator[int]:
    """This process's share of the ports, from a random one on, round and round.

    Parallel workers of pytest are named gw0, gw1 and so on: each has a share of its own, so that no
    worker picks a port that another has picked and not bound yet.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _PORTS[worker * _SHARE_SIZE % len(_PORTS)]
    share = list(range(first, first + _SHARE_SIZE, _PORT_STEP))
    start = random.SystemRandom().randrange(len(share))
    return cycle(share[start:] + share[:start])


_own_ports = _share_of_ports()
