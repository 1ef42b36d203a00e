"""The admin client on popped messages: listed, acknowledged or returned by an operator."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from contrail.client.admin_asking import decoded, number_field
from contrail.client.admin_cluster import ClusterAdmin
from contrail.errors import BrokerRefused, ClientError
from contrail.protocol.bodies.in_flight import InFlight, decode_handle, decode_in_flight
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.pop_info import PopTextInvalid


@dataclass(frozen=True, slots=True)
class InFlightPage:
    """A group's messages in flight at one broker, those that come again first, and their count."""

    broker_name: str
    messages: tuple[InFlight, ...]
    total: int


class InFlightAdmin(ClusterAdmin):
    """Messages that consumers popped and did not acknowledge yet."""

    async def in_flight(
        self, group: str, topic: str | None = None, *, count_max: int = 100
    ) -> list[InFlightPage]:
        """A group's messages in flight, broker by broker; only Contrail's brokers list them.

        Raises:
            ClientError: no broker of the cluster lists them.
        """
        brokers = await self._masters()
        outcomes = await asyncio.gather(
            *(self._in_flight_at(one.broker_name, group, topic, count_max) for one in brokers)
        )
        pages = [page for page in outcomes if page is not None]
        if not pages:
            raise ClientError(
                "no broker tells what is in flight (LIST_IN_FLIGHT): only Contrail's brokers do"
            )
        return pages

    async def _in_flight_at(
        self, broker: str, group: str, topic: str | None, count_max: int
    ) -> InFlightPage | None:
        (address,) = await self._masters(broker=broker)
        what = f"the messages in flight of group {group!r}"
        fields = {"consumerGroup": group, "limit": str(count_max)}
        if topic is not None:
            fields["topic"] = topic
        try:
            answer = await self._ask(address, RequestCode.LIST_IN_FLIGHT, fields, what)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        listed = decoded(decode_in_flight, answer, what)
        return InFlightPage(broker, tuple(listed), number_field(answer, "total", what))

    async def ack_in_flight(self, group: str, handle: str) -> None:
        """Acknowledge a message for its consumer: it does not come again.

        Raises:
            ClientError: the handle is none.
            BrokerRefused: it names no message in flight.
        """
        await self._decide_in_flight(group, handle, "ack")

    async def return_in_flight(self, group: str, handle: str) -> None:
        """Let the group's other members have a message now; raises like ``ack_in_flight``."""
        await self._decide_in_flight(group, handle, "return")

    async def _decide_in_flight(self, group: str, handle: str, fate: str) -> None:
        try:
            _, receipt = decode_handle(handle, group)
        except PopTextInvalid as error:
            raise ClientError(f"{error}; see `contrail group inflight {group}`") from error
        (address,) = await self._masters(broker=receipt.broker_name)
        fields = {"consumerGroup": group, "handle": handle, "fate": fate}
        what = f"{fate} of message {receipt.queue_offset} for group {group!r}"
        await self._ask(address, RequestCode.DECIDE_IN_FLIGHT, fields, what)
