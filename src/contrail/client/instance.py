"""One client of a cluster, shared by all producers and consumers of a process.

One connection per server, one table of routes, one heartbeat. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Collection, Coroutine, Mapping
from typing import Any

from contrail.client.identity import UniqueIds, build_client_id, client_address
from contrail.client.inbound import Inbound
from contrail.client.leader_watch import LeaderWatch
from contrail.client.name_servers import NameServers, route_missing
from contrail.client.refusals import refused
from contrail.client.settings import ClientSettings
from contrail.client.sides import ConsumerSide, ProducerSide
from contrail.client.state.leader_changes import Waits, may_have_moved
from contrail.client.state.routes import MASTER_ID, RouteTable, TopicRoute
from contrail.clock import Clock, SystemClock
from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ClientClosed,
    ClientError,
    ClientForked,
    ContrailError,
    GroupTaken,
    HostIllegal,
    RouteMissing,
)
from contrail.model.host import pack_host
from contrail.protocol.bodies.heartbeat import GOES_ON_FIELD, Heartbeat, encode_heartbeat
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

TEMPLATE_TOPIC = "TBW102"
TEMPLATE_QUEUES = 4
# A lost broker is tried again after this long, then after twice as long, and so on.
_RECONNECT_S_FIRST = 0.2
_RECONNECT_S_MAX = 10.0
VERSION_5 = 413
"""The lowest version number that brokers of RocketMQ 5.0 and later report."""
GOES_ON_MS = 5_000
"""How long handlers of ordered queues go on without their broker, as heartbeats announce it."""


class ClientInstance:
    """Made by ``instances.join``; counts its users."""

    def __init__(self, settings: ClientSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.loop = asyncio.get_running_loop()
        self.process_id = os.getpid()
        address = client_address(settings)
        self.client_id = build_client_id(settings, address)
        self.unique_ids = UniqueIds(_packed_address(address))
        self.routes = RouteTable()
        self.producers: dict[str, ProducerSide] = {}
        self.consumers: dict[str, ConsumerSide] = {}
        self.inbound = Inbound(self)
        self.caller = Caller(
            on_request=self.inbound.arrived,
            on_lost=self._lost,
            language="PYTHON",
            tls=settings.tls_context,
            credentials=settings.credentials,
        )
        self.name_servers = NameServers(
            self.caller, settings.namesrv, timeout_ms=settings.api_timeout_ms
        )
        # The template of missing topics, as producers request it: a topic, and queues at most.
        self.templates: dict[str, tuple[str, int]] = {}
        # The version of each broker in its last answer to a heartbeat.
        self.broker_versions: dict[str, int] = {}
        # Brokers that keep the locks of disconnected clients, as Apache's do.
        self.plain_brokers: set[str] = set()
        self._leaders = LeaderWatch(self.routes, self.caller, self.refresh_soon)
        self._watching: asyncio.Task[None] | None = None
        self.user_count = 0
        self.is_closed = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self._reconnecting: set[str] = set()
        self._is_beating = False
        self._is_beat_wanted = False
        self._beat_addresses: set[str] = set()

    # Life.

    def start(self) -> None:
        self.spawn(self._refresh_routes_forever(), "routes")
        self.spawn(self._beat_forever(), "heartbeat")

    async def close(self) -> None:
        self.is_closed = True
        # The caller, which closes the last consumer, may be one of these tasks.
        tasks = [*(self._tasks - {asyncio.current_task()}), *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.caller.close()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task that ends with the instance; its exception is logged."""
        task = asyncio.get_running_loop().create_task(work, name=f"contrail-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the task %s failed", task.get_name(), exc_info=task.exception())

    # Producers and consumers.

    def add_producer(self, producer: ProducerSide) -> None:
        _take_group(self.producers, producer, "producer")
        # Brokers in use need its heartbeat now: they ask the producer about transactions.
        self.beat_soon()

    def add_consumer(self, consumer: ConsumerSide) -> None:
        _take_group(self.consumers, consumer, "consumer")

    async def remove_producer(self, group: str) -> None:
        """Forget a producer, and unregister it at the brokers."""
        if self.producers.pop(group, None) is not None:
            await self._unregister({"producerGroup": group})

    async def remove_consumer(self, group: str) -> None:
        """Forget a consumer, and unregister it, so that other members take its queues at once."""
        if self.consumers.pop(group, None) is not None:
            await self._unregister({"consumerGroup": group})

    async def _unregister(self, fields: Mapping[str, str]) -> None:
        given = {"clientID": self.client_id, **fields}
        addresses = set() if self.is_closed else self._beat_addresses.copy()
        await asyncio.gather(*(self._unregister_at(address, given) for address in addresses))

    async def _unregister_at(self, address: str, fields: Mapping[str, str]) -> None:
        try:
            await self.caller.call(
                address,
                RequestCode.UNREGISTER_CLIENT,
                fields,
                timeout_ms=self.settings.api_timeout_ms,
            )
        except CallFailed as error:
            # The broker notices when the connection closes.
            _log.info("a broker was not notified that %s leaves: %s", fields, error)

    # Routes.

    async def route(self, topic: str, *, template: bool = False) -> TopicRoute:
        """A topic's route; requested once, then kept fresh.

        With ``template`` a topic that does not exist gets the route it would be made with.

        Raises:
            RouteMissing: no broker has the topic.
            NameServerUnreachable: no NameServer answered.
        """
        known = self.routes.routes.get(topic)
        if known is not None and (template or not known.is_template):
            return known
        return await self.refresh_route(topic, template=template)

    async def refresh_route(self, topic: str, *, template: bool = False) -> TopicRoute:
        """Ask a NameServer now; concurrent callers share the answer.

        Raises:
            RouteMissing: no broker has the topic.
            NameServerUnreachable: no NameServer answered.
        """
        self.require_open()
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda task: self._fetched(topic, task))
        try:
            return await asyncio.shield(task)
        except RouteMissing:
            if not template:
                raise
            return await self._fetch_template(topic)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            # The caller may have been cancelled: then asyncio must not warn about the error.
            task.exception()

    async def _fetch(self, topic: str) -> TopicRoute:
        """Keep a known route if a NameServer has none: the NameServer may have restarted."""
        route = TopicRoute.of(topic, await self.name_servers.route(topic))
        self._take_route(route)
        return route

    async def _fetch_template(self, topic: str) -> TopicRoute:
        template, queue_count = self.templates.get(topic, (TEMPLATE_TOPIC, TEMPLATE_QUEUES))
        try:
            data = await self.name_servers.route(template)
        except RouteMissing:
            # The caller gets the error of its own topic.
            raise route_missing(topic) from None
        route = TopicRoute.from_template(topic, data, queue_count)
        self._take_route(route)
        return route

    def _take_route(self, route: TopicRoute) -> None:
        names = [broker.broker_name for broker in route.data.brokers]
        former = {name: self.routes.master_of(name) for name in names}
        if self.routes.put(route):
            self._tell_consumers(route.topic)
        for name, address in former.items():
            if address is not None and self.routes.master_of(name) != address:
                self._master_moved(name, address)
        if self._unbeaten_addresses():
            self.beat_soon()
        if self.routes.replicated and (self._watching is None or self._watching.done()):
            self._watching = self.spawn(self._leaders.watch(), "leaders")

    def believe_leader(self, broker_name: str, address: str) -> bool:
        """Go on at the leader that a member of a failover group names, if the route has it."""
        former = self.routes.master_of(broker_name)
        if address == former or not self.routes.believe_leader(broker_name, address):
            return False
        if former is not None:
            self._master_moved(broker_name, former)
        return True

    def _master_moved(self, broker_name: str, former: str) -> None:
        """Send the new master a heartbeat now; requests of the former one do not wait for ever."""
        self._leaders.left(broker_name, former, self.loop.time())
        address = self.routes.master_of(broker_name)
        if address is not None and (self.producers or self.consumers):
            # Not with the others: one of them may have just died, and would be waited for.
            self.spawn(self._beat_master(address), f"heartbeat to {address}")

    async def _beat_master(self, address: str) -> None:
        await self._beat(address, self._heartbeat())

    def _tell_consumers(self, topic: str) -> None:
        for consumer in list(self.consumers.values()):
            if topic in consumer.topics():
                consumer.route_changed(topic)

    def refresh_soon(self, topic: str) -> None:
        """After a failure: ask for the route again, without waiting for it."""
        if topic not in self._fetching and not self.is_closed:
            self.spawn(self._refresh_quietly(topic), f"route of {topic}")

    async def _refresh_quietly(self, topic: str) -> None:
        known = self.routes.routes.get(topic)
        try:
            await self.refresh_route(topic, template=known is not None and known.is_template)
        except ClientError as error:
            _log.info("the route of %s was not refreshed: %s", topic, error)

    async def _refresh_routes_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_name_server_interval_ms / 1000)
            for topic in self._wanted_topics():
                await self._refresh_quietly(topic)
            self.routes.drop_unused_brokers()

    def _wanted_topics(self) -> Collection[str]:
        wanted = set(self.routes.routes)
        for producer in self.producers.values():
            wanted.update(producer.topics())
        for consumer in self.consumers.values():
            wanted.update(consumer.topics())
        return wanted

    # Calls.

    def master_of(self, broker_name: str) -> str:
        """Raises ``BrokerUnknown`` for a name that no route has."""
        address = self.routes.master_of(broker_name)
        if address is None:
            raise BrokerUnknown(f"no route names a master of broker {broker_name!r}")
        return address

    async def call(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
    ) -> ReceivedResponse:
        """Call a broker; after GO_AWAY once more, over a new connection.

        Raises:
            CallFailed: no answer; ``CallTimedOut`` when the request may have been carried out.
        """
        self.require_open()
        limit_ms = timeout_ms or self.settings.api_timeout_ms
        connection = self.caller.open_connection(address)
        answer = await self.caller.call(address, code, fields, body, timeout_ms=limit_ms)
        if answer.code == ResponseCode.GO_AWAY:
            # Another call may have replaced the connection already.
            if connection is None or self.caller.open_connection(address) is connection:
                self.caller.retire(address, "going away")
            answer = await self.caller.call(address, code, fields, body, timeout_ms=limit_ms)
        return answer

    async def ask(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        what: str,
        timeout_ms: int | None = None,
    ) -> ReceivedResponse:
        """Like ``call``; any answer but success raises an error that names ``what``.

        Raises:
            BrokerRefused: the broker answered with an error.
            ClientError: the broker did not answer.
        """
        try:
            answer = await self.call(address, code, fields, body, timeout_ms=timeout_ms)
        except CallFailed as error:
            raise ClientError(f"{what}: broker {address}: {error}") from error
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, what, f"broker {address}")
        return answer

    async def ask_master(
        self,
        broker_name: str,
        topic: str,
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        what: str,
        timeout_ms: int,
        reads: bool = False,
    ) -> ReceivedResponse:
        """Like ``ask``, at the master of a name, for a request that may be carried out twice.

        Where the name has other ids, a master that is gone is waited for until the time is over.
        A request that only ``reads`` goes to another broker of the name while there is no master.

        Raises:
            BrokerUnknown: no route names a master.
            BrokerRefused: the broker answered with an error.
            ClientError: the broker did not answer.
        """
        deadline_s = self.loop.time() + timeout_ms / 1000
        waits = Waits()
        while True:
            left_ms = max(int((deadline_s - self.loop.time()) * 1000), 1)
            try:
                address = await self._master_for(broker_name, topic, reads=reads)
                return await self.ask(address, code, fields, body, what=what, timeout_ms=left_ms)
            except ClientError as error:
                if broker_name not in self.routes.replicated or not may_have_moved(error):
                    raise
                leader = error.leader if isinstance(error, BrokerRefused) else ""
                knows_leader = self.believe_leader(broker_name, leader)
                self.refresh_soon(topic)
                pause_s = waits.next_s(knows_leader=knows_leader)
                if self.loop.time() + pause_s >= deadline_s:
                    raise
            await asyncio.sleep(pause_s)

    async def _master_for(self, broker_name: str, topic: str, *, reads: bool) -> str:
        """The address of a name's master, for which the route is asked once more if need be."""
        address = self.routes.master_of(broker_name)
        if address is None:
            await self.refresh_route(topic)
            address = self.routes.master_of(broker_name)
        if address is None and reads:
            address = self.routes.address_of(broker_name, MASTER_ID)
        return address or self.master_of(broker_name)

    # Heartbeats.

    def beat_soon(self) -> None:
        """Send a heartbeat; a call during one causes another after it."""
        if self.is_closed:
            return
        self._is_beat_wanted = True
        if not self._is_beating:
            self._is_beating = True
            self.spawn(self._beat_while_wanted(), "heartbeat now")

    async def _beat_while_wanted(self) -> None:
        try:
            while self._is_beat_wanted:
                self._is_beat_wanted = False
                await self.beat()
        finally:
            self._is_beating = False

    async def beat(self) -> None:
        """Send this client's producers and consumers to every broker; failures are logged."""
        heartbeat = self._heartbeat()
        if not heartbeat.producer_groups and not heartbeat.consumers:
            return
        await asyncio.gather(
            *(self._beat(address, heartbeat) for address in self._beaten_addresses())
        )

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            client_id=self.client_id,
            producer_groups=tuple(sorted(self.producers)),
            consumers=tuple(consumer.heartbeat_data() for consumer in self.consumers.values()),
            goes_on_ms=GOES_ON_MS if self.consumers else 0,
        )

    def _beaten_addresses(self) -> list[str]:
        """Masters; with a consumer also replicas, from which it may pull."""
        return [
            address
            for _, broker_id, address in self.routes.all_addresses()
            if self.consumers or broker_id == MASTER_ID
        ]

    def _unbeaten_addresses(self) -> set[str]:
        return set(self._beaten_addresses()) - self._beat_addresses

    async def _beat(self, address: str, heartbeat: Heartbeat) -> bool:
        body, says_goes_on = encode_heartbeat(heartbeat), heartbeat.goes_on_ms > 0
        try:
            answer = await self.call(address, RequestCode.HEART_BEAT, {}, body)
        except CallFailed as error:
            _log.info("broker %s did not take a heartbeat: %s", address, error)
            return False
        if answer.code != ResponseCode.SUCCESS:
            _log.warning("broker %s refused a heartbeat: %s", address, answer.remark)
            return False
        self._beat_addresses.add(address)
        self.broker_versions[address] = answer.version
        if GOES_ON_FIELD in answer.fields:
            self.plain_brokers.discard(address)
        elif says_goes_on:
            self.plain_brokers.add(address)
        return True

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_broker_interval_ms / 1000)
            await self.beat()

    # Lost connections.

    def _lost(self, address: str) -> None:
        """Reconnect and send a heartbeat: a restarted broker has forgotten this client's groups."""
        known = {address for _, _, address in self.routes.all_addresses()}
        if address in known and address not in self._reconnecting and not self.is_closed:
            self._beat_addresses.discard(address)
            # Another broker may come back at its address.
            self.plain_brokers.discard(address)
            self._reconnecting.add(address)
            self.spawn(self._reconnect(address), f"reconnect to {address}")

    async def _reconnect(self, address: str) -> None:
        failure_count = 0
        try:
            while address in self._beaten_addresses():
                await asyncio.sleep(reconnect_delay_s(failure_count, random.random()))
                if await self._beat(address, self._heartbeat()):
                    self._members_may_have_changed()
                    return
                failure_count += 1
        finally:
            self._reconnecting.discard(address)

    def _members_may_have_changed(self) -> None:
        for consumer in list(self.consumers.values()):
            consumer.members_changed()

    def require_open(self) -> None:
        """Raises ``ClientClosed`` after ``close``, and ``ClientForked`` in a child of a fork."""
        if self.is_closed:
            require_same_process(self.process_id, f"client {self.client_id}")
            raise ClientClosed(
                f"client {self.client_id} is closed: use producers and consumers inside their "
                "`with` block, or before close()"
            )
        self.require_own_loop()

    def require_own_loop(self) -> None:
        """Raises ``ClientError`` in another event loop than the one it was made in."""
        if asyncio.get_running_loop() is not self.loop:
            raise ClientError(
                f"client {self.client_id} belongs to another event loop: with asyncio.run make the "
                "client inside the coroutine that is run, or use the blocking names of `contrail`"
            )

    def may_be_closed_here(self) -> bool:
        """False in a child of a fork: closing there would disturb the parent.

        Raises:
            ClientError: this is another event loop than its own.
        """
        if self.is_inherited:
            return False
        self.require_own_loop()
        return True

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the instance's owner, which alone may close it."""
        return os.getpid() != self.process_id


def reconnect_delay_s(failure_count: int, chance: float) -> float:
    """How long to wait, by a random number below 1.

    Many clients lose a broker at the same moment; they must not all return at the same moment.
    """
    usual_s = min(_RECONNECT_S_FIRST * (1 << min(failure_count, 16)), _RECONNECT_S_MAX)
    return usual_s * (0.5 + chance)


def require_same_process(process_id: int, what: str) -> None:
    """Raises ``ClientForked`` in a child of the process that made ``what``."""
    if os.getpid() != process_id:
        raise ClientForked(
            f"{what} was made in process {process_id} and this is its child {os.getpid()}: a "
            "connection cannot be shared over a fork; make the client after forking, for gunicorn "
            "in post_fork, for multiprocessing in the child's own function"
        )


def _take_group(sides: dict[str, Any], side: ProducerSide | ConsumerSide, kind: str) -> None:
    if side.group in sides:
        raise GroupTaken(
            f"this process already has a {kind} of group {side.group!r} on this cluster: use that "
            "one, choose another group, or give one of them its own instance_name="
        )
    sides[side.group] = side


def _packed_address(address: str) -> bytes:
    try:
        return pack_host(address, 0)[:-4]
    except HostIllegal as error:
        raise ContrailError(f"client_ip must be an IP address: {error}") from error
