"""The parts of the load's clients: a connection, the requests they send, and a tally."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from contrail.errors import CallFailed
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.subscription import parse_subscription
from contrail.protocol.bodies.heartbeat import ConsumerData, Heartbeat, encode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.wire.caller import Caller
from contrail.wire.connection import Connection

TOPIC = "LoadTopic"
ONE_WAY_TOPIC = "LoadOneWay"
QUIET_TOPIC = "LoadQuiet"
TOPICS = (TOPIC, ONE_WAY_TOPIC, QUIET_TOPIC)
QUEUE_COUNT = 8
BODY_BYTES = 700
BATCH_COUNT = 32
# A shared machine may stall for long; no answer at all within this time is an error.
TIMEOUT_MS = 60_000

_OK = frozenset({int(ResponseCode.SUCCESS)})
_ERRORS_KEPT = 20
_RECENT_KEYS = 200
_ABANDONED_OPAQUE = 1 << 30


class Places(NamedTuple):
    """Where the servers are."""

    broker: str
    namesrv: str


class Tally:
    """The work of the load and its outcomes; ``stored`` counts acknowledged messages by queue."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.stored: Counter[str] = Counter()
        self.errors: list[str] = []
        self.keys: deque[str] = deque(maxlen=_RECENT_KEYS)

    def error(self, text: str) -> None:
        self.counts["errors"] += 1
        if len(self.errors) < _ERRORS_KEPT:
            self.errors.append(text)

    def report(self) -> str:
        return json.dumps(
            {"counts": self.counts, "stored": self.stored, "errors": self.errors}, sort_keys=True
        )


class Client:
    """One client: a connection to each server, opened when it is first used."""

    def __init__(self, name: str, places: Places, tally: Tally) -> None:
        self.name = name
        self.places = places
        self.tally = tally
        self._caller = Caller(on_request=self._told)
        self._connections: dict[str, Connection] = {}
        self._sent = 0

    def _told(self, connection: Connection, request: Request) -> None:
        self.tally.counts[f"told_{request.code}"] += 1

    async def ask(
        self,
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        expected: frozenset[int] = _OK,
        at_namesrv: bool = False,
    ) -> ReceivedResponse | None:
        """The answer; None and an entry in the tally when it is none that was expected."""
        address = self.places.namesrv if at_namesrv else self.places.broker
        try:
            connection = await self._connection(address)
            answer = await connection.call(code, fields or {}, body, timeout_ms=TIMEOUT_MS)
        except CallFailed as error:
            self.tally.error(f"{self.name}: {code.name}: {error}")
            return None
        self.tally.counts[code.name] += 1
        if answer.code not in expected:
            self.tally.error(f"{self.name}: {code.name}: {answer.code} {answer.remark}")
            return None
        return answer

    async def _connection(self, address: str) -> Connection:
        """The one connection to a server: a server that closed it has made an error."""
        connection = await self._caller.connection_to(address)
        if self._connections.setdefault(address, connection) is not connection:
            self._connections[address] = connection
            self.tally.error(f"{self.name}: its connection to {address} was closed")
        return connection

    async def tell(self, code: RequestCode, fields: Mapping[str, str], body: bytes = b"") -> None:
        """A one-way request to the broker."""
        connection = await self._connection(self.places.broker)
        connection.notify(code, fields, body)
        self.tally.counts[f"{code.name} one-way"] += 1

    async def abandon(self, code: RequestCode, fields: Mapping[str, str]) -> None:
        """Ask the broker and do not wait for its answer; who closes next leaves it unanswered."""
        connection = await self._connection(self.places.broker)
        connection.send([encode_request(Request(code, _ABANDONED_OPAQUE, dict(fields)))])
        # Time for the request to leave: a closed connection drops what it has not written.
        await asyncio.sleep(0.05)
        self.tally.counts[f"{code.name} abandoned"] += 1

    async def close(self) -> None:
        await self._caller.close()

    # The requests of clients.

    def next_key(self) -> str:
        self._sent += 1
        return f"{self.name}-{self._sent}"

    async def heartbeat(
        self, *, producer: str | None = None, consumer: ConsumerData | None = None
    ) -> bool:
        body = encode_heartbeat(
            Heartbeat(
                client_id=self.name,
                producer_groups=() if producer is None else (producer,),
                consumers=() if consumer is None else (consumer,),
            )
        )
        return await self.ask(RequestCode.HEART_BEAT, body=body) is not None

    async def send(self, topic: str, *, tag: str = "TagA") -> None:
        key = self.next_key()
        queue_id = random.randrange(QUEUE_COUNT)
        fields = send_fields(topic, queue_id, properties(key, tag))
        answer = await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body_of(key))
        if answer is not None:
            self.tally.stored[f"{topic}/{queue_id}"] += 1
            self.tally.keys.append(key)

    async def send_batch(self) -> None:
        queue_id = random.randrange(QUEUE_COUNT)
        keys = [self.next_key() for _ in range(BATCH_COUNT)]
        body = encode_batch(BatchUnit(body_of(key), properties(key).encode()) for key in keys)
        fields = {**send_fields(TOPIC, queue_id, properties(keys[0])), "m": "true"}
        if await self.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body) is not None:
            self.tally.stored[f"{TOPIC}/{queue_id}"] += BATCH_COUNT

    async def send_one_way(self) -> None:
        key = self.next_key()
        queue_id = random.randrange(QUEUE_COUNT)
        fields = send_fields(ONE_WAY_TOPIC, queue_id, properties(key))
        await self.tell(RequestCode.SEND_MESSAGE_V2, fields, body_of(key))
        self.tally.stored[f"{ONE_WAY_TOPIC}/{queue_id}"] += 1


def member_of(group: str, topic: str, expression: str = "*", kind: str = "TAG") -> ConsumerData:
    return ConsumerData(group=group, subscriptions=(parse_subscription(topic, expression, kind),))


def send_fields(topic: str, queue_id: int, property_text: str) -> dict[str, str]:
    return {
        "a": "load_producer",
        "b": topic,
        "c": "TBW102",
        "d": str(QUEUE_COUNT),
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": property_text,
        "j": "0",
        "k": "false",
        "m": "false",
    }


def pull_fields(
    group: str, topic: str, queue_id: int, queue_offset: int, *, hold_ms: int
) -> dict[str, str]:
    """A pull that commits the offset it starts at and is held when it finds nothing."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": "32",
        "sysFlag": "3",
        "commitOffset": str(queue_offset),
        "suspendTimeoutMillis": str(hold_ms),
        "subVersion": "0",
    }


def properties(key: str, tag: str = "TagA") -> str:
    pairs = (("UNIQ_KEY", f"U-{key}"), ("KEYS", key), ("TAGS", tag), ("WAIT", "true"))
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def body_of(key: str) -> bytes:
    text = f"{key} ".encode()
    return text * (BODY_BYTES // len(text))
