"""A proxy between a slave and its master's HA port that writes down every byte of both.

``python -m tests.interop.replication.recording apache5`` makes the recording of that release
anew, in ``tests/interop/golden/ha``: an Apache master and an Apache slave over segments of 8 KiB
in chunks of 1,000 bytes, idle long enough for heartbeats, and the slave restarted in between.

A recording is a list of pieces: who sent it (``C`` a connection opens, ``M`` the master, ``S`` the
slave) as one byte, milliseconds since the start as u32, length as u32, then the bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from contrail.aio import Admin, Message, Producer
from contrail.testing import eventually
from tests.interop.replication.replicas import APACHE_4, APACHE_5, BROKER_NAME, Replicas

GOLDEN = Path(__file__).parent.parent / "golden" / "ha"
SEGMENT_BYTES = 8192
CHUNK_BYTES = 1000
OPENED, MASTER, SLAVE = b"C", b"M", b"S"

_PIECE = struct.Struct(">cII")
_HEARTBEAT_BYTES = 12
_SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "haTransferBatchSize": str(CHUNK_BYTES),
    "maxMessageSize": "4096",
}
_MESSAGE_COUNT = 40
_TOPIC = "recorded"


class Piece(NamedTuple):
    """Bytes that one side sent at once, as far as the proxy saw them together."""

    sender: bytes
    elapsed_ms: int
    data: bytes


def encode(pieces: Iterable[Piece]) -> bytes:
    return b"".join(
        _PIECE.pack(one.sender, one.elapsed_ms, len(one.data)) + one.data for one in pieces
    )


def decode(data: bytes) -> list[Piece]:
    pieces, position = [], 0
    while position < len(data):
        sender, elapsed_ms, length = _PIECE.unpack_from(data, position)
        position += _PIECE.size
        pieces.append(Piece(sender, elapsed_ms, data[position : position + length]))
        position += length
    return pieces


class RecordingProxy:
    """Listens on another host's port; each connection is carried on there and written down."""

    def __init__(self, host: str, target: str) -> None:
        name, port = target.rsplit(":", 1)
        self._target = name, int(port)
        self._listener = socket.create_server((host, int(port)))
        self._began = time.monotonic()
        self._pieces: list[Piece] = []
        self._sockets: list[socket.socket] = [self._listener]

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @property
    def pieces(self) -> list[Piece]:
        """The pieces recorded so far."""
        return list(self._pieces)

    def count(self, sender: bytes, length: int | None = None) -> int:
        """The pieces of one sender, or those of one length."""
        return sum(one.sender == sender and length in (None, len(one.data)) for one in self.pieces)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                slave, _ = self._listener.accept()
                try:
                    master = socket.create_connection(self._target, timeout=5)
                except OSError:
                    # As if the master itself had refused.
                    slave.close()
                    continue
                master.settimeout(None)
                self._sockets += [slave, master]
                self._note(OPENED, b"")
                for source, sink, sender in ((slave, master, SLAVE), (master, slave, MASTER)):
                    threading.Thread(
                        target=self._carry, args=(source, sink, sender), daemon=True
                    ).start()

    def _carry(self, source: socket.socket, sink: socket.socket, sender: bytes) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._note(sender, data)
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _note(self, sender: bytes, data: bytes) -> None:
        elapsed_ms = int(1000 * (time.monotonic() - self._began))
        self._pieces.append(Piece(sender, elapsed_ms, data))


def record(kind: str, folder: Path) -> list[Piece]:
    """Let a master and a slave of Apache's talk, and return every byte they said."""
    replicas = Replicas(kind, [kind], folder, properties=_SETTINGS)
    assert replicas.network is not None
    master, (slave,) = replicas.master, replicas.slaves
    replicas.network.open()
    with RecordingProxy(replicas.network.address, master.ha_address) as proxy:
        # Slaves are told this address; 5.5.0 forgets one that its slave is given by a setting.
        master.properties = {**master.properties, "brokerIP2": replicas.network.address}
        with replicas:
            asyncio.run(_send(replicas.namesrv, 0, 1))
            replicas.wait_until_equal("after the first message")
            asyncio.run(_send(replicas.namesrv, 1, _MESSAGE_COUNT - 1))
            replicas.wait_until_equal("after the first half")
            _wait_for_heartbeats(proxy)
            slave.kill()
            asyncio.run(_send(replicas.namesrv, _MESSAGE_COUNT, _MESSAGE_COUNT))
            slave.start()
            replicas.wait_until_equal("after the restart")
            _wait_for_heartbeats(proxy)
            return proxy.pieces


def _wait_for_heartbeats(proxy: RecordingProxy) -> None:
    """Both sides say something every 5 s without news."""
    count = proxy.count(MASTER, _HEARTBEAT_BYTES)
    eventually(lambda: proxy.count(MASTER, _HEARTBEAT_BYTES) > count + 1, "two heartbeats")


async def _send(namesrv: str, first: int, count: int) -> None:
    async with Admin(namesrv, timeout_ms=10_000) as admin:
        await admin.create_topic(_TOPIC, queues=2, broker=BROKER_NAME)
    async with Producer("recorders", namesrv, send_timeout_ms=10_000) as producer:
        for number in range(first, first + count):
            body = f"message {number} ".encode() * (1 + number % 20)
            await producer.send(Message(_TOPIC, body, keys=[f"key-{number}"], tags="recorded"))


def main() -> None:
    kind = sys.argv[1]
    assert kind in (APACHE_5, APACHE_4), f"{kind}: {APACHE_5} or {APACHE_4}"
    with tempfile.TemporaryDirectory() as folder:
        pieces = record(kind, Path(folder))
    GOLDEN.mkdir(parents=True, exist_ok=True)
    path = GOLDEN / f"{kind}.stream"
    path.write_bytes(encode(pieces))
    print(f"{path}: {path.stat().st_size} bytes, {len(pieces)} pieces")


if __name__ == "__main__":
    main()
