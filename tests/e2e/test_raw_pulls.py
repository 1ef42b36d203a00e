"""Slices of queues read as raw records: exact, in order, whatever becomes of the broker."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrail.client.blocking.admin import Admin
from contrail.client.message import MessageQueue
from contrail.client.raw_pulls import IDLE_CONNECTIONS
from contrail.clock import ManualClock, SystemClock
from contrail.errors import CallFailed, CallTimedOut, ClientError, DataLost
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.options import SourceSettings
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import (
    FLAG_RESPONSE,
    Request,
    Response,
    encode_binary_request,
    encode_response,
)
from contrail.testing import LocalCluster, eventually
from contrail.testing.cluster import free_port
from contrail.wire.blocking_connection import BlockingConnection
from tests.e2e.raw_pull_scenes import SCENES, Queue, Scene, make_queue, of, offsets
from tests.e2e.test_wire_tls import make_certificate
from tests.e2e.ways import BOTH_WAYS_IN_MATRIX

SEGMENT_BYTES = 2 << 20


@pytest.fixture(autouse=True)
def no_idle_connections() -> Iterator[None]:
    yield
    IDLE_CONNECTIONS.close()


@pytest.fixture(scope="module", params=BOTH_WAYS_IN_MATRIX)
def fast_path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(fast_path: str) -> Iterator[LocalCluster]:
    properties = {"contrailFastPath": fast_path, "enablePropertyFilter": "true"}
    with LocalCluster(properties=properties) as running:
        yield running


@pytest.fixture(scope="module")
def children(fast_path: str) -> Iterator[LocalCluster]:
    properties = {"contrailFastPath": fast_path}
    with LocalCluster(in_children=True, properties=properties) as running:
        yield running


@pytest.mark.proves("broker.fast.end-end-tests")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_slice_is_read(cluster: LocalCluster, scene: Scene) -> None:
    scene(cluster.namesrv)


def test_a_broker_that_is_killed_and_started_again_is_read_on(children: LocalCluster) -> None:
    queue = make_queue(children.namesrv, "killed")
    queue.fill(1_000, body_bytes=16_000)
    chunks = queue.chunks(0, 1_000)
    found = of(next(chunks))
    broker = children.brokers[0]
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    for chunk in chunks:
        found += of(chunk)
    starting.join()
    assert offsets(found) == list(range(1_000))


def test_a_broker_that_does_not_answer_for_a_while_is_asked_again(children: LocalCluster) -> None:
    queue = make_queue(children.namesrv, "paused")
    queue.fill(1_000, body_bytes=16_000)
    chunks = queue.chunks(0, 1_000, timeout_ms="2000")
    found = of(next(chunks))
    broker = children.brokers[0].pid
    os.kill(broker, signal.SIGSTOP)
    waking = threading.Timer(3.0, os.kill, (broker, signal.SIGCONT))
    waking.start()
    try:
        for chunk in chunks:
            found += of(chunk)
    finally:
        waking.cancel()
        os.kill(broker, signal.SIGCONT)
    assert offsets(found) == list(range(1_000))


def test_a_broker_that_stays_away_is_given_up_on(children: LocalCluster) -> None:
    queue = make_queue(children.namesrv, "gone")
    queue.fill(100)
    broker = children.brokers[0]
    broker.kill()
    try:
        with pytest.raises(ClientError, match="could not be read for 600 ms, at 0"):
            queue.read(0, 100, timeout_ms="100")
        view = ClusterView(_impatient(queue))
        key = MessageQueue(queue.topic, broker.name, 0)
        assert view.ranges([key]) == {}
        assert view.away == {broker.name}
        view.close()
    finally:
        broker.start()
    assert offsets(queue.read(0, 100)) == list(range(100))


def _impatient(queue: Queue) -> SourceSettings:
    given = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}
    return SourceSettings.of(queue.options(**given), streaming=False)


def test_a_connection_that_ended_while_it_was_idle_is_not_used(children: LocalCluster) -> None:
    queue = make_queue(children.namesrv, "idle")
    queue.fill(10)
    assert offsets(queue.read(0, 10)) == list(range(10))
    children.brokers[0].stop()
    children.brokers[0].start()
    assert offsets(queue.read(0, 10)) == list(range(10))


def test_a_reader_that_stops_early_leaves_no_answers_to_the_next(children: LocalCluster) -> None:
    queue = make_queue(children.namesrv, "early")
    queue.fill(1_000, body_bytes=16_000)
    chunks = queue.chunks(0, 1_000)
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert offsets(queue.read(990, 1_000)) == list(range(990, 1_000))


class TestRetention:
    """Old segments are removed while a slice is planned or read."""

    @pytest.fixture
    def cluster(self) -> Iterator[LocalCluster]:
        # Files tell their age by the machine's clock; only the operator has them removed.
        clock = ManualClock(SystemClock().now_ms())
        hour = time.localtime(clock.now_ms() / 1000).tm_hour
        properties = {
            "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
            "fileReservedTime": "0",
            "deleteWhen": f"{(hour + 12) % 24:02}",
        }
        with LocalCluster(clock=clock, properties=properties) as running:
            yield running

    @pytest.fixture
    def queue(self, cluster: LocalCluster) -> Queue:
        queue = make_queue(cluster.namesrv, "aged")
        queue.fill(1_500, body_bytes=10_000)
        return queue

    @staticmethod
    def pass_retention(cluster: LocalCluster, queue: Queue) -> int:
        """The oldest offset that is left."""
        key = MessageQueue(queue.topic, queue.broker_name, 0)
        cluster.advance(ms=60_000)
        with Admin(cluster.namesrv) as admin:
            admin.delete_expired_segments(broker=queue.broker_name)

            def is_removed() -> bool:
                cluster.advance(ms=1_000)
                return admin.queue_offset_min(key) > 1_000

            eventually(is_removed, "the removal")
            return admin.queue_offset_min(key)

    def test_a_slice_that_begins_before_what_is_left_is_data_lost(
        self, cluster: LocalCluster, queue: Queue
    ) -> None:
        first = self.pass_retention(cluster, queue)
        with pytest.raises(DataLost, match=r"messages 10 to .* are gone: retention"):
            queue.read(10, 1_500)
        with pytest.raises(DataLost, match=r"messages 10 to .* are gone: retention"):
            queue.read(10, 1_500, tags="Aa || BB")
        left = queue.read(10, 1_500, fail="false")
        assert offsets(left) == list(range(first, 1_500))
        tagged = queue.read(10, 1_500, fail="false", tags="Aa || BB")
        assert offsets(tagged) == [number for number in range(first, 1_500) if number % 5]
        assert queue.read(10, 20, fail="false") == []

    def test_messages_removed_amid_a_read_are_data_lost(
        self, cluster: LocalCluster, queue: Queue
    ) -> None:
        strict, lenient = queue.chunks(0, 1_500), queue.chunks(0, 1_500, fail="false")
        before = of(next(lenient))
        next(strict)
        self.pass_retention(cluster, queue)
        with pytest.raises(DataLost, match="retention"):
            list(strict)
        found = offsets(before + [message for chunk in lenient for message in of(chunk)])
        assert found == sorted(set(found))
        assert found[: len(before)] == list(range(len(before)))
        assert found[-1] == 1_499
        assert len(found) < 1_500


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificates"
)
def test_a_connection_may_be_encrypted(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "tls", "server")
    given = {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}
    with LocalCluster(in_children=True, properties=given) as running:
        address = running.brokers[0].address
        trusting = ssl.create_default_context(cafile=certificate)
        trusting.check_hostname = False
        with BlockingConnection(address, tls=trusting) as connection:
            answer = connection.call(RequestCode.GET_ALL_TOPIC_CONFIG, {}, timeout_ms=60_000)
            assert answer.code == ResponseCode.SUCCESS
        with pytest.raises(CallFailed, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED"):
            BlockingConnection(address, tls=ssl.create_default_context())


def test_nobody_at_an_address_is_an_error_that_names_it() -> None:
    port = free_port()
    with pytest.raises(CallFailed, match=f"127.0.0.1:{port} cannot be reached"):
        BlockingConnection(f"127.0.0.1:{port}")


def encode_json(opaque: int, body: bytes) -> bytes:
    return b"".join(encode_response(Response(0, None, {"name": "välue"}, body), opaque))


def encode_binary(opaque: int, body: bytes) -> bytes:
    return encode_binary_request(Request(0, opaque, {"name": "välue"}, body, FLAG_RESPONSE))


class TestAPeerOfOurOwn:
    """A peer that misbehaves."""

    @pytest.fixture
    def listener(self) -> Iterator[socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield server

    @staticmethod
    def connect(listener: socket.socket) -> tuple[BlockingConnection, socket.socket]:
        connection = BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}")
        peer, _ = listener.accept()
        return connection, peer

    def test_one_that_says_nothing_is_timed_out(self, listener: socket.socket) -> None:
        connection, peer = self.connect(listener)
        with peer, pytest.raises(CallTimedOut, match="did not answer within 50 ms"):
            connection.call(28, {}, timeout_ms=50)
        assert connection.is_closed

    def test_one_that_closes_is_noticed(self, listener: socket.socket) -> None:
        connection, peer = self.connect(listener)
        peer.close()
        with pytest.raises(CallFailed, match="broke"):
            connection.call(28, {}, timeout_ms=60_000)
        assert connection.is_closed

    def test_one_that_writes_no_frames_is_cut_off(self, listener: socket.socket) -> None:
        connection, peer = self.connect(listener)
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with pytest.raises(CallFailed, match="broke"):
                connection.receive(timeout_ms=60_000)
        assert connection.is_closed

    @pytest.mark.parametrize("encode", [encode_json, encode_binary])
    def test_answers_come_in_pieces_any_order_and_both_header_forms(
        self, listener: socket.socket, encode: Callable[[int, bytes], bytes]
    ) -> None:
        connection, peer = self.connect(listener)
        bodies = {1: b"x" * 3_000_000, 2: b"", 3: b"y" * 100}
        frames = b"".join(encode(opaque, body) for opaque, body in bodies.items())

        def write() -> None:
            for start in range(0, len(frames), 70_001):
                peer.sendall(frames[start : start + 70_001])

        writing = threading.Thread(target=write)
        writing.start()
        with connection, peer:
            found = [connection.receive(timeout_ms=60_000) for _ in bodies]
            writing.join()
        assert {answer.opaque: answer.body for answer in found} == bodies
        assert {answer.fields["name"] for answer in found} == {"välue"}
