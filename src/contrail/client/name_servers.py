"""Asks the NameServers: one at a time, the next when one does not answer."""

from __future__ import annotations

import asyncio
import logging
import random

from contrail.client.refusals import refused
from contrail.errors import CallFailed, NameServerUnreachable, RequestRejected, RouteMissing
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

# Timeout for a second opinion; an unreachable NameServer must not cost a whole send.
_OTHERS_TIMEOUT_S = 1.0


class NameServers:
    """The NameServers of a cluster. Starts with a random one, stays with it while it answers."""

    def __init__(self, caller: Caller, addresses: tuple[str, ...], *, timeout_ms: int) -> None:
        self._caller = caller
        self._addresses = addresses
        self._timeout_ms = timeout_ms
        # Clients that start together must not all ask the first.
        self._chosen = random.randrange(len(addresses))

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._addresses

    async def call(
        self, code: RequestCode, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> ReceivedResponse:
        """The first answer, whatever its response code.

        Raises:
            NameServerUnreachable: no NameServer answered; the message has each one's error.
        """
        problems: list[str] = []
        # By its own index: concurrent calls may move the choice.
        first = self._chosen
        for number in range(first, first + len(self._addresses)):
            place = number % len(self._addresses)
            try:
                answer = await self._caller.call(
                    self._addresses[place], code, fields, body, timeout_ms=self._timeout_ms
                )
            except CallFailed as error:
                problems.append(str(error))
            else:
                self._chosen = place
                return answer
        raise NameServerUnreachable(
            f"no NameServer answered: {'; '.join(problems)}. Start one with `contrail namesrv`, "
            "or correct namesrv="
        )

    async def call_all(
        self, code: RequestCode, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> list[ReceivedResponse]:
        """The answers of all NameServers, for values that each must store itself.

        Raises:
            CallFailed: a NameServer did not answer.
        """
        return [
            await self._caller.call(address, code, fields, body, timeout_ms=self._timeout_ms)
            for address in self._addresses
        ]

    async def route(self, topic: str) -> TopicRouteData:
        """A topic's route.

        Raises:
            RouteMissing: no broker has the topic.
            NameServerUnreachable: no NameServer answered.
            BrokerRefused: a NameServer answered with another error.
        """
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer: ReceivedResponse | None
        answer = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            answer = await self._known_to_others(fields)
        if answer is None:
            raise route_missing(topic)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer, f"the route of topic {topic!r}", "a NameServer")
        try:
            return TopicRouteData.decode(answer.body)
        except RequestRejected as error:
            raise RouteMissing(
                f"a NameServer's route of topic {topic!r} cannot be read: {error}", topic=topic
            ) from error

    async def _known_to_others(self, fields: dict[str, str]) -> ReceivedResponse | None:
        """Ask the others: a restarted NameServer has no routes until the brokers register."""
        others = [*self._addresses[: self._chosen], *self._addresses[self._chosen + 1 :]]
        asking = [asyncio.create_task(self._known_to(address, fields)) for address in others]
        try:
            async with asyncio.timeout(_OTHERS_TIMEOUT_S):
                for answered in asyncio.as_completed(asking):
                    answer = await answered
                    if answer is not None:
                        return answer
        except TimeoutError:
            pass  # The others that answered have no route either.
        finally:
            for task in asking:
                task.cancel()
        return None

    async def _known_to(self, address: str, fields: dict[str, str]) -> ReceivedResponse | None:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        try:
            answer = await self._caller.call(address, code, fields, timeout_ms=self._timeout_ms)
        except CallFailed as error:
            _log.debug("another NameServer did not answer: %s", error)
            return None
        return answer if answer.code == ResponseCode.SUCCESS else None


def route_missing(topic: str) -> RouteMissing:
    return RouteMissing(
        f"topic {topic!r} has no route: create it with `contrail topic create {topic}`, or check "
        "that its broker is up and registered",
        topic=topic,
    )
