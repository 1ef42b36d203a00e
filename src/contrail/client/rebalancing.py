"""Rebalancing: asks for the group's members, computes this member's queues, notifies the consumer.

No server hands out queues: every member asks a broker for the list of members and computes its own
part. A member that cannot ask therefore keeps its queues, and asks again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.state.allocation import AllocationStrategy, sorted_client_ids, sorted_queues
from contrail.client.state.routes import MASTER_ID, TopicRoute
from contrail.errors import BrokerRefused, ClientError, RequestRejected, RouteMissing
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.bodies.heartbeat import MessageModel
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import body_errors, decode_body

_log = logging.getLogger(__name__)

REBALANCE_INTERVAL_MS = 20_000
# A joining member causes several notifications at once: they make one round.
_ROUND_GAP_S = 0.1
# A queue that could not be taken (another member still has its lock) is tried again after this.
_UNSETTLED_S = 1.0

OnShare = Callable[[str, set[MessageQueue]], Awaitable[bool]]
"""Gets a topic and all of this member's queues of it; False when some could not be taken yet."""


class Rebalancer:
    """One consumer's rebalancing in its group."""

    def __init__(
        self,
        instance: ClientInstance,
        *,
        group: str,
        message_model: MessageModel,
        strategy: AllocationStrategy,
        on_share: OnShare,
        topics: Callable[[], Collection[str]],
        interval_ms: int = REBALANCE_INTERVAL_MS,
    ) -> None:
        self._instance = instance
        self._group = group
        self._message_model = message_model
        self._strategy = strategy
        self._on_share = on_share
        self._topics = topics
        self._interval_s = interval_ms / 1000
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._shared_topics: set[str] = set()
        self._failed_round_count = 0

    def start(self) -> None:
        """Rebalance at once, every interval, and whenever ``soon`` is called."""
        self._wake.set()
        self._task = self._instance.spawn(self._run_forever(), f"rebalance {self._group}")

    def stop(self) -> None:
        """Stop: no queues are assigned after this."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    def soon(self) -> None:
        """Rebalance soon: a member joined or left, or a route changed."""
        self._wake.set()

    async def run_once(self) -> bool:
        """Rebalance every topic; whether all are settled, so that none needs a retry."""
        async with self._one_at_a_time:
            topics = sorted(self._topics())
            await self._give_up(self._shared_topics - set(topics))
            results = [await self._share(topic) for topic in topics]
        is_asked = all(result is not None for result in results)
        self._failed_round_count = 0 if is_asked else self._failed_round_count + 1
        return all(results)

    async def _run_forever(self) -> None:
        wait_s = self._interval_s
        while True:
            try:
                # ``wait_for`` would lose a cancellation that comes together with the wake-up.
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            else:
                # Woken by ``soon``: a share that failed before may work now.
                self._failed_round_count = 0
            self._wake.clear()
            wait_s = self._wait_s(is_settled=await self._run_logged())
            await asyncio.sleep(_ROUND_GAP_S)

    async def _run_logged(self) -> bool:
        try:
            return await self.run_once()
        except Exception:
            # A strategy or a consumer that fails must not end rebalancing for good.
            _log.exception("group %s could not share its queues", self._group)
            return False

    def _wait_s(self, *, is_settled: bool) -> float:
        if is_settled:
            return self._interval_s
        doublings = min(max(self._failed_round_count - 1, 0), 10)
        return float(min(_UNSETTLED_S * 2**doublings, self._interval_s))

    async def _give_up(self, topics: Collection[str]) -> None:
        for topic in topics:
            self._shared_topics.discard(topic)
            await self._hand_out(topic, set())

    async def _share(self, topic: str) -> bool | None:
        """Whether this topic is settled; None when a server could not be asked."""
        try:
            share = await self._share_of(topic)
        except ClientError as error:
            # A retry topic is created by the first heartbeat, and a topic without a route was
            # logged once.
            is_known = topic.startswith(RETRY_PREFIX) or isinstance(error, RouteMissing)
            level = logging.DEBUG if is_known else logging.WARNING
            _log.log(level, "group %s keeps its queues of %s: %s", self._group, topic, error)
            return None
        self._shared_topics.add(topic)
        return await self._hand_out(topic, share)

    async def _hand_out(self, topic: str, share: set[MessageQueue]) -> bool:
        return self._is_stopped or await self._on_share(topic, share)

    async def _share_of(self, topic: str) -> set[MessageQueue]:
        route = await self._instance.route(topic)
        if self._message_model is MessageModel.BROADCASTING or not route.read_queues:
            return set(route.read_queues)
        members = await self._members(route)
        queues = sorted_queues(set(route.read_queues))
        client_id = self._instance.client_id
        return set(self._strategy.allocate(self._group, client_id, queues, members))

    async def _members(self, route: TopicRoute) -> list[str]:
        """The group's client ids, from any broker of the topic that answers."""
        addresses = one_address_each(route)
        random.shuffle(addresses)
        problem: ClientError | None = None
        for address in addresses:
            try:
                return sorted_client_ids(await self._members_with_me(address))
            except ClientError as error:
                problem = error
        raise problem or ClientError(f"topic {route.topic!r}: no broker has an address")

    async def _members_with_me(self, address: str) -> list[str]:
        try:
            members = await self._members_at(address)
        except BrokerRefused:
            # The broker knows no member at all.
            members = []
        if self._instance.client_id in members:
            return members
        # A new or restarted broker has not had a heartbeat of this member yet.
        await self._instance.beat()
        return await self._members_at(address)

    async def _members_at(self, address: str) -> list[str]:
        what = f"the members of group {self._group!r}"
        answer = await self._instance.ask(
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            {"consumerGroup": self._group},
            what=what,
        )
        try:
            fields = decode_body(answer.body, what, is_table=True)
            with body_errors(what):
                return [str(client_id) for client_id in fields.array("consumerIdList")]
        except RequestRejected as error:
            raise ClientError(f"broker {address}: {error}") from error


def one_address_each(route: TopicRoute) -> list[str]:
    """Of each broker its master, else any slave: all of them know the members."""
    return [
        broker.addresses.get(MASTER_ID) or random.choice(list(broker.addresses.values()))
        for broker in route.data.brokers
        if broker.addresses
    ]
