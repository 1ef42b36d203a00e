"""A client as the tests of retries and delays see it, whichever it is.

The Java clients get commands in a process that runs already; the others start one process to send
and one to receive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tests.interop.clients.driver import Driver, Event, RunningDriver
from tests.interop.clients.kinds import Kinds
from tests.interop.clients.session import JavaSession
from tests.interop.clients.traffic import aim, numbered, send

_READY_TIMEOUT_S = 120.0
_CONSUME_TIMEOUT_S = 280.0


class Consuming(ABC):
    """A consumer at work; ``with`` ends it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def received(self) -> list[Event]:
        """The messages received so far, in that order."""

    @abstractmethod
    def close(self) -> None: ...

    def received_keys(self) -> list[str]:
        return [event["key"] for event in self.received()]

    def times(self, key: str) -> list[int]:
        """How often each copy of a message had been tried before, as the client received it."""
        return [event["reconsume_times"] for event in self.received() if event["key"] == key]


class Party(ABC):
    """One client, able to send numbered messages and to receive."""

    @abstractmethod
    def send(self, topic: str, count: int, *, delay_level: int = 0) -> None:
        """Send messages ``k-1`` to ``k-count``."""

    @abstractmethod
    def consume(
        self,
        topic: str,
        group: str,
        *,
        fail_times: Mapping[str, int] | None = None,
        orderly: bool = False,
        max_reconsume_times: int | None = None,
    ) -> Consuming:
        """Receive from the first message on; each key fails as often as is said, then no more."""


class JavaParty(Party):
    def __init__(self, session: JavaSession, name: str) -> None:
        self._session = session
        self._name = name

    def send(self, topic: str, count: int, *, delay_level: int = 0) -> None:
        name = f"{self._name}-sender"
        self._session.do("producer", name=name, group=f"senders_{self._name}")
        wanted: dict[str, Any] = {"delay_level": delay_level} if delay_level else {}
        self._session.send(name, topic, numbered(1, count), **wanted)
        self._session.close(name)

    def consume(
        self,
        topic: str,
        group: str,
        *,
        fail_times: Mapping[str, int] | None = None,
        orderly: bool = False,
        max_reconsume_times: int | None = None,
    ) -> Consuming:
        name = f"{self._name}-{group}"
        wanted: dict[str, Any] = {"fail_times": dict(fail_times or {}), "orderly": orderly}
        if max_reconsume_times is not None:
            wanted["max_reconsume_times"] = max_reconsume_times
        self._session.do("consumer", name=name, group=group, topic=topic, suspend_ms=100, **wanted)
        return _InSession(self._session, name)


class _InSession(Consuming):
    def __init__(self, session: JavaSession, name: str) -> None:
        self._session = session
        self._name = name

    def received(self) -> list[Event]:
        return self._session.of("received", self._name)

    def close(self) -> None:
        self._session.close(self._name)


class ProcessParty(Party):
    def __init__(self, client: Driver, kinds: Kinds) -> None:
        self._client = client
        self._kinds = kinds

    def send(self, topic: str, count: int, *, delay_level: int = 0) -> None:
        send(self._client, self._kinds, topic, count=count, delay_level=delay_level)

    def consume(
        self,
        topic: str,
        group: str,
        *,
        fail_times: Mapping[str, int] | None = None,
        orderly: bool = False,
        max_reconsume_times: int | None = None,
    ) -> Consuming:
        wanted: dict[str, Any] = {
            "group": group,
            "from": "first",
            "timeout_s": _CONSUME_TIMEOUT_S,
            "fail_times": dict(fail_times or {}),
            "orderly": orderly,
        }
        if max_reconsume_times is not None:
            wanted["max_reconsume_times"] = max_reconsume_times
        running = self._client.start("push", aim(self._kinds, topic, wanted))
        try:
            running.wait_for_event("ready", _READY_TIMEOUT_S)
        except BaseException:
            running.close()
            raise
        return _InProcess(running)


class _InProcess(Consuming):
    def __init__(self, running: RunningDriver) -> None:
        self._running = running

    def received(self) -> list[Event]:
        return self._running.of("received")

    def close(self) -> None:
        self._running.close()
