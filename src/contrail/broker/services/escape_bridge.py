"""The way out of a slave's log: its deliveries are sent to brokers of other names.

``append`` looks like any other delivery. The first call begins to send and raises; the services
come back with the same messages until all of them are in the ledger, and then it returns. A
service's messages are sent one after the other, and none behind one that no broker took: of a
delay level everything before the last that is in the ledger has been delivered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.state.causes import cause_mark
from contrail.broker.state.escaped import Escaped
from contrail.broker.state.escapes import (
    STORED_CODES,
    Target,
    escape_of,
    send_fields,
    targets,
)
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.errors import (
    CallFailed,
    DeliveryUnderWay,
    MessageIllegal,
    RequestRejected,
    StoreReadOnly,
)
from contrail.model.fastjson import FastJsonError
from contrail.model.message import MessageDraft
from contrail.model.properties import REAL_TOPIC, read_property
from contrail.model.topic import REVIVE_TOPIC_PREFIX, TIMER_TOPIC
from contrail.protocol.bodies.routes import TopicRouteData
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.store import AppendedRun, MessageStore
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

_SEND_TIMEOUT_MS = 3_000
# A message that no broker took rests for this time.
_REST_MS = 1_000
_ROUTE_KEPT_MS = 5_000
_ROUTES_MAX = 10_000


class EscapeBridge(Deliveries):
    """Deliveries of a slave that acts as master."""

    def __init__(
        self,
        store: MessageStore,
        stats: BrokerStats,
        caller: Callable[[], Caller],
        escaped: Escaped,
        *,
        broker_name: str,
        name_servers: Callable[[], Sequence[str]],
        clock: Clock,
        is_enabled: bool,
    ) -> None:
        super().__init__(store, stats, on_appended=lambda: None)
        self._caller = caller
        self._escaped = escaped
        self._broker_name = broker_name
        self._name_servers = name_servers
        self._clock = clock
        self._is_enabled = is_enabled
        self._is_open = False
        self._under_way: set[int] = set()
        self._tasks: set[asyncio.Task[bool]] = set()
        # Messages that no broker took, and when they are tried again.
        self._resting: dict[int, int] = {}
        self._turn = 0
        self._routes: dict[bytes, tuple[int, list[Target]]] = {}
        self._problem: str | None = None

    def open(self) -> None:
        """Begin to take deliveries."""
        self._resting.clear()
        self._is_open = True

    async def close(self) -> None:
        """Take none any more; returns once the fate of every send is known."""
        self._is_open = False
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Calls of the services.

    def append(self, drafts: Sequence[MessageDraft]) -> AppendedRun:
        """Hand messages over; returns once other brokers have all of them.

        Records of popped messages mean nothing to another broker: they are passed over without an
        entry in the ledger, and the master delivers them when it is back.

        Raises:
            DeliveryUnderWay: come back with the same messages a little later.
            StoreReadOnly: nothing may be handed over.
        """
        self._require_open()
        left = [
            draft
            for draft in drafts
            if not _is_of_pops(draft) and self._place(draft) not in self._escaped.waited
        ]
        if not left:
            end, count = self.settled_end, len(drafts)
            return AppendedRun([0] * count, [end] * count, self._clock.now_ms(), end)
        places = [self._place(draft) for draft in left]
        is_begun = any(place in self._under_way for place in places)
        if not is_begun and self._clock.elapsed_ms() >= self._resting.get(places[0], 0):
            self._under_way.update(places)
            self._begin(left, places)
        raise DeliveryUnderWay("messages are on their way to another broker")

    def _require_open(self) -> None:
        if not self._is_enabled:
            raise StoreReadOnly(
                "this broker is a slave that acts as master, and enableRemoteEscape is false: what "
                "is due waits for the master"
            )
        if not self._is_open:
            raise StoreReadOnly("this broker is a slave, and its master is back")
        if self._escaped.is_full:
            raise StoreReadOnly("so many messages were handed over that the rest waits")

    def _place(self, draft: MessageDraft) -> int:
        """Where the message waited; ``cause_mark`` is its own inverse."""
        return cause_mark(draft.prepared_transaction_offset)

    def _begin(self, drafts: list[MessageDraft], places: list[int]) -> None:
        task = asyncio.get_running_loop().create_task(
            self._send_all(drafts, places), name="messages to other brokers"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_all(self, drafts: list[MessageDraft], places: list[int]) -> bool:
        try:
            for draft, place in zip(drafts, places, strict=True):
                if not self._is_open:
                    return False
                if not await self._send_delivered(draft):
                    self._resting[place] = self._clock.elapsed_ms() + _REST_MS
                    return False
                self._resting.pop(place, None)
                self._escaped.add_waited(place)
        finally:
            self._under_way.difference_update(places)
        return True

    async def _send_delivered(self, draft: MessageDraft) -> bool:
        try:
            return await self._send(escape_of(draft))
        except MessageIllegal as illegal:
            return self._failed(draft.topic, str(illegal))

    async def send_half(self, draft: MessageDraft, place: int) -> bool:
        """Hand a half message over; whether another broker has it."""
        task = asyncio.get_running_loop().create_task(self._send_half(draft, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Cancelled in the middle, nobody would know whether it was stored.
        return await asyncio.shield(task)

    async def _send_half(self, draft: MessageDraft, place: int) -> bool:
        self._require_open()
        if not await self._send(draft):
            return False
        self._escaped.add_half(place)
        return True

    # Sending.

    async def _send(self, draft: MessageDraft) -> bool:
        try:
            found = await self._targets(draft.topic)
            if not found:
                return self._failed(draft.topic, "no other broker takes sends of it")
            self._turn += 1
            target = found[self._turn % len(found)]
            answer = await self._caller().call(
                target.address,
                RequestCode.SEND_MESSAGE,
                send_fields(draft, target, f"contrail_escapes_{self._broker_name}"),
                draft.body,
                timeout_ms=_SEND_TIMEOUT_MS,
            )
        except (CallFailed, RequestRejected, FastJsonError) as error:
            self._routes.pop(draft.topic, None)
            return self._failed(draft.topic, str(error))
        if answer.code not in STORED_CODES:
            self._routes.pop(draft.topic, None)
            return self._failed(
                draft.topic, f"{target.address} answers {answer.code}: {answer.remark}"
            )
        self._problem = None
        return True

    async def _targets(self, topic: bytes) -> list[Target]:
        now_ms = self._clock.elapsed_ms()
        kept = self._routes.get(topic)
        if kept is not None and now_ms < kept[0]:
            return kept[1]
        found: list[Target] = []
        for server in self._name_servers():
            found = await self._asked(server, topic)
            if found:
                break
        if len(self._routes) >= _ROUTES_MAX:
            self._routes.clear()
        self._routes[topic] = (now_ms + _ROUTE_KEPT_MS, found)
        return found

    async def _asked(self, server: str, topic: bytes) -> list[Target]:
        fields = {"topic": topic.decode("utf-8", "replace"), "acceptStandardJsonOnly": "true"}
        try:
            answer = await self._caller().call(server, RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
        except CallFailed as error:
            _log.info("NameServer %s gives no route: %s", server, error)
            return []
        if answer.code != ResponseCode.SUCCESS:
            return []
        return targets(TopicRouteData.decode(answer.body), self._broker_name)

    def _failed(self, topic: bytes, problem: str) -> bool:
        if problem != self._problem:
            _log.warning(
                "a message of topic %s cannot be handed to another broker and is tried again: %s",
                topic.decode("utf-8", "replace"),
                problem,
            )
        self._problem = problem
        return False


def _is_of_pops(draft: MessageDraft) -> bool:
    """Whether this is a checkpoint or an acknowledgement, due or rolled on in the timer."""
    topic = draft.topic.decode("utf-8", "replace")
    if topic == TIMER_TOPIC:
        topic = read_property(draft.properties, REAL_TOPIC) or ""
    return topic.startswith(REVIVE_TOPIC_PREFIX)
