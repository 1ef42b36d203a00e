"""Requests between a master and its slaves, and operators' questions about replication."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from contrail.broker.services.apache_master import CONTRAIL_FIELD
from contrail.broker.state.escaped import Escaped
from contrail.errors import RequestRejected
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.wire.peer import LATER, Answer, Handler, Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class HaFacts:
    """The sources of these answers; ``status`` is None without replication."""

    leads: bool
    address: str
    ha_address: str
    first_end: int
    status: Callable[[], HaStatus | None]
    # Told the addresses of a master: its HA address, then its own.
    take_master: Callable[[str, str], None]
    # The body of GET_ALL_MESSAGE_REQUEST_MODE.
    request_modes: Callable[[], bytes]
    # The messages that were handed to other brokers; None while that still goes on.
    escaped: Callable[[], Awaitable[Escaped | None]] | None = None


class ReplicationHandlers:
    """Answers brokers of the same name, and operators."""

    def __init__(self, facts: HaFacts) -> None:
        self._facts = facts
        self._telling: set[asyncio.Task[None]] = set()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.handle_request_modes,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.handle_exchange,
            RequestCode.GET_BROKER_HA_STATUS: self.handle_status,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.handle_reset_flushed,
            RequestCode.GET_ESCAPED_MESSAGES: self.handle_escaped,
        }

    def handle_request_modes(self, request: Request, peer: Peer) -> Response:
        """All groups pull here; the table is one that the folder came with, or the master's."""
        return Response(body=self._facts.request_modes())

    def handle_exchange(self, request: Request, peer: Peer) -> Response:
        """A master says where it is, or a slave asks."""
        fields = HeaderFields(request)
        ha_address = fields.optional_text("masterHaAddress")
        if ha_address is not None:
            if not self._facts.leads:
                self._facts.take_master(ha_address, fields.text("masterAddress", ""))
            return Response()
        if not self._facts.leads:
            return Response()
        return Response(
            fields={
                "masterHaAddress": self._facts.ha_address,
                "masterFlushOffset": str(self._facts.first_end),
                "masterAddress": self._facts.address,
                CONTRAIL_FIELD: "1",
            }
        )

    def handle_escaped(self, request: Request, peer: Peer) -> Answer:
        """A master that is back asks what this slave did for it; the answer may take a while."""
        asked = self._facts.escaped
        if asked is None:
            return Response(body=Escaped().encode())
        task = asyncio.get_running_loop().create_task(
            self._tell_escaped(asked, request, peer), name="escaped messages"
        )
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        return LATER

    async def _tell_escaped(
        self, asked: Callable[[], Awaitable[Escaped | None]], request: Request, peer: Peer
    ) -> None:
        escaped = await asked()
        if escaped is None:
            peer.reply(
                request,
                Response(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    "this slave acts as master still: no log comes from the master",
                ),
            )
            return
        peer.reply(request, Response(body=escaped.encode()))

    def handle_status(self, request: Request, peer: Peer) -> Response:
        status = self._facts.status()
        if status is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                "this broker takes part in no replication: set contrailClusterSecretFile",
            )
        return Response(body=status.encode())

    def handle_reset_flushed(self, request: Request, peer: Peer) -> Response:
        """RocketMQ notes where its slaves begin to compare; here each frame says where it goes."""
        HeaderFields(request).integer("masterFlushOffset")
        return Response()
