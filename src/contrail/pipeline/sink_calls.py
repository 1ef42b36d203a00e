"""The sink's calls, and the connection that makes them.

One connection per process and cluster, used by all tasks that run in the process one after the
other. Only the process that made it uses it; it is closed at exit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from contrail.client.blocking.client import BlockingClient
from contrail.client.message import MessageQueue
from contrail.client.sink_requests import Participants, SinkRequests, Stored
from contrail.pipeline.options import SinkSettings
from contrail.pipeline.sink_lanes import AsyncLanes, Parcel
from contrail.pipeline.sink_layout import BatchPlan, Topics
from contrail.protocol.bodies.sinks import SinkStatus

# A task repeats a request for this long before it gives up; a broker may restart meanwhile.
RETRY_MS = 60_000


class Calls(Protocol):
    """The calls of writers; ``SinkConnection``, and a fake in tests."""

    # The plans that all their brokers hold, by sink and batch.
    plans: dict[tuple[str, int], BatchPlan]

    def take_ids(self, count: int) -> list[str]: ...
    def masters(self) -> list[str]: ...
    def publish_queues(self, topic: str, *, create: bool) -> Sequence[MessageQueue]: ...
    def topic_attributes(self, topic: str) -> Mapping[str, Mapping[str, str]]: ...
    def status(self, broker_name: str, sink_id: str) -> SinkStatus | None: ...
    def begin(
        self, broker_name: str, sink_id: str, batch_id: int, topics: Topics, coordinator: str
    ) -> SinkStatus: ...
    def commit(
        self,
        broker_name: str,
        sink_id: str,
        batch_id: int,
        participants: Participants,
        *,
        decide: bool,
    ) -> None: ...
    def abort(
        self, broker_name: str, sink_id: str, batch_id: int, attempts: Sequence[str]
    ) -> None: ...
    def open_lanes(self, send: SendParcel) -> Lanes: ...


SendParcel = Callable[[SinkRequests, Parcel], Awaitable[Stored]]


class Lanes(Protocol):
    """Sends parcels: in order for each queue, several queues at a time."""

    def submit(self, parcel: Parcel) -> None: ...
    def finish(self) -> Stored: ...
    def cancel(self) -> None: ...


class SinkConnection(BlockingClient[SinkRequests]):
    """The sink's connection to a cluster; its calls wait."""

    def __init__(self, settings: SinkSettings, *, retry_ms: int = RETRY_MS) -> None:
        cluster = settings.cluster
        super().__init__(
            SinkRequests(
                cluster.namesrv_addr,
                group=settings.producer_group,
                send_timeout_ms=settings.send_timeout_ms,
                retry_ms=max(retry_ms, settings.send_timeout_ms),
                tls=cluster.tls(),
                credentials=cluster.credentials,
            )
        )
        self.plans: dict[tuple[str, int], BatchPlan] = {}

    def take_ids(self, count: int) -> list[str]:
        return self._twin.take_ids(count)

    def masters(self) -> list[str]:
        return self._run(self._twin.masters)

    def publish_queues(self, topic: str, *, create: bool) -> Sequence[MessageQueue]:
        return self._run(self._twin.publish_queues, topic, create=create)

    def topic_attributes(self, topic: str) -> Mapping[str, Mapping[str, str]]:
        return self._run(self._twin.topic_attributes, topic)

    def status(self, broker_name: str, sink_id: str) -> SinkStatus | None:
        return self._run(self._twin.status, broker_name, sink_id)

    def begin(
        self, broker_name: str, sink_id: str, batch_id: int, topics: Topics, coordinator: str
    ) -> SinkStatus:
        return self._run(self._twin.begin, broker_name, sink_id, batch_id, topics, coordinator)

    def commit(
        self,
        broker_name: str,
        sink_id: str,
        batch_id: int,
        participants: Participants,
        *,
        decide: bool,
    ) -> None:
        self._run(self._twin.commit, broker_name, sink_id, batch_id, participants, decide=decide)

    def abort(self, broker_name: str, sink_id: str, batch_id: int, attempts: Sequence[str]) -> None:
        self._run(self._twin.abort, broker_name, sink_id, batch_id, attempts)

    def open_lanes(self, send: SendParcel) -> Lanes:
        twin = self._twin
        return _BlockingLanes(self, AsyncLanes(lambda parcel: send(twin, parcel)))


_connections: dict[tuple[int, SinkSettings], SinkConnection] = {}
_lock = threading.Lock()


def connection_for(settings: SinkSettings) -> SinkConnection:
    """This process's connection for a cluster and the settings that concern sending."""
    shared = SinkSettings(
        cluster=settings.cluster,
        producer_group=settings.producer_group,
        send_timeout_ms=settings.send_timeout_ms,
    )
    key = (os.getpid(), shared)
    with _lock:
        connection = _connections.get(key)
        if connection is None:
            connection = SinkConnection(shared)
            connection.start()
            _connections[key] = connection
        return connection


def _part_from_parent() -> None:
    """Makes a forked child open its own connections."""
    global _lock
    _lock = threading.Lock()
    _inherited.extend(_connections.values())
    _connections.clear()


# Never freed in the child: the sockets belong to the parent.
_inherited: list[SinkConnection] = []
os.register_at_fork(after_in_child=_part_from_parent)


class _BlockingLanes:
    def __init__(self, connection: SinkConnection, lanes: AsyncLanes) -> None:
        self._run = connection._run
        self._lanes = lanes

    def submit(self, parcel: Parcel) -> None:
        self._run(self._lanes.submit, parcel)

    def finish(self) -> Stored:
        return self._run(self._lanes.finish)

    def cancel(self) -> None:
        self._run(self._cancel)

    async def _cancel(self) -> None:
        self._lanes.cancel()
