"""The queues of topics at all brokers, as the NameServers tell them; kept for a while."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from contrail.clock import Clock
from contrail.errors import CallFailed, RequestRejected
from contrail.model.topic import Perm
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

_KEPT_MS = 30_000
_ROUTES_MAX = 20_000


class RouteCache:
    """Asks the NameServers for the queues of a topic."""

    def __init__(
        self,
        caller: Callable[[], Caller],
        name_servers: Callable[[], Sequence[str]],
        own_queues: Callable[[str], list[MessageQueue] | None],
        clock: Clock,
    ) -> None:
        """``own_queues`` are those of this broker, for one that knows no NameServer."""
        self._caller = caller
        self._name_servers = name_servers
        self._own_queues = own_queues
        self._clock = clock
        self._routes: dict[str, tuple[int, list[MessageQueue]]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """The queues that consumers may read; None for a topic that has no route."""
        servers = self._name_servers()
        if not servers:
            return self._own_queues(topic)
        known = self._routes.get(topic)
        now_ms = self._clock.elapsed_ms()
        if known is not None and now_ms < known[0]:
            return known[1]
        for server in servers:
            try:
                found = await self._asked(server, topic)
            except (CallFailed, RequestRejected) as error:
                _log.info("NameServer %s gives no route of %r: %s", server, topic, error)
                continue
            if found is None:
                # A topic that is made in a moment is to be found then.
                self._routes.pop(topic, None)
                return None
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = (now_ms + _KEPT_MS, found)
            return found
        # None of them answers: an old route is better than none.
        return None if known is None else known[1]

    async def _asked(self, server: str, topic: str) -> list[MessageQueue] | None:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self._caller().call(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        if answer.code != ResponseCode.SUCCESS:
            return None
        return readable_queues(TopicRouteData.decode(answer.body), topic)


def readable_queues(route: TopicRouteData, topic: str) -> list[MessageQueue]:
    """The queues of a route that consumers may read."""
    return [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in route.queues
        if queues.perm & Perm.READ
        for queue_id in range(queues.read_queue_count)
    ]
