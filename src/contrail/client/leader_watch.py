"""Notices masters that fell silent, and frees the requests that wait for them in vain.

A process that is stopped, or cut off, closes no connection: its requests would wait for their whole
time. Runs only while a route names more brokers than masters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from contrail.client.state.leader_changes import SILENT_S
from contrail.client.state.routes import RouteTable
from contrail.protocol.codes import RequestCode
from contrail.wire.caller import Caller

_LOOK_S = 0.25
# Brokers hold them until messages come.
_HELD = frozenset({int(RequestCode.PULL_MESSAGE), int(RequestCode.LITE_PULL_MESSAGE)})


class LeaderWatch:
    """Looks at the masters of names with other ids, four times a second."""

    def __init__(
        self, routes: RouteTable, caller: Caller, refresh_soon: Callable[[str], None]
    ) -> None:
        self._routes = routes
        self._caller = caller
        self._refresh_soon = refresh_soon
        # Former masters, and the time until which requests of before may wait for them.
        self._left: dict[tuple[str, str], float] = {}

    def left(self, broker_name: str, address: str, now_s: float) -> None:
        """``address`` is not the master of the name any more, as a route or a member says."""
        self._left[broker_name, address] = now_s + 2 * SILENT_S

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._routes.replicated or self._left:
            await asyncio.sleep(_LOOK_S)
            self.look(loop.time())

    def look(self, now_s: float) -> None:
        for name in self._routes.replicated:
            address = self._routes.master_of(name)
            if address is not None and self._is_silent(address, now_s):
                self._ask_for_route(name)
        for (name, address), until_s in list(self._left.items()):
            self._free(name, address, now_s)
            if now_s >= until_s:
                del self._left[name, address]

    def _is_silent(self, address: str, now_s: float) -> bool:
        connection = self._caller.open_connection(address)
        if connection is None:
            return False
        oldest_s = connection.oldest_call_s(besides=_HELD)
        return oldest_s is not None and now_s - oldest_s >= SILENT_S

    def _ask_for_route(self, name: str) -> None:
        """One topic's route has the addresses of the name for all."""
        for topic, route in self._routes.routes.items():
            if any(broker.broker_name == name for broker in route.data.brokers):
                self._refresh_soon(topic)
                return

    def _free(self, name: str, address: str, now_s: float) -> None:
        if self._routes.master_of(name) == address:
            return
        connection = self._caller.open_connection(address)
        if connection is not None:
            connection.give_up_calls(
                now_s - SILENT_S, f"{address} does not lead {name} any more, and did not answer"
            )
