"""Beats for the NameServers, and their news of the brokers of this name.

In acting-master mode NameServers drop a broker that was silent for some seconds, and each broker
asks every second who is alive. A broker counts as alive while any NameServer lists it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from contrail.broker.services.registration import Registration
from contrail.errors import CallFailed, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError
from contrail.model.topic import SYNC_BROKER_MEMBER_PREFIX
from contrail.protocol.bodies.routes import BrokerMemberGroup, TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import encode_body
from contrail.runtime.schedule import Schedule
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)


class Members:
    """Talks to all NameServers, each in a task of its own."""

    def __init__(
        self,
        caller: Caller,
        registration: Registration,
        *,
        data_version: Callable[[], DataVersion],
        asks_old_way: bool,
        on_members: Callable[[Mapping[int, str]], None] = lambda members: None,
    ) -> None:
        """``asks_old_way``: by requests that NameServers of RocketMQ 4 know, too."""
        self._caller = caller
        self._registration = registration
        self._data_version = data_version
        self._asks_old_way = asks_old_way
        self._on_members = on_members
        self._beats: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    def register(
        self, schedule: Schedule, *, beat_interval_ms: int, member_interval_ms: int | None
    ) -> None:
        """Without ``member_interval_ms`` nobody is asked who is alive."""
        schedule.every(beat_interval_ms, self.beat, name="beats for NameServers")
        if member_interval_ms is not None:
            schedule.every(member_interval_ms, self.look, name="brokers of this name")

    def beat(self, now_ms: int) -> None:
        """Tell every NameServer that this broker is alive."""
        for server in self._registration.name_servers:
            task = self._beats.get(server)
            if task is None or task.done():
                self._beats[server] = asyncio.get_running_loop().create_task(
                    self._beat(server), name=f"beat for {server}"
                )

    async def _beat(self, server: str) -> None:
        fields = self._registration.identity()
        try:
            if self._asks_old_way:
                body = encode_body(self._data_version().to_fields())
                await self._caller.notify(server, RequestCode.QUERY_DATA_VERSION, fields, body)
            else:
                await self._caller.notify(server, RequestCode.BROKER_HEARTBEAT, fields)
        except CallFailed as error:
            _log.debug("NameServer %s gets no beat: %s", server, error)

    def look(self, now_ms: int) -> None:
        """Ask who is alive, unless an answer is still waited for."""
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(
                self._tell(), name="brokers of this name"
            )

    async def _tell(self) -> None:
        found = await self.alive()
        if found:
            self._on_members(found)

    async def alive(self) -> dict[int, str] | None:
        """The addresses of this name's brokers by id; None if no NameServer answers."""
        servers = self._registration.name_servers
        if not servers:
            return {}
        answers = await asyncio.gather(*(self._asked(server) for server in servers))
        known = [answer for answer in answers if answer is not None]
        if not known:
            return None
        return {broker_id: address for answer in known for broker_id, address in answer.items()}

    async def _asked(self, server: str) -> dict[int, str] | None:
        try:
            return await (self._by_route(server) if self._asks_old_way else self._by_group(server))
        except (CallFailed, RequestRejected, FastJsonError) as error:
            _log.debug("NameServer %s does not say who is alive: %s", server, error)
            return None

    async def _by_route(self, server: str) -> dict[int, str] | None:
        """From the route of a topic that every broker has; it is never shown rewritten."""
        name = self._registration.identity()["brokerName"]
        fields = {"topic": SYNC_BROKER_MEMBER_PREFIX + name, "acceptStandardJsonOnly": "true"}
        answer = await self._caller.call(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return {}
        if answer.code != ResponseCode.SUCCESS:
            return None
        route = TopicRouteData.decode(answer.body)
        return {
            broker_id: address
            for broker in route.brokers
            if broker.broker_name == name
            for broker_id, address in broker.addresses.items()
        }

    async def _by_group(self, server: str) -> dict[int, str] | None:
        identity = self._registration.identity()
        fields = {name: identity[name] for name in ("clusterName", "brokerName")}
        answer = await self._caller.call(server, RequestCode.GET_BROKER_MEMBER_GROUP, fields)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return dict(BrokerMemberGroup.decode(answer.body).addresses)

    async def close(self) -> None:
        """Ask and tell nothing any more."""
        tasks = [*self._beats.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
