"""Links between brokers, on transports in memory."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.errors import CallFailed
from contrail.wire.cluster_port import WRITE_BYTES_MAX, Link, ReadLink, dial, is_listed, unpace
from tests.fakes.transports import FakeTransport


class User:
    """Notes what a link tells."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.fails = False

    def opened(self, link: Link) -> None:
        self.told.append("opened")

    def received(self, link: Link, data: bytes) -> None:
        if self.fails:
            raise ValueError("a bug")
        self.told.append(data)

    def resumed(self, link: Link) -> None:
        self.told.append("resumed")

    def lost(self, link: Link, reason: str) -> None:
        self.told.append(("lost", reason))


def connected(
    user: User, peer: tuple[str, int] = ("198.51.100.7", 4000)
) -> tuple[ReadLink, FakeTransport]:
    link, transport = ReadLink(user), FakeTransport(peer)
    transport.connect(link)
    return link, transport


def test_bytes_are_handed_on_and_sent() -> None:
    user = User()
    link, transport = connected(user)
    link.data_received(b"abc")
    link.send([b"de", memoryview(b"f")])
    assert user.told == ["opened", b"abc"]
    assert b"".join(transport.written) == b"def"
    assert transport.write_bytes_max == WRITE_BYTES_MAX
    assert link.address == "198.51.100.7:4000" and link.channel == b""


class SocketTransport(FakeTransport):
    """A transport over a real socket; what it is given itself waits until ``flush``."""

    def __init__(self, own: socket.socket, peer: tuple[str, int] = ("127.0.0.1", 50_001)) -> None:
        super().__init__(peer)
        self._extra["socket"] = own
        self.waiting = b""

    def write(self, data: object) -> None:
        super().write(data)
        self.waiting += self.written[-1]

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def flush(self) -> bytes:
        waited, self.waiting = self.waiting, b""
        return waited


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, peer = socket.socketpair()
    with own, peer:
        peer.setblocking(False)
        yield own, peer


def test_a_file_goes_out_without_the_transport(
    tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    own, peer = sockets
    transport = SocketTransport(own)
    link = ReadLink(User())
    transport.connect(link)
    with _file(tmp_path, b"0123456789") as fd:
        link.send_file(b"head", memoryview(b"3456"), fd, 3)
    assert peer.recv(100) == b"head3456" and transport.written == []
    link.close("why")


def test_bytes_that_the_system_has_no_room_for_wait_as_a_view(
    tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    own, peer = sockets
    transport = SocketTransport(own)
    link = ReadLink(User())
    transport.connect(link)
    body = bytes(range(256)) * (64 << 10)
    with _file(tmp_path, body) as fd:
        link.send_file(b"head", memoryview(body), fd, 0)
        assert 0 < len(transport.waiting) < len(body)
        # Until it has left nothing more is asked of this link: views are copied, files are not.
        assert transport.write_bytes_max == 0
        # Bytes wait: the next frame may not overtake them.
        link.send_file(b"next", memoryview(body[:8]), fd, 0)
    got = bytearray()
    with contextlib.suppress(BlockingIOError):
        while True:
            got += peer.recv(1 << 20)
    assert got + transport.flush() == b"head" + body + b"next" + body[:8]
    link.close("why")


def test_a_broken_connection_is_left_to_the_transport(
    tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    own, peer = sockets
    transport = SocketTransport(own)
    link = ReadLink(User())
    transport.connect(link)
    peer.close()
    with _file(tmp_path, b"0123456789") as fd:
        link.send_file(b"head", memoryview(b"0123"), fd, 0)
    assert transport.flush() == b"head0123"
    link.close("why")


def test_a_transport_without_a_socket_gets_the_view(tmp_path: Path) -> None:
    link, transport = connected(User())
    with _file(tmp_path, b"0123456789") as fd:
        link.send_file(b"head", memoryview(b"0123"), fd, 0)
        link.close("why")
        link.send_file(b"late", memoryview(b"0123"), fd, 0)
    assert b"".join(transport.written) == b"head0123"


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="the system has no choice")
@pytest.mark.parametrize(
    ("host", "is_paced"), [("127.0.0.1", False), ("203.0.113.1", False), ("198.51.100.7", True)]
)
def test_only_a_link_from_another_host_has_the_systems_congestion_control(
    host: str, is_paced: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        system = _congestion(listener)
        assert unpace(listener) == system
        with socket.create_connection(listener.getsockname()):
            own, _ = listener.accept()
        assert _congestion(own) == b"reno"
        with own:
            transport = SocketTransport(own, (host, 4000))
            link = ReadLink(User(), congestion=system)
            transport.connect(link)
            assert _congestion(own) == (system if is_paced else b"reno")
            link.close("why")


def _congestion(end: socket.socket) -> bytes:
    return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@contextlib.contextmanager
def _file(folder: Path, data: bytes) -> Iterator[int]:
    path = folder / "segment"
    path.write_bytes(data)
    with path.open("rb") as opened:
        yield opened.fileno()


def test_a_slow_peer_pauses_the_link_until_it_has_read() -> None:
    user = User()
    link, _ = connected(user)
    link.pause_writing()
    assert link.is_paused
    link.resume_writing()
    assert not link.is_paused and user.told[-1] == "resumed"


def test_a_closed_link_hands_nothing_on_and_sends_nothing() -> None:
    user = User()
    link, transport = connected(user)
    link.close("why")
    link.data_received(b"late")
    link.send([b"late"])
    link.close("again")
    assert transport.was_aborted and transport.written == []
    assert user.told[:1] == ["opened"] and ("lost", "why") in user.told


def test_a_last_word_is_sent_before_the_end() -> None:
    async def story() -> None:
        link, transport = connected(User())
        link.close("why", last=[b"be", b"cause"])
        assert b"".join(transport.written) == b"because" and not transport.was_aborted

    asyncio.run(story())


def test_a_user_that_fails_ends_its_own_link_only(caplog: pytest.LogCaptureFixture) -> None:
    user = User()
    link, _ = connected(user)
    user.fails = True
    link.data_received(b"abc")
    assert link.is_closed and ("lost", "internal_error") in user.told
    assert "could not be handled" in caplog.text


@pytest.mark.parametrize(
    ("peer", "listed"),
    [("127.0.0.1", True), ("203.0.113.1", True), ("198.51.100.7", True), ("192.0.2.9", False)],
)
def test_this_host_and_listed_networks_are_told_from_others(peer: str, listed: bool) -> None:
    """The local end of these transports is 203.0.113.1."""
    link, _ = connected(User(), (peer, 4000))
    assert is_listed(link, (ipaddress.ip_network("198.51.100.0/24"),)) == listed


@pytest.mark.parametrize("address", ["nowhere", "host:0", "127.0.0.1:1"])
def test_an_address_that_cannot_be_reached_is_a_failed_call(address: str) -> None:
    with pytest.raises(CallFailed):
        asyncio.run(dial(User(), address))
