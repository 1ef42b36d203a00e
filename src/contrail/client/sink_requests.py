"""The requests of a bulk writer to a cluster: sink requests, which only Contrail's brokers answer.

A sink writes in numbered batches. The brokers remember over which queues the rows of a batch are
spread; one of them, the coordinator, remembers which batch is decided; every broker drops rows that
it stored before. ``contrail.pipeline`` decides which request is sent, and when; this file only
sends.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from contrail.client import instances
from contrail.client.admin import Admin
from contrail.client.admin_asking import decoded, number_field
from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.producer_settings import ProducerSettings
from contrail.client.refusals import refused
from contrail.client.sender import Sender
from contrail.client.settings import ClientSettings
from contrail.client.state.routes import MASTER_ID
from contrail.errors import (
    BackPressure,
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ClientClosed,
    ClientError,
    NameServerUnreachable,
    SendFailed,
)
from contrail.model.properties import UNIQ_KEY
from contrail.protocol.bodies.sinks import (
    Attempts,
    Queues,
    SinkStatus,
    decode_status,
    encode_attempts,
    encode_begin,
    encode_participants,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.signing import CredentialSource

_log = logging.getLogger(__name__)

T = TypeVar("T")

# By broker name: the attempt of each partition that counts.
Participants = Mapping[str, Attempts]

# Codes of a broker that may take the same request a little later.
_PASSING = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
# The time of a commit grows with its messages; a lost broker is noticed before.
_COMMIT_TIMEOUT_MS = 300_000
_FAILURES = (
    CallFailed,
    BrokerUnknown,
    BrokerRefused,
    NameServerUnreachable,
    SendFailed,
    BackPressure,
)
_PAUSE_S_FIRST = 0.05
_PAUSE_S_MAX = 2.0


@dataclass(frozen=True, slots=True)
class Stored:
    """The results of the messages of one send."""

    stored_count: int
    dropped_count: int = 0


class SinkRequests:
    """A client of one cluster that only writes in bulk. Use within one event loop."""

    def __init__(
        self,
        namesrv: str,
        *,
        group: str,
        send_timeout_ms: int,
        retry_ms: int,
        tls: bool | ssl.SSLContext = False,
        credentials: CredentialSource | None = None,
    ) -> None:
        """``send_timeout_ms`` is for one attempt; ``retry_ms`` is the limit for all attempts."""
        self._settings = ClientSettings.of(namesrv, tls=tls, credentials=credentials)
        self._admin = Admin(namesrv, tls=tls, credentials=credentials)
        self._group = group
        self._timeout_ms = send_timeout_ms
        self._retry_s = retry_ms / 1000
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None

    async def start(self) -> None:
        if self._instance is None:
            self._instance = instances.join(self._settings)
            await self._admin.start()
            settings = ProducerSettings(send_timeout_ms=self._timeout_ms)
            self._sender = Sender(self._instance, self._group, settings)

    async def close(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            await self._admin.close()
            await instances.leave(instance)

    async def __aexit__(self, *ignored: object) -> None:
        await self.close()

    def _opened(self) -> tuple[ClientInstance, Sender]:
        if self._instance is None or self._sender is None:
            raise ClientClosed("this sink client is not started, or closed")
        return self._instance, self._sender

    def take_ids(self, count: int) -> list[str]:
        """Message ids; may be called on any thread, one at a time."""
        instance, _ = self._opened()
        take, now_ms = instance.unique_ids.take, instance.clock.now_ms()
        return [take(now_ms) for _ in range(count)]

    # Brokers and queues.

    async def masters(self) -> list[str]:
        """The names of all brokers that have a master."""
        info = await self._admin.cluster_info()
        return sorted(name for name, one in info.brokers.items() if MASTER_ID in one.addresses)

    async def _address_of(self, broker_name: str, *, anew: bool) -> str:
        instance, _ = self._opened()
        known = instance.routes.master_of(broker_name)
        if known is not None and not anew:
            return known
        info = await self._admin.cluster_info()
        broker = info.brokers.get(broker_name)
        if broker is None or MASTER_ID not in broker.addresses:
            raise BrokerUnknown(f"broker {broker_name!r} has no master: start it again")
        return broker.addresses[MASTER_ID]

    async def publish_queues(self, topic: str, *, create: bool) -> tuple[MessageQueue, ...]:
        """The queues that a topic's messages may be sent to, in the order of the clients.

        With ``create`` a missing topic has the queues it would be created with.

        Raises:
            RouteMissing: the topic has no route.
        """
        instance, sender = self._opened()
        if not create:
            await instance.route(topic)
        return await sender.publish_queues(topic)

    async def topic_attributes(self, topic: str) -> dict[str, Mapping[str, str]]:
        """A topic's attributes by broker name."""
        configs = await self._admin.topic_config(topic)
        return {name: config.attributes for name, config in configs.items()}

    async def is_stored(self, topic: str, unique_id: str) -> bool:
        """Whether a broker finds a message with that id; index files lag by some moments."""
        found = await self._admin.messages_by_unique_key(topic, unique_id, allow_partial=True)
        return bool(found)

    # The sink's requests.

    async def status(self, broker_name: str, sink_id: str) -> SinkStatus | None:
        """The broker's state of a sink; None when the broker does not know sink requests."""
        what = f"the status of sink {sink_id!r}"
        answer = await self._ask(
            broker_name,
            RequestCode.CONTRAIL_SINK_STATUS,
            {"sinkId": sink_id},
            what=what,
            accepted=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        return decoded(decode_status, answer, what)

    async def begin(
        self,
        broker_name: str,
        sink_id: str,
        batch_id: int,
        topics: Mapping[str, Queues],
        coordinator: str,
    ) -> SinkStatus:
        """Record a batch's spread and its coordinator; an earlier record of the batch wins."""
        what = f"batch {batch_id} of sink {sink_id!r} to begin"
        answer = await self._ask(
            broker_name,
            RequestCode.CONTRAIL_SINK_BEGIN,
            {"sinkId": sink_id, "batchId": str(batch_id)},
            encode_begin(topics, coordinator),
            what=what,
        )
        return decoded(decode_status, answer, what)

    async def commit(
        self,
        broker_name: str,
        sink_id: str,
        batch_id: int,
        participants: Participants,
        *,
        decide: bool,
    ) -> None:
        """Decide a batch, at the coordinator; or carry a decision out, at any broker."""
        await self._ask(
            broker_name,
            RequestCode.CONTRAIL_SINK_COMMIT,
            {
                "sinkId": sink_id,
                "batchId": str(batch_id),
                "decide": "true" if decide else "false",
            },
            encode_participants(participants),
            what=f"batch {batch_id} of sink {sink_id!r} to be committed",
            timeout_ms=_COMMIT_TIMEOUT_MS,
        )

    async def abort(
        self, broker_name: str, sink_id: str, batch_id: int, attempts: Sequence[str]
    ) -> None:
        """Roll back the rows that attempts left prepared at a broker."""
        await self._ask(
            broker_name,
            RequestCode.CONTRAIL_SINK_ABORT,
            {"sinkId": sink_id, "batchId": str(batch_id)},
            encode_attempts(list(attempts)),
            what=f"batch {batch_id} of sink {sink_id!r} to be rolled back",
        )

    async def send_stamped(self, queue: MessageQueue, units: bytes, *, prepared: bool) -> Stored:
        """Send units with the numbers of their batch and row; the broker drops repeats."""
        what = f"rows for queue {queue.queue_id} of topic {queue.topic!r}"
        answer = await self._ask(
            queue.broker_name,
            RequestCode.CONTRAIL_SINK_SEND,
            {
                "topic": queue.topic,
                "queueId": str(queue.queue_id),
                "producerGroup": self._group,
                "prepared": "true" if prepared else "false",
            },
            units,
            what=what,
        )
        return Stored(
            number_field(answer, "storedCount", what), number_field(answer, "droppedCount", what)
        )

    async def _ask(
        self,
        broker_name: str,
        code: RequestCode,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        what: str,
        accepted: Sequence[ResponseCode] = (ResponseCode.SUCCESS,),
        timeout_ms: int | None = None,
    ) -> ReceivedResponse:
        """Repeat a request until it is answered: every sink request may be carried out twice."""
        instance, _ = self._opened()
        limit_ms = timeout_ms or self._timeout_ms

        async def once(attempt: int) -> ReceivedResponse:
            address = await self._address_of(broker_name, anew=attempt > 0)
            answer = await instance.call(address, code, fields, body, timeout_ms=limit_ms)
            if answer.code not in accepted:
                raise refused(answer, what, f"broker {broker_name} ({address})")
            return answer

        return await self._until_done(once, what)

    # Requests that every broker takes.

    async def send_batch(self, queue: MessageQueue, units: bytes, row_count: int) -> Stored:
        """Send units in an ordinary batch."""
        instance, _ = self._opened()
        properties = {UNIQ_KEY: instance.unique_ids.take(instance.clock.now_ms())}
        outgoing = Outgoing(
            queue.topic,
            units,
            properties,
            is_batch=True,
            code=RequestCode.SEND_BATCH_MESSAGE,
        )
        return await self.send_outgoing(queue, outgoing, row_count)

    async def send_outgoing(
        self, queue: MessageQueue, outgoing: Outgoing, row_count: int = 1
    ) -> Stored:
        """Send prepared units to one queue until they are stored, possibly twice."""
        _, sender = self._opened()

        async def once(attempt: int) -> Stored:
            await sender.send(outgoing, queue=queue, timeout_ms=self._timeout_ms)
            return Stored(row_count)

        return await self._until_done(once, f"rows for topic {queue.topic!r}")

    async def _until_done(self, once: Callable[[int], Awaitable[T]], what: str) -> T:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._retry_s
        pause_s = _PAUSE_S_FIRST
        for attempt in count():
            try:
                return await once(attempt)
            except _FAILURES as error:
                if not _may_pass(error) or loop.time() + pause_s > deadline_s:
                    raise _as_client_error(error, what) from error
                _log.info("%s: tried again in %.2f s: %s", what, pause_s, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
        raise AssertionError("an endless loop ended")


def _may_pass(error: Exception) -> bool:
    cause = error.__cause__ if isinstance(error, SendFailed) else error
    return not isinstance(cause, BrokerRefused) or cause.code in _PASSING


def _as_client_error(error: Exception, what: str) -> ClientError:
    if isinstance(error, ClientError):
        return error
    return ClientError(f"{what}: {error}")
