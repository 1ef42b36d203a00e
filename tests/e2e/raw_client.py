"""A socket that speaks frames: what no well-behaved client sends, and what came back for it."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Mapping
from typing import Any, Self

from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.protocol.frames import FrameDecoder

PATIENCE_S = 60.0


class RawClient:
    """One connection. Every wait has a deadline."""

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((address, port), timeout=PATIENCE_S)
        self._decoder = FrameDecoder()
        self._frames: list[Any] = []
        self._opaque = 0

    @property
    def local_port(self) -> int:
        return int(self._socket.getsockname()[1])

    def send(self, data: bytes) -> None:
        """Write bytes; a server that has closed already is no error here."""
        try:
            self._socket.sendall(data)
        except OSError:
            return

    def has_news(self) -> bool:
        """Whether something has arrived, or does so in a moment."""
        return bool(self._frames or select.select([self._socket], [], [], 0.02)[0])

    def next_frame(self) -> Any:
        """The next request or response that arrives."""
        while not self._frames:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._frames += self._decoder.feed(data)
            assert self._decoder.failure is None, self._decoder.failure
        return self._frames.pop(0)

    def call(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> ReceivedResponse:
        """Ask and wait for the answer to just this; other frames are dropped."""
        self._opaque += 1
        self.send(encode_request(Request(code, self._opaque, dict(fields or {}), body)))
        return self.answer_to(self._opaque)

    def answer_to(self, opaque: int) -> ReceivedResponse:
        while True:
            found = self.next_frame()
            if isinstance(found, ReceivedResponse) and found.opaque == opaque:
                return found

    def wait_closed(self) -> None:
        """Until the server ends the connection; what still arrives is dropped."""
        try:
            while self._socket.recv(1 << 20):
                pass
        except ConnectionError:
            return

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send_fields(topic: str, **changes: str) -> dict[str, str]:
    """The header of a plain send in the short spelling; ``changes`` by letter."""
    fields = {"a": "producers", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
    fields |= {"g": "1700000000000", "h": "0", "i": "UNIQ_KEY\x01AC0001\x02", "j": "0"}
    return {**fields, **changes}


def pull_fields(topic: str, queue_offset: int, **changes: str) -> dict[str, str]:
    """The header of a pull that brings its own subscription and may be held."""
    fields = {
        "consumerGroup": "readers",
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(queue_offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "30000",
        "subscription": "*",
        "subVersion": "0",
    }
    return {**fields, **changes}


def heartbeat(client: str, *, group: str = "readers", topic: str = "orders") -> bytes:
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [
            {"topic": topic, "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}
        ],
    }
    return json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()
