"""Sends that wait for the disk are bounded, and one-way sends are not lost to that bound."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_request
from contrail.testing import LocalCluster
from tests.e2e.ways import BOTH_WAYS_IN_MATRIX

TOPIC = "orders"
FIELDS = {"a": "g", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1", "h": "0"}


def frames(count: int, flag: int) -> bytes:
    requests = (
        Request(RequestCode.SEND_MESSAGE_V2, number, FIELDS, b"body", flag)
        for number in range(count)
    )
    return b"".join(encode_request(request) for request in requests)


@pytest.fixture(params=BOTH_WAYS_IN_MATRIX)
def fast_path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_one_way_sends_are_all_stored_under_sync_flush(tmp_path: Path, fast_path: str) -> None:
    count = 5_000
    properties = {"contrailFastPath": fast_path, "flushDiskType": "SYNC_FLUSH"}
    with LocalCluster(folder=tmp_path, properties=properties) as cluster:
        address = cluster.brokers[0].address
        with socket.create_connection(("127.0.0.1", cluster.brokers[0].port)) as peer:
            peer.sendall(frames(count, FLAG_ONE_WAY))
            # The answer to a last two-way send says that the others have been taken.
            peer.sendall(frames(1, 0))
            assert peer.recv(1)
        answer = cluster.caller.call(
            address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}
        )
        assert answer.fields["offset"] == str(count + 1)


@pytest.mark.proves("broker.fast.end-end-tests")
def test_sends_beyond_the_bound_are_answered_busy_and_the_rest_stored(
    tmp_path: Path, fast_path: str
) -> None:
    count = 5_000
    properties = {"contrailFastPath": fast_path, "flushDiskType": "SYNC_FLUSH"}
    with LocalCluster(folder=tmp_path, properties=properties) as cluster:
        with socket.create_connection(("127.0.0.1", cluster.brokers[0].port)) as peer:
            peer.sendall(frames(count, 0))
            stored = busy = 0
            received = peer.makefile("rb")
            for _ in range(count):
                body = received.read(int.from_bytes(received.read(4), "big"))
                stored += b'"code":0,' in body
                busy += b'"code":%d,' % ResponseCode.SYSTEM_BUSY in body
            received.close()
        assert stored + busy == count
        answer = cluster.caller.call(
            cluster.brokers[0].address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}
        )
        assert answer.fields["offset"] == str(stored)


def test_a_setting_that_stands_in_every_message_is_changed_at_once(
    tmp_path: Path, fast_path: str
) -> None:
    with LocalCluster(folder=tmp_path, properties={"contrailFastPath": fast_path}) as cluster:
        address = cluster.brokers[0].address
        call = cluster.caller.call
        fields = FIELDS | {"i": "UNIQ_KEY\x01a1\x02"}
        for _ in range(2):
            assert call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x").code == 0
        assert call(address, RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false\n").code == 0
        for _ in range(2):
            answer = call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x")
            assert answer.fields["TRACE_ON"] == "false"
        app = cluster.brokers[0].app
        assert app is not None
        # Requests are answered from queues that follow the log; the store itself may be behind.
        call(address, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        found = app.store.get(TOPIC.encode(), 0, 0).messages
        assert [message.properties["TRACE_ON"] for message in found] == ["true"] * 2 + ["false"] * 2


def test_one_way_sends_are_stored_even_if_their_sender_leaves_at_once(
    tmp_path: Path, fast_path: str
) -> None:
    rounds, count = 30, 20
    properties = {"contrailFastPath": fast_path}
    with LocalCluster(folder=tmp_path, in_children=True, properties=properties) as cluster:
        for _ in range(rounds):
            with socket.create_connection(("127.0.0.1", cluster.brokers[0].port)) as peer:
                peer.sendall(frames(count, FLAG_ONE_WAY))
        wanted, found = str(rounds * count), ""
        deadline = time.monotonic() + 60
        while found != wanted and time.monotonic() < deadline:
            found = cluster.caller.call(
                cluster.brokers[0].address,
                RequestCode.GET_MAX_OFFSET,
                {"topic": TOPIC, "queueId": "0"},
            ).fields["offset"]
        assert found == wanted
