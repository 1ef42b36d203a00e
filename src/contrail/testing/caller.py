"""``wire.caller`` for tests that block: send a request to a server and return its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Self

from contrail.protocol.command import ReceivedResponse, Request
from contrail.protocol.signing import Credentials
from contrail.testing.loop import LoopThread
from contrail.wire.caller import Caller
from contrail.wire.connection import Connection


class BlockingCaller:
    """Calls any address; keeps the servers' own requests in ``requests``."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        """With ``credentials`` every call is signed."""
        self._thread = LoopThread("blocking-caller")
        self.requests: list[Request] = []
        self._caller = Caller(on_request=self._on_request, credentials=credentials)

    def _on_request(self, connection: Connection, request: Request) -> None:
        self.requests.append(request)

    def enter(self, namespace: Callable[[], None]) -> None:
        """Run something on the thread that makes the connections, before the first one."""

        async def run() -> None:
            namespace()

        self._thread.run(run())

    def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 10_000,
    ) -> ReceivedResponse:
        """The answer; raises ``CallFailed`` when there is none in time."""
        return self._thread.run(
            self._caller.call(address, code, fields, body, timeout_ms=timeout_ms),
            timeout_ms / 1000 + 10,
        )

    def notify(
        self, address: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        self._thread.run(self._caller.notify(address, code, fields, body))

    def close(self) -> None:
        self._thread.run(self._caller.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
