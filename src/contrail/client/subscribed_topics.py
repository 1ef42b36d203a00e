"""Routes of subscribed topics: requested until found, since a topic may be created later."""

from __future__ import annotations

import asyncio
import logging
import random

from contrail.client.instance import ClientInstance
from contrail.client.subscriptions import Subscriptions
from contrail.errors import BrokerRefused, ClientError, RouteMissing
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import RETRY_PREFIX
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import encode_body

_log = logging.getLogger(__name__)

_ASK_AGAIN_S_FIRST = 0.1
_ASK_AGAIN_S_MAX = 30.0


class SubscribedTopics:
    """Finds the topics of one consumer."""

    def __init__(self, instance: ClientInstance, group: str, subscriptions: Subscriptions) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._warned: set[str] = set()
        self._changed = asyncio.Event()

    async def find(self) -> None:
        """Request all routes once.

        Raises:
            BrokerRefused: a broker cannot answer a subscription.
        """
        for subscription in self._subscriptions.all():
            await self.find_one(subscription)

    async def find_one(self, subscription: SubscriptionData) -> None:
        """Request one topic's route, and have its broker check the expression.

        Raises:
            BrokerRefused: the broker refuses the expression.
        """
        self._changed.set()
        if await self._ask(subscription.topic) and not subscription.by_tag:
            await self._check(subscription)

    async def watch(self) -> None:
        """Request missing or incomplete routes again, less and less often.

        A group's retry topic is created by its first heartbeat.
        """
        wait_s = _ASK_AGAIN_S_FIRST
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
                wait_s = _ASK_AGAIN_S_FIRST
            except TimeoutError:
                wait_s = min(2 * wait_s, _ASK_AGAIN_S_MAX)
            self._changed.clear()
            for topic in self._subscriptions.topics():
                if not self._is_found(topic):
                    await self._ask(topic)

    def _is_found(self, topic: str) -> bool:
        """Whether a topic has a route; a retry topic, created broker by broker, a complete one."""
        routes = self._instance.routes.routes
        if topic not in routes or not topic.startswith(RETRY_PREFIX):
            return topic in routes
        names = set(routes[topic].broker_names)
        consumed = (routes[one] for one in self._subscriptions.user_topics() if one in routes)
        return all(names.issuperset(route.broker_names) for route in consumed)

    async def _ask(self, topic: str) -> bool:
        try:
            # A route that a producer derived from a template is of a topic that does not exist yet.
            await self._instance.refresh_route(topic)
        except ClientError as error:
            self._warn(topic, error)
            return False
        return True

    def _warn(self, topic: str, error: ClientError) -> None:
        if topic.startswith(RETRY_PREFIX) or topic in self._warned:
            return
        self._warned.add(topic)
        waits = "; it is consumed as soon as it has one" if isinstance(error, RouteMissing) else ""
        _log.warning("group %s: %s%s", self._group, error, waits)

    async def _check(self, subscription: SubscriptionData) -> None:
        address = self._any_master(subscription.topic)
        if address is None:
            return
        body = {
            "clientId": self._instance.client_id,
            "group": self._group,
            "namespace": "",
            "subscriptionData": subscription.to_fields(),
        }
        what = f"the subscription {subscription.sub_string!r} to topic {subscription.topic!r}"
        try:
            await self._instance.ask(
                address, RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(body), what=what
            )
        except BrokerRefused:
            raise
        except ClientError as error:
            _log.warning("group %s: %s could not be checked: %s", self._group, what, error)

    def _any_master(self, topic: str) -> str | None:
        names = self._instance.routes.routes[topic].broker_names
        return self._instance.routes.master_of(random.choice(names)) if names else None
