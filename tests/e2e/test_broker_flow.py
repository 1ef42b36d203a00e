"""A broker whose disk or event loop is behind: requests that wait, or that are refused."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from contrail.broker.app import Broker
from contrail.broker.settings import read_broker_settings
from contrail.clock import ManualClock
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.testing import LocalCluster, eventually
from contrail.testing.cluster import TEST_PROPERTIES, free_port_pair
from contrail.testing.loop import LoopThread
from tests.e2e.asking import properties_text
from tests.e2e.raw_client import RawClient, pull_fields, send_fields
from tests.fakes.watched_files import WatchedFileSystem

SEND = RequestCode.SEND_MESSAGE_V2


class HeldDisk(WatchedFileSystem):
    """A disk whose syncs of the log take until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()

    def fdatasync(self, fd: int) -> None:
        if "commitlog" in str(self.path_of(fd)):
            self.may_sync.wait(60)
        super().fdatasync(fd)


@dataclass
class SlowBroker:
    """A broker on such a disk, with a clock to move."""

    app: Broker
    disk: HeldDisk
    clock: ManualClock
    loop: LoopThread

    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)

        async def run_due() -> None:
            self.app.run_due(self.clock.now_ms())

        self.loop.run(run_due())


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory, fast_path: str) -> Iterator[SlowBroker]:
    folder = tmp_path_factory.mktemp("slow")
    properties = {
        **TEST_PROPERTIES,
        "contrailFastPath": fast_path,
        "flushDiskType": "SYNC_FLUSH",
        "listenPort": str(free_port_pair()),
        "storePathRootDir": str(folder / "store"),
    }
    settings = read_broker_settings(properties)
    disk, clock, loop = HeldDisk(), ManualClock(), LoopThread("slow-broker")

    async def make() -> Broker:
        app = Broker(settings.broker, settings.store, clock=clock, files=disk)
        await app.start()
        return app

    app = loop.run(make())
    try:
        yield SlowBroker(app, disk, clock, loop)
    finally:
        disk.may_sync.set()
        loop.run(app.stop())
        loop.close()


def fields_of(topic: str, **properties: str) -> dict[str, str]:
    return send_fields(topic, i=properties_text(properties))


def wait_for_parked(broker: SlowBroker, count: int) -> None:
    acknowledgements = broker.app._acknowledgements
    eventually(lambda: len(acknowledgements) >= count, "a send waits for the disk")


@pytest.mark.proves("broker.send.wait-store-ok")
def test_sends_that_do_not_wait_for_the_disk_are_answered_before_it(slow: SlowBroker) -> None:
    with RawClient(slow.app.port) as client:
        assert client.call(SEND, fields_of("waits"), b"first").code == 0
        slow.disk.may_sync.clear()
        client.send(encode_request(Request(SEND, 71, fields_of("waits"), b"patient")))
        wait_for_parked(slow, 1)
        hurried = Request(SEND, 72, fields_of("waits", WAIT="false"), b"hurried")
        client.send(encode_request(hurried))
        first = client.next_frame()
        assert (first.opaque, first.code) == (72, ResponseCode.SUCCESS)
        slow.disk.may_sync.set()
        second = client.next_frame()
        assert (second.opaque, second.code) == (71, ResponseCode.SUCCESS)


@pytest.mark.proves("broker.send.flow-control", "broker.fast.end-end-tests")
def test_a_disk_that_is_behind_makes_the_broker_busy(slow: SlowBroker) -> None:
    with RawClient(slow.app.port) as client:
        assert client.call(SEND, fields_of("behind"), b"first").code == 0
        slow.disk.may_sync.clear()
        client.send(encode_request(Request(SEND, 81, fields_of("behind"), b"stuck")))
        wait_for_parked(slow, 1)
        slow.advance(1_001)
        busy = client.call(SEND, fields_of("behind"), b"refused")
        assert busy.code == ResponseCode.SYSTEM_BUSY
        slow.disk.may_sync.set()
        eventually(lambda: not slow.app._acknowledgements, "the disk catches up")
        assert client.call(SEND, fields_of("behind"), b"taken").code == 0
        found = client.call(RequestCode.PULL_MESSAGE, pull_fields("behind", 0))
    assert b"stuck" in found.body and b"taken" in found.body and b"refused" not in found.body


def test_a_sync_that_takes_too_long_is_told(slow: SlowBroker) -> None:
    with RawClient(slow.app.port) as client:
        assert client.call(SEND, fields_of("late"), b"first").code == 0
        slow.disk.may_sync.clear()
        client.send(encode_request(Request(SEND, 91, fields_of("late"), b"late")))
        wait_for_parked(slow, 1)
        slow.advance(5_001)
        answer = client.next_frame()
    assert (answer.opaque, answer.code) == (91, ResponseCode.FLUSH_DISK_TIMEOUT)


@pytest.mark.proves("broker.send.fast-failure")
def test_sends_and_pulls_that_waited_too_long_are_answered_busy(
    fast_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"brokerFastFailureEnable": "true", "contrailFastPath": fast_path}
    with (
        LocalCluster(properties=properties) as cluster,
        RawClient(cluster.brokers[0].port) as client,
        RawClient(cluster.brokers[0].port) as other,
    ):
        app = cluster.brokers[0].app
        assert app is not None
        # Of another one, too: who is alone with sending waits for no tick.
        assert client.call(SEND, fields_of("queued"), b"x").code == 0
        assert other.call(SEND, fields_of("queued"), b"x").code == 0
        with monkeypatch.context() as patch:
            # Six seconds pass between any two looks at the time: whatever arrives is old.
            patch.setattr(app.server, "monotonic_s", itertools.count(1_000_000, 6).__next__)
            busy = [
                client.call(SEND, fields_of("queued"), b"y"),
                client.call(RequestCode.PULL_MESSAGE, pull_fields("queued", 0)),
            ]
        assert [answer.code for answer in busy] == [ResponseCode.SYSTEM_BUSY] * 2
        eventually(lambda: client.call(SEND, fields_of("queued"), b"z").code == 0, "it recovers")


@pytest.mark.proves("wire.server.no-task-per-request")
def test_no_request_has_a_task_of_its_own() -> None:
    with LocalCluster() as cluster, RawClient(cluster.brokers[0].port) as client:
        app = cluster.brokers[0].app
        assert app is not None
        assert client.call(SEND, fields_of("tasks"), b"x").code == 0

        async def count_tasks() -> int:
            return len(asyncio.all_tasks())

        pulls = (Request(RequestCode.PULL_MESSAGE, n, pull_fields("tasks", 1)) for n in range(200))
        client.send(b"".join(encode_request(pull) for pull in pulls))
        eventually(lambda: len(app.pulls.held.parked) == 200, "all pulls are held")
        # The periodic jobs, and perhaps a registration under way.
        assert cluster.run(count_tasks()) < 20


@pytest.mark.proves("wire.server.one-append-per-tick")
def test_sends_of_all_connections_in_one_tick_are_one_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalCluster() as cluster:
        app = cluster.brokers[0].app
        assert app is not None
        # The last connection that sent would not wait for the others.
        with RawClient(cluster.brokers[0].port) as first:
            assert first.call(SEND, fields_of("together"), b"x").code == 0
        clients = [RawClient(cluster.brokers[0].port) for _ in range(5)]
        for client in clients:
            assert client.call(RequestCode.GET_MAX_OFFSET, _queue("together")).code == 0
        runs: list[int] = []
        append = app.store.append_chunks

        def counted(chunks: list[Any]) -> object:
            runs.append(sum(chunk[1] for chunk in chunks))
            return append(chunks)

        monkeypatch.setattr(app.fast.sends, "_store", _Appending(app.store, counted))

        async def all_at_once() -> None:
            """The loop reads all sockets in one round, for it was busy with this."""
            byte_count = 0
            for client in clients:
                frames = (Request(SEND, n, fields_of("together"), b"y") for n in range(1, 4))
                data = b"".join(encode_request(request) for request in frames)
                client.send(data)
                byte_count += len(data)
            # A busy machine hands over a little later what was written.
            eventually(lambda: _unread_bytes(app) == byte_count, "everything can be read")

        cluster.run(all_at_once())
        for client in clients:
            for _ in range(3):
                assert client.next_frame().code == 0
            client.close()
    assert runs == [15]


def _unread_bytes(app: Broker) -> int:
    """The unread bytes in the sockets of a broker's connections."""
    return sum(
        int.from_bytes(fcntl.ioctl(number, termios.FIONREAD, bytes(4)), sys.byteorder)
        for connection in app.server.connections
        if (number := connection.socket_number) is not None
    )


def _queue(topic: str) -> dict[str, str]:
    return {"topic": topic, "queueId": "0"}


class _Appending:
    """A store whose appends of fast sends are watched."""

    def __init__(self, store: object, append_chunks: object) -> None:
        self._store = store
        self.append_chunks = append_chunks

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)
