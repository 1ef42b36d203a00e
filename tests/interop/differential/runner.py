"""Send the run to a cluster, one request at a time, and keep the answers."""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from contrail.model import fastjson
from contrail.model.message_id import decode_offset_message_id
from contrail.model.record import split_record_run
from tests.interop.differential.raw import (
    ONE_WAY_FLAG,
    Answer,
    PeerClosed,
    Pushed,
    RawConnection,
)
from tests.interop.differential.requests import (
    BROKER,
    Facts,
    FieldValue,
    Moment,
    Reference,
    Request,
)

ANSWER_TIMEOUT_S = 30.0
# An answer that comes after all is counted as a stray one of the next request.
_UNANSWERED_S = 0.5
_AWAITED_S = 60.0
_DISPATCH_TIMEOUT_S = 60.0
_GET_BROKER_RUNTIME_INFO = 28
# Codes that store messages; the next read waits until the queues have them.
STORING = frozenset({10, 310, 320, 36, 37, 323, 324, 325, 370})

# Over this connection a client sends heartbeats, and answers the server's requests.
RELAYED = "relayed"
# The same for a client that is sent replies; it says again and again that it lives.
ASKER = "asking-client"
_RUNNING_INFO = (
    b'{"properties":{"PROP_CLIENT_VERSION":"V5_3_3"},"statusTable":{},"subscriptionSet":[]}'
)
_CONSUMED = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
_STATUS = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"Alpha"}:5}}'
RELAYED_BODIES = {221: _STATUS, 307: _RUNNING_INFO, 309: _CONSUMED, 326: b""}


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, or the error instead of one."""

    answer: Answer | None
    instead: str = ""
    # The server's requests to clients before its answer.
    pushed: tuple[Pushed, ...] = ()


class Side:
    """One cluster under test, with the connections to it that the requests name."""

    def __init__(self, namesrv: str, facts: Facts) -> None:
        self.namesrv = namesrv
        self.facts = facts
        self.peers: set[str] = set()
        self._connections: dict[tuple[str, str], RawConnection] = {}
        self._labelled: dict[str, Answer] = {}
        self._stored = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()

    def perform(self, request: Request) -> Outcome:
        """Send one request and return its outcome."""
        if request.target == BROKER and request.code not in STORING and self._stored:
            self._wait_for_dispatch()
        outcome = self._send(request)
        deadline = time.monotonic() + _AWAITED_S
        while request.awaited and not _succeeded(outcome) and time.monotonic() < deadline:
            time.sleep(0.05)
            outcome = self._send(request)
        if request.connection in (RELAYED, ASKER):
            self._connection(request.target, request.connection).serve(RELAYED_BODIES)
        else:
            outcome = dataclasses.replace(outcome, pushed=self._pushed())
        self._stored = self._stored or (request.target == BROKER and request.code in STORING)
        if request.label is not None and outcome.answer is not None:
            self._labelled[request.label] = outcome.answer
        return outcome

    def _pushed(self) -> tuple[Pushed, ...]:
        clients = [(BROKER, name) for name in (RELAYED, ASKER)]
        served = [self._connections[one] for one in clients if one in self._connections]
        return tuple(pushed for one in served for pushed in one.take_pushed())

    def _send(self, request: Request) -> Outcome:
        connection = self._connection(request.target, request.connection)
        fields = request.fields
        if fields is not None:
            fields = {name: self._resolve(value) for name, value in fields.items()}
        body = request.body if isinstance(request.body, bytes) else request.body(self.facts)
        try:
            if request.one_way:
                header = dict(request.header) | {"flag": ONE_WAY_FLAG}
                connection.tell(request.code, fields, body, header=header, binary=request.binary)
                return Outcome(None, "one-way")
            with connection.waiting(_UNANSWERED_S if request.unanswered else ANSWER_TIMEOUT_S):
                answer = connection.ask(
                    request.code, fields, body, header=request.header, binary=request.binary
                )
            return Outcome(answer)
        except TimeoutError:
            return Outcome(None, "silence")
        except (PeerClosed, ConnectionError):
            self._connections.pop((request.target, request.connection)).close()
            return Outcome(None, "closed")

    def _connection(self, target: str, name: str) -> RawConnection:
        if (target, name) not in self._connections:
            address = self.facts.broker_address if target == BROKER else self.namesrv
            opened = RawConnection(address, timeout_s=ANSWER_TIMEOUT_S)
            self._connections[target, name] = opened
        return self._connections[target, name]

    def _resolve(self, value: FieldValue) -> FieldValue:
        if isinstance(value, Moment):
            text = value.text.replace("{at}", str(time.time_ns() // 1_000_000 + value.after_ms))
            return base64.urlsafe_b64encode(text.encode()).decode() if value.encoded else text
        if not isinstance(value, Reference):
            return value
        # A refusal in place of the answer is a difference of its own, already seen.
        answer = self._labelled[value.label]
        if value.name == "record":
            run = list(split_record_run(answer.body))
            return str(run[0].physical_offset + value.beside) if run else "0"
        found = answer.fields.get(value.name)
        if found is None:
            return "0"
        if not value.physical:
            return found
        return str(decode_offset_message_id(found).physical_offset + value.beside)

    def _wait_for_dispatch(self) -> None:
        """Until the queues show every stored message."""
        connection = self._connection(BROKER, "dispatch")
        deadline = time.monotonic() + _DISPATCH_TIMEOUT_S
        while time.monotonic() < deadline:
            table = fastjson.loads(connection.ask(_GET_BROKER_RUNTIME_INFO).body)
            assert isinstance(table, dict) and isinstance(table["table"], dict)
            if table["table"]["dispatchBehindBytes"] == "0":
                self._stored = False
                return
            time.sleep(0.002)
        raise AssertionError(f"{self.facts.broker_address} did not dispatch what it stored")


def _succeeded(outcome: Outcome) -> bool:
    return outcome.answer is not None and outcome.answer.code == 0


def perform_all(side: Side, requests: Iterable[Request]) -> list[Outcome]:
    """Every outcome of a run against one cluster alone."""
    return [side.perform(request) for request in requests]
