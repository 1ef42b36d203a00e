"""A sender that never stops: messages keep coming while a test lets other things happen."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from tests.interop.clients.driver import Driver, Event, RunningDriver
from tests.interop.clients.target import Cluster
from tests.interop.clients.traffic import aim
from tests.interop.peers import PeerFailed

_ROUND = 500
_PAUSE_MS = 20
_POLL_S = 0.1


class SteadySender:
    """Sends in rounds of a process each, and repeats failed messages until acknowledged."""

    def __init__(self, client: Driver, cluster: Cluster, topic: str) -> None:
        self._client = client
        self._arguments = aim(
            cluster,
            topic,
            {
                "group": f"senders_{topic}",
                "mode": "sync",
                "count": _ROUND,
                "pause_ms": _PAUSE_MS,
                "retry_forever": True,
            },
        )
        self._rounds: list[RunningDriver] = []

    def __enter__(self) -> Self:
        self._next_round()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def acknowledged(self) -> list[Event]:
        """The messages acknowledged by brokers so far."""
        return [event for one in self._rounds for event in one.of("sent")]

    def wait_for_more(self, count: int, timeout_s: float) -> None:
        """Wait until ``count`` more messages than now are acknowledged."""
        wanted = len(self.acknowledged()) + count
        deadline = time.monotonic() + timeout_s
        while len(self.acknowledged()) < wanted:
            self.keep_going()
            if time.monotonic() > deadline:
                raise PeerFailed(f"not {count} more messages in {timeout_s} s\n{self._rounds[-1]}")
            time.sleep(_POLL_S)

    def keep_going(self) -> None:
        """Begin another round if the last one is over."""
        if not self._rounds[-1].running:
            self._rounds[-1].close()
            self._next_round()

    def stop(self) -> None:
        """End the sender; messages acknowledged by then are known."""
        self._rounds[-1].close()

    def _next_round(self) -> None:
        start = 1 + _ROUND * len(self._rounds)
        self._rounds.append(self._client.start("send", self._arguments | {"start": start}))
