"""The processes of the replication suite: a master with its slaves, a backlog, sends meanwhile."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.backlog_parts import Link, quantile
from bench.harness import BenchError, Figures
from bench.warm_pages import warm_pages
from bench.wire_frames import BROKER_NAME, send_frame
from bench.wire_parts import (
    HOST,
    Flush,
    Server,
    Shape,
    ask,
    free_port,
    loaded,
    pinned,
    process_cpu_s,
    running_broker,
    settle,
    tail,
)
from contrail.broker.services.cluster_secret import write_cluster_secret
from contrail.broker.settings import read_broker_settings
from contrail.model.message import MessageDraft
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.store.log import MessageStore

_SECRET_BYTES = 32
_JOIN_TIMEOUT_S = 60
_CATCH_UP_TIMEOUT_S = 300
_PREPARED_TIMEOUT_S = 60
# A slave that catches up has a machine of its own elsewhere: here it may not take the sender's
# time on the core that both use.
_CATCH_UP_NICENESS = 10
_POLL_S = 0.02
# A log, its files and memory of the pages on their way, of a master and two slaves.
_WARM_COPIES = 9
_OLD_TOPIC = b"OldMessages"
_OLD_BODY_BYTES = 1024
_RUN_RECORDS = 512
# How much is stored between two ticks: about as much as a segment is prepared ahead.
_TICK_RUNS = 64
_NEW_TOPIC = "NewMessages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokers:
    """A broker under load and its slaves, none for a single one."""

    master: Server
    slaves: tuple[Server, ...] = ()

    def loaded(self, frame_file: Path, shape: Shape) -> Figures:
        """The load's figures, and under ``all_`` the CPU of each process over the whole load.

        The master's own CPU is that of the window, while the load is steady. A slave may be behind
        when the window closes: its CPU counts until it rests, for all messages of the load.
        """
        # Slaves' logs grow as the master's does: pages for all of them, alike for a single broker.
        warm_pages(self.master.log.parent, _WARM_COPIES * shape.count * frame_file.stat().st_size)
        for server in (self.master, *self.slaves):
            settle(server)
        before = {server.pid: process_cpu_s(server.pid) for server in (self.master, *self.slaves)}
        figures = loaded(self.master, frame_file, shape)
        wait_for_slaves(self.master, len(self.slaves))
        for server in self.slaves:
            settle(server)
        used = {pid: process_cpu_s(pid) - began for pid, began in before.items()}
        slaves_s = [used[slave.pid] for slave in self.slaves]
        return {
            **figures,
            "all_master_cpu_s": used[self.master.pid],
            "all_slave_cpu_s": sum(slaves_s) / max(len(slaves_s), 1),
            "all_count": figures["answered"],
        }


@contextmanager
def running_brokers(
    folder: Path, flush: Flush, *, slave_count: int, is_synchronous: bool
) -> Iterator[Brokers]:
    """A master on the servers' core, its slaves on the load's; all of them flush alike.

    A synchronous master waits for all of its slaves.
    """
    properties = _master_properties(folder, slave_count) if slave_count else {}
    if is_synchronous and slave_count:
        properties |= {"brokerRole": "SYNC_MASTER", "inSyncReplicas": str(slave_count + 1)}
    with ExitStack() as started:
        opened = running_broker(folder / "master", flush, properties=properties)
        master = started.enter_context(opened)
        slaves = tuple(
            started.enter_context(running_slave(folder, number, flush, properties))
            for number in range(1, slave_count + 1)
        )
        wait_for_slaves(master, slave_count)
        # The message that makes the topic.
        ask(master, send_frame())
        # Segments are prepared in the background first, a gigabyte for each broker and more.
        for server in (master, *slaves):
            settle(server, timeout_s=_PREPARED_TIMEOUT_S)
        yield Brokers(master=master, slaves=slaves)


def _master_properties(folder: Path, slave_count: int) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    write_cluster_secret(secret, secrets.token_bytes(_SECRET_BYTES))
    return {
        "contrailClusterSecretFile": str(secret),
        "haListenPort": str(free_port()),
        "totalReplicas": str(slave_count + 1),
        "metricsExporterType": "DISABLE",
    }


@contextmanager
def running_slave(
    folder: Path, number: int, flush: Flush, master_properties: Mapping[str, str]
) -> Iterator[Server]:
    """A slave of the master that has these properties."""
    properties = {
        "brokerId": str(number),
        "brokerRole": "SLAVE",
        "haMasterAddress": f"{HOST}:{master_properties['haListenPort']}",
        "contrailClusterSecretFile": master_properties["contrailClusterSecretFile"],
        "metricsExporterType": "DISABLE",
    }
    place = folder / f"slave-{number}"
    with ExitStack() as started:
        with pinned("load"):
            opened = running_broker(place, flush, properties=properties, is_pinned=False)
            slave = started.enter_context(opened)
        yield slave


def yield_to_others(server: Server) -> None:
    """Let a server's threads run behind all others on their core."""
    for thread in Path(f"/proc/{server.pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(thread.name), _CATCH_UP_NICENESS)


def status_of(link: Link) -> HaStatus:
    return decode_ha_status(link.called(RequestCode.GET_BROKER_HA_STATUS, {}).body)


def wait_for_slaves(master: Server, slave_count: int) -> None:
    """Until so many slaves have the whole log."""
    if slave_count == 0:
        return
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    with Link(master.port) as link:
        while not _have_all(status_of(link), slave_count):
            if time.monotonic() > deadline:
                raise BenchError(f"the slaves are not where the master is:\n{tail(master.log)}")
            time.sleep(_POLL_S)


def _have_all(status: HaStatus, slave_count: int) -> bool:
    ends = [slave.acknowledged_end for slave in status.slaves if slave.state == "receiving"]
    return len(ends) == slave_count and all(end >= status.physical_end for end in ends)


# Catching up.


def fill(root: str, byte_count: int) -> Figures:
    """Store 1 KB messages until the log has this length."""
    draft = MessageDraft(topic=_OLD_TOPIC, queue_id=0, body=bytes(_OLD_BODY_BYTES))
    properties = {"brokerName": BROKER_NAME, "storePathRootDir": root}
    store = MessageStore.open(read_broker_settings(properties).store)
    runs = 0
    while store.physical_end < byte_count:
        store.append([draft] * _RUN_RECORDS)
        store.dispatch()
        runs += 1
        if runs % _TICK_RUNS == 0:
            store.tick()
    store.close()
    return {"bytes": store.physical_end, "record_count": runs * _RUN_RECORDS}


@contextmanager
def running_filled_master(folder: Path, store: Path) -> Iterator[tuple[Server, dict[str, str]]]:
    """A master that has just been started on a filled store, and its properties."""
    properties = _master_properties(folder, 1) | {"storePathRootDir": str(store)}
    # The suite measures lateness: no send may be refused for it.
    properties |= {"brokerFastFailureEnable": "false"}
    with running_broker(folder / "master", "ASYNC_FLUSH", properties=properties) as master:
        yield master, properties


class PacedSends:
    """Sends one after the other at a steady rate, and keeps how long each answer took."""

    def __init__(self, port: int, rate: int) -> None:
        self._sends, self._questions = Link(port), Link(port)
        self._step_s = 1 / rate
        self.answer_us: list[float] = []

    def run(self, seconds: float) -> None:
        """Send for this long, and forget what was sent before."""
        self.answer_us.clear()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.send()

    def until_caught_up(self, physical_end: int) -> Figures:
        """Send until the only slave has the log up to here; says how long that took it.

        The time begins when the master knows the slave.
        """
        deadline = time.monotonic() + _CATCH_UP_TIMEOUT_S
        began_s = None
        while time.monotonic() < deadline:
            self.send()
            slaves = status_of(self._questions).slaves
            if began_s is None and slaves:
                began_s = time.perf_counter()
                self.answer_us.clear()
            if began_s is not None and slaves and slaves[0].acknowledged_end >= physical_end:
                return {"wall_s": time.perf_counter() - began_s, **self.figures()}
        raise BenchError(f"the slave did not catch up within {_CATCH_UP_TIMEOUT_S} s")

    def send(self) -> None:
        fields = {"a": "paced", "b": _NEW_TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
        fields |= {"g": "0", "h": "0", "i": "", "j": "0", "k": "false"}
        began_s = time.perf_counter()
        self._sends.ask(RequestCode.SEND_MESSAGE_V2, fields, bytes(_OLD_BODY_BYTES))
        for answer in self._sends.answers():
            if answer.code:
                raise BenchError(f"a message was refused: {answer.remark}")
        waited_s = time.perf_counter() - began_s
        self.answer_us.append(waited_s * 1e6)
        time.sleep(max(self._step_s - waited_s, 0))

    def figures(self) -> Figures:
        ordered = sorted(self.answer_us)
        return {
            "send_count": len(ordered),
            "p50_us": quantile(ordered, 0.5),
            "p99_us": quantile(ordered, 0.99),
        }

    def close(self) -> None:
        self._sends.close()
        self._questions.close()


def copied(log: Path, target: Path, byte_count: int) -> Figures:
    """``cp`` of as much of a log and a sync of it; of the last segment only what is written."""
    target.mkdir()
    began_s = time.perf_counter()
    for segment in sorted(log.iterdir()):
        rest = byte_count - int(segment.name)
        if rest >= segment.stat().st_size:
            subprocess.run(["cp", str(segment), str(target)], check=True)
        elif rest > 0:
            with (target / segment.name).open("wb") as output:
                subprocess.run(["head", "-c", str(rest), str(segment)], stdout=output, check=True)
    subprocess.run(["sync", *map(str, target.iterdir())], check=True)
    return {"wall_s": time.perf_counter() - began_s}
