"""Sender CPU of pushing log bytes to slaves: views written by the loop, or ``sendfile`` by threads.

``python -m bench.replication_push`` prints one row per way, number of sinks and bytes per push. The
sinks are a child process that reads and discards; only this process's CPU time is counted. A row
is the CPU per stored message of 1,178 bytes (a 1 KB body), the best of its rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from contrail.runtime.event_loop import choose_event_loop, run

_HEADER = Struct(">qi")
_LOG_BYTES = 64 << 20
_MESSAGE_BYTES = 1_178
_ROUNDS = 3
_PUSHES = (1_178, 9 << 10, 64 << 10, 256 << 10)
_HIGH_BYTES = 4 << 20


def main() -> None:
    with _log_file() as (fd, log):
        for sink_count in (1, 2):
            for push_bytes in _PUSHES:
                views = min(_by_views(log, sink_count, push_bytes) for _ in range(_ROUNDS))
                threads = min(_by_sendfile(fd, sink_count, push_bytes) for _ in range(_ROUNDS))
                print(
                    f"{sink_count} sink(s), pushes of {push_bytes:>7,} B: "
                    f"views {views:.2f} µs/message, sendfile threads {threads:.2f} µs/message",
                    flush=True,
                )


@contextlib.contextmanager
def _log_file() -> Iterator[tuple[int, mmap.mmap]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "segment"
        path.write_bytes(os.urandom(1 << 20) * (_LOG_BYTES >> 20))
        fd = os.open(path, os.O_RDONLY)
        try:
            yield fd, mmap.mmap(fd, _LOG_BYTES, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)


@contextlib.contextmanager
def _sinks(count: int) -> Iterator[list[socket.socket]]:
    """Sockets whose other ends a child reads until they are closed."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        try:
            _discard([listener.accept()[0] for _ in range(count)])
        finally:
            os._exit(0)
    address = listener.getsockname()
    senders = [socket.create_connection(address) for _ in range(count)]
    listener.close()
    try:
        yield senders
    finally:
        for sender in senders:
            sender.close()
        os.waitpid(child, 0)


def _discard(readers: list[socket.socket]) -> None:
    def read(reader: socket.socket) -> None:
        buffer = bytearray(1 << 20)
        while reader.recv_into(buffer):
            pass

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _by_views(log: mmap.mmap, sink_count: int, push_bytes: int) -> float:
    with _sinks(sink_count) as senders:
        begun_s = time.process_time()
        run(_push_views(log, senders, push_bytes), choose_event_loop())
        return _per_message(begun_s)


async def _push_views(log: mmap.mmap, senders: list[socket.socket], push_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    transports = []
    for sender in senders:
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=sender)
        transport.set_write_buffer_limits(high=_HIGH_BYTES)
        transports.append(transport)
    view = memoryview(log)
    for start in range(0, _LOG_BYTES, push_bytes):
        part = view[start : start + push_bytes]
        header = _HEADER.pack(start, len(part))
        for transport in transports:
            transport.writelines([header, part])
        # One push per turn of the loop, as a broker that appends between two turns.
        await asyncio.sleep(0)
        while max(t.get_write_buffer_size() for t in transports) > _HIGH_BYTES // 2:
            await asyncio.sleep(0.001)
    while any(t.get_write_buffer_size() for t in transports):
        await asyncio.sleep(0.001)
    for transport in transports:
        transport.close()


def _by_sendfile(fd: int, sink_count: int, push_bytes: int) -> float:
    """A thread per sink, woken for each push through a pipe."""
    with _sinks(sink_count) as senders:
        begun_s = time.process_time()
        pipes = [os.pipe() for _ in senders]
        threads = [
            threading.Thread(target=_send_files, args=(fd, sender, reader))
            for sender, (reader, _) in zip(senders, pipes, strict=True)
        ]
        for thread in threads:
            thread.start()
        for start in range(0, _LOG_BYTES, push_bytes):
            note = _HEADER.pack(start, min(push_bytes, _LOG_BYTES - start))
            for _, writer in pipes:
                os.write(writer, note)
        for _, writer in pipes:
            os.close(writer)
        for thread in threads:
            thread.join()
        return _per_message(begun_s)


def _send_files(fd: int, sender: socket.socket, reader: int) -> None:
    while note := os.read(reader, _HEADER.size):
        start, byte_count = _HEADER.unpack(note)
        sender.send(note, socket.MSG_MORE)
        while byte_count:
            sent = os.sendfile(sender.fileno(), fd, start, byte_count)
            start += sent
            byte_count -= sent
    os.close(reader)


def _per_message(begun_s: float) -> float:
    return (time.process_time() - begun_s) * 1e6 * _MESSAGE_BYTES / _LOG_BYTES


if __name__ == "__main__":
    main()
