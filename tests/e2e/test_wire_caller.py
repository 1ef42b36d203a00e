"""Outbound requests over real sockets: connections that are shared, broken, silent or absent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from contrail.errors import CallFailed
from contrail.protocol.command import Request, Response, encode_response
from contrail.protocol.frames import FrameDecoder
from contrail.testing import BlockingCaller
from contrail.testing.cluster import free_port
from tests.e2e.raw_client import PATIENCE_S

SILENT, HANG_UP = 1, 2


class Listener:
    """A server that answers each request with its body, unless the code says otherwise."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.accepted_count = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.accepted_count += 1
            with connection:
                connection.settimeout(PATIENCE_S)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        while data := connection.recv(1 << 16):
            for request in decoder.feed(data):
                assert isinstance(request, Request)
                if request.code == HANG_UP:
                    return
                if request.code != SILENT:
                    answer = Response(0, None, {}, request.body)
                    connection.sendall(b"".join(encode_response(answer, request.opaque)))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def listener() -> Iterator[Listener]:
    opened = Listener()
    yield opened
    opened.close()


@pytest.fixture
def caller(listener: Listener) -> Iterator[BlockingCaller]:
    with BlockingCaller() as opened:
        yield opened


@pytest.mark.proves("wire.server.caller")
def test_one_connection_to_an_address_is_shared_and_made_again_when_it_broke(
    listener: Listener, caller: BlockingCaller
) -> None:
    for number in range(3):
        assert caller.call(listener.address, 10, {}, b"%d" % number).body == b"%d" % number
    assert listener.accepted_count == 1
    with pytest.raises(CallFailed):
        caller.call(listener.address, HANG_UP)
    assert caller.call(listener.address, 10, {}, b"again").body == b"again"
    assert listener.accepted_count == 2


@pytest.mark.proves("wire.server.caller")
def test_a_call_that_is_not_answered_fails_in_time(
    listener: Listener, caller: BlockingCaller
) -> None:
    with pytest.raises(CallFailed):
        caller.call(listener.address, SILENT, timeout_ms=50)
    # The late answer to a call that was given up must not be taken for another's.
    assert caller.call(listener.address, 10, {}, b"next").body == b"next"


@pytest.mark.proves("wire.server.caller")
def test_a_broken_connection_fails_its_calls_at_once(
    listener: Listener, caller: BlockingCaller
) -> None:
    began_s = time.monotonic()
    with pytest.raises(CallFailed):
        caller.call(listener.address, HANG_UP, timeout_ms=60_000)
    assert time.monotonic() - began_s < 30


def test_an_address_where_nobody_listens_is_named(caller: BlockingCaller) -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CallFailed, match=address):
        caller.call(address, 10)


def test_a_text_that_is_no_address_is_refused(caller: BlockingCaller) -> None:
    with pytest.raises(CallFailed, match="host:port"):
        caller.call("nowhere", 10)
