"""The access suite: the price of access control for a send, and for a pull of 32 messages.

Each row sends the same messages to two brokers of this tree: one without access control by frames
that nobody signed, and one with it by frames that a Normal user signed. Every frame has a unique
key of its own, as a producer's have, so no two signatures are alike. CPU is that of the whole
server process under steady load.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.harness import BenchError, Figures, Limit, Row, Samples, cpu_us_per_record, in_rounds
from bench.warm_pages import warm_pages
from bench.wire_frames import (
    BATCH_MESSAGES,
    NUMBER,
    PULL_MESSAGES,
    TOPIC,
    batch_frame,
    frame_bytes,
    pull_frame,
    send_frame,
)
from bench.wire_parts import (
    ANSWER_TIMEOUT_S,
    HOST,
    Server,
    Shape,
    ask,
    pinned,
    process_cpu_s,
    running_broker,
    settle,
)
from contrail.protocol.codes import RequestCode
from contrail.protocol.signing import Credentials, signed_fields

_ROOT = Credentials("root", "the-root-password")
_USER = Credentials("producer", "the-password-of-the-producer")
_ACCESS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps(
        {"username": _ROOT.access_key, "password": _ROOT.secret_key}
    ),
}
_FRAMES = 2048
_WARM_PART = 5
# By size: how often, and how many requests of each row.
SIZES = {"full": (7, 60_000), "quick": (2, 6_000), "tiny": (1, 200)}


def groups() -> list[str]:
    return ["send", "batch", "pull"]


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    rounds, count = SIZES[size]
    if group == "send":
        frames = _numbered(send_frame())
        deep = Shape(connections=1, depth=64, count=count)
        wide = Shape(connections=64, depth=1, count=count // 2)
        return [
            _row("send 1 KB", folder / "deep", frames, deep, rounds, Limit("<=", 6, on="figure")),
            _row("send 1 KB", folder / "wide", frames, wide, rounds, Limit("<=", 15, on="figure")),
        ]
    if group == "batch":
        shape = Shape(connections=1, depth=8, count=count // BATCH_MESSAGES)
        name = f"send batches of {BATCH_MESSAGES}"
        return [_row(name, folder / "batch", _numbered(batch_frame()), shape, rounds)]
    shape = Shape(connections=4, depth=4, count=count // 4)
    return [_row(f"pull {PULL_MESSAGES} x 1 KB", folder / "pull", [pull_frame()], shape, rounds)]


def _row(
    what: str,
    folder: Path,
    frames: list[bytes],
    shape: Shape,
    round_count: int,
    limit: Limit | None = None,
) -> Row:
    signed = [_signed(one, _USER) for one in frames]
    with ExitStack() as running:
        off = running.enter_context(running_broker(folder / "off", "ASYNC_FLUSH"))
        on = running.enter_context(running_broker(folder / "on", "ASYNC_FLUSH", properties=_ACCESS))
        _make_user(on)
        for _ in range(PULL_MESSAGES):
            ask(off, send_frame())
            ask(on, _signed(send_frame(), _ROOT))
        sides = {
            "off": partial(_loaded, off, frames, shape),
            "on": partial(_loaded, on, signed, shape),
        }
        taken = in_rounds(round_count, sides, warm_up=sides.values())
    before, after = cpu_us_per_record(taken["off"]), cpu_us_per_record(taken["on"])
    return Row(
        name=f"{what}, {shape}: signed beside open",
        unit="µs CPU more",
        ours=Samples((after.median - before.median,)),
        limit=limit,
        details={"off_us": round(before.median, 2), "on_us": round(after.median, 2)},
    )


# Frames.


def _numbered(frame: bytes) -> list[bytes]:
    """The same request many times, each with a unique key of its own."""
    return [frame.replace(NUMBER, b"%09d" % (int(NUMBER) + at)) for at in range(_FRAMES)]


def _parts(frame: bytes) -> tuple[bytes, bytes]:
    header_end = 8 + int.from_bytes(frame[5:8], "big")
    return frame[8:header_end], frame[header_end:]


def _signed(frame: bytes, credentials: Credentials) -> bytes:
    header, body = _parts(frame)
    document = json.loads(header)
    document["extFields"] = signed_fields(document["extFields"], body, credentials)
    header = json.dumps(document, separators=(",", ":")).encode()
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big")
        + len(header).to_bytes(4, "big")
        + header
        + body
    )


def _make_user(server: Server) -> None:
    def request(code: int, fields: dict[str, str], body: object) -> bytes:
        document = {"code": int(code), "extFields": fields, "flag": 0, "language": "JAVA"}
        header = json.dumps({**document, "opaque": 1, "version": 479}).encode()
        data = json.dumps(body).encode()
        total = 4 + len(header) + len(data)
        frame = total.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + data
        return _signed(frame, _ROOT)

    name = _USER.access_key
    password = {"password": _USER.secret_key}
    ask(server, request(RequestCode.AUTH_CREATE_USER, {"username": name}, password))
    entries = [
        {"resource": resource, "actions": ["All"], "decision": "Allow"}
        for resource in (f"Topic:{TOPIC}", "Group:*")
    ]
    rights = {"policies": [{"policyType": "Custom", "entries": entries}]}
    ask(server, request(RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, rights))


# The load.


def _loaded(server: Server, frames: list[bytes], shape: Shape) -> Figures:
    """Keep ``shape`` requests in flight; the server's CPU without the first part."""
    warm_pages(server.log.parent, 3 * shape.count * len(frames[0]))
    settle(server)
    with pinned("load"), _Load(server, frames, shape) as load:
        load.run(shape.count // _WARM_PART)
        cpu_s, wall_s, answered = process_cpu_s(server.pid), time.monotonic(), load.answered
        load.run(shape.count)
        return {
            "cpu_s": process_cpu_s(server.pid) - cpu_s,
            "wall_s": time.monotonic() - wall_s,
            "record_count": load.answered - answered,
        }


class _Load:
    """Connections that send the next request for each answer."""

    def __init__(self, server: Server, frames: list[bytes], shape: Shape) -> None:
        self._frames, self._next, self.answered = frames, 0, 0
        self._selector = selectors.DefaultSelector()
        self._pending: dict[socket.socket, bytes] = {}
        for _ in range(shape.connections):
            peer = socket.create_connection((HOST, server.port), timeout=ANSWER_TIMEOUT_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pending[peer] = b""
            self._selector.register(peer, selectors.EVENT_READ)
        self._depth = shape.depth

    def __enter__(self) -> _Load:
        for peer in self._pending:
            self._send(peer, self._depth)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for peer in self._pending:
            peer.close()

    def run(self, count: int) -> None:
        until = self.answered + count
        while self.answered < until:
            ready = self._selector.select(ANSWER_TIMEOUT_S)
            if not ready:
                raise BenchError("a broker has stopped answering")
            for key, _ in ready:
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                self._read(peer)

    def _read(self, peer: socket.socket) -> None:
        data = self._pending[peer] + peer.recv(1 << 20)
        at = count = 0
        while len(data) - at >= 4 and len(data) - at >= (end := frame_bytes(data[at : at + 4])):
            if b'"code":0,' not in data[at : at + 300]:
                raise BenchError(f"a request was refused: {data[at + 8 : at + 400]!r}")
            at += end
            count += 1
        self._pending[peer] = data[at:]
        self.answered += count
        if count:
            self._send(peer, count)

    def _send(self, peer: socket.socket, count: int) -> None:
        chosen = [self._frames[(self._next + at) % len(self._frames)] for at in range(count)]
        self._next += count
        peer.sendall(b"".join(chosen))
