"""Many producers and consumers of Apache's Java client in one process, driven by commands.

``java/KindDriver.java`` at the other end. A JVM takes seconds to start, so that all tests of the
message kinds share one per version of the client.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.interop.clients.driver import Driver, Event, RunningDriver
from tests.interop.peers import PeerFailed, java_peer

_HEAP = "-Xmx192m"
_START_TIMEOUT_S = 120.0
_COMMAND_TIMEOUT_S = 120.0

PINS = {"java5": "java-client-5", "java4": "java-client-4"}


class _KindDriver(Driver):
    def __init__(self, pin: str, homes: Path) -> None:
        super().__init__(homes)
        self._peer = java_peer(pin)

    def command_line(self, home: Path) -> list[str]:
        return self._peer.command("KindDriver", [], home=home, ours=True, heap=_HEAP)


class JavaSession:
    """One process of the Java client; names of producers and consumers are the test's own."""

    def __init__(self, client: str, namesrv: str, homes: Path) -> None:
        driver = _KindDriver(PINS[client], homes)
        self._running: RunningDriver = driver.start("serve", {"namesrv": namesrv})
        self._ids = itertools.count(1)

    def __enter__(self) -> Self:
        self._running.wait_for_event("ready", _START_TIMEOUT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._running.close()

    def kill(self) -> None:
        """End the process with SIGKILL, without unregistering."""
        self._running.kill()

    def begin(self, what: str, **arguments: Any) -> int:
        """Send a command, and return the number that its answer will have."""
        number = next(self._ids)
        self._running.tell({"id": number, "do": what, **arguments})
        return number

    def answer(self, number: int) -> Event:
        """The result of a sent command: ``ok`` or ``failed``."""

        def is_answer(event: Event) -> bool:
            return event.get("id") == number

        events = self._running.wait_for(
            lambda events: any(map(is_answer, events)), _COMMAND_TIMEOUT_S
        )
        return next(filter(is_answer, events))

    def do(self, what: str, **arguments: Any) -> Event:
        """Send a command and wait until it is done."""
        answer = self.answer(self.begin(what, **arguments))
        if answer["event"] != "ok":
            raise PeerFailed(f"the client could not {what} {arguments}: {answer['text']}")
        return answer

    def send(self, producer: str, topic: str, keys: list[str], **arguments: Any) -> list[Event]:
        """Send a message of each key, in turn, and return the sender's receipts."""
        sent: list[Event] = self.do("send", producer=producer, topic=topic, keys=keys, **arguments)[
            "sent"
        ]
        assert [event["status"] for event in sent] == ["SEND_OK"] * len(keys), sent
        return sent

    def transact(self, producer: str, topic: str, key: str, fate: str) -> Event:
        """Send a half message; ``fate`` is the end of its local transaction."""
        answer = self.do("transact", producer=producer, topic=topic, key=key, fate=fate)
        sent: Event = answer["sent"]
        return sent

    def close(self, *names: str) -> None:
        """Shut producers and consumers down."""
        for name in names:
            self.do("close", name=name)

    def received(self, name: str) -> list[str]:
        """The keys of a consumer's messages, in the order of receipt."""
        return [event["key"] for event in self.of("received", name)]

    def of(self, kind: str, by: str) -> list[Event]:
        """The events of one kind that one producer or consumer printed."""
        return [event for event in self._running.of(kind) if event["by"] == by]

    @property
    def events(self) -> list[Event]:
        """Everything it printed so far."""
        return self._running.events

    def __str__(self) -> str:
        return str(self._running)
