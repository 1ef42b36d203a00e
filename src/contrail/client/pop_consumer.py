"""``PopConsumer``: messages of any queue, each invisible to others until it is acknowledged.

The broker keeps the group's progress message by message: any number of members may receive at the
same time, and a message that none of them acknowledges in time comes again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from contrail.client.instance import require_same_process
from contrail.client.membership import join_group, leave_group, require_running
from contrail.client.options import PopOptions
from contrail.client.pop_handling import MessageHandler, PopHandling
from contrail.client.pop_member import PopMember
from contrail.client.pop_settings import split_pop_settings
from contrail.client.popping import PoppedMessage, ack_once, prolong_once
from contrail.client.settings import ClientSettings
from contrail.client.subscriptions import Sql92, check_subscription
from contrail.clock import SystemClock
from contrail.errors import ClientError
from contrail.model.group import check_group_name
from contrail.model.subscription import ALL_TAGS, SQL92, SubscriptionData, parse_subscription
from contrail.model.topic import check_topic_name


class PopConsumer:
    """A consumer that receives messages. See ``PopSettings`` and ``ClientSettings`` for options."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        **options: Unpack[PopOptions],
    ) -> None:
        check_group_name(group)
        self._settings, shared = split_pop_settings({**options})
        self._client_settings = ClientSettings.of(namesrv, **shared)
        self._group = group
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._clock = SystemClock()
        self._process_id = os.getpid()
        self._member: PopMember | None = None

    # Life.

    async def start(self) -> None:
        """Raises ``GroupTaken`` when this process already consumes for the group.

        A second start does nothing.
        """
        require_same_process(self._process_id, self._name)
        if self._member is None:
            self._member = await join_group(
                self._client_settings,
                lambda instance: PopMember(
                    instance, self._group, self._settings, self._subscriptions
                ),
            )

    async def close(self) -> None:
        """Leave the group; messages that were not acknowledged come again."""
        member = self._member
        if member is None or not member.instance.may_be_closed_here():
            return
        self._member = None
        await leave_group(member)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def group(self) -> str:
        return self._group

    @property
    def client_id(self) -> str:
        return self._running().instance.client_id

    @property
    def _name(self) -> str:
        return f"pop consumer of group {self.group!r}"

    def _running(self) -> PopMember:
        return require_running(self._member, self._process_id, self._name)

    # Subscriptions.

    async def subscribe(self, topic: str, expression: str | Sql92 = ALL_TAGS) -> None:
        """Receive messages of a topic: all, those with some tags, or those of an SQL92 filter."""
        check_subscription(topic, expression)
        check_topic_name(topic)
        now_ms = self._clock.now_ms()
        self._subscriptions[topic] = (
            parse_subscription(topic, expression.expression, SQL92, sub_version=now_ms)
            if isinstance(expression, Sql92)
            else parse_subscription(topic, expression, sub_version=now_ms)
        )
        self._subscriptions_changed()

    async def unsubscribe(self, topic: str) -> None:
        """Receive nothing more of a topic."""
        if self._subscriptions.pop(topic, None) is not None:
            self._subscriptions_changed()

    def _subscriptions_changed(self) -> None:
        if self._member is not None:
            self._member.instance.beat_soon()

    # Messages.

    async def receive(
        self, count_max: int | None = None, timeout_ms: int = 15_000
    ) -> list[PoppedMessage]:
        """Messages as soon as there are any, an empty list after ``timeout_ms``.

        Nobody else gets them for ``pop_invisible_time_ms``.

        Raises:
            ClientError: nothing is subscribed, or no broker gave an answer.
        """
        member = self._running()
        if not self._subscriptions:
            raise ClientError("there is nothing to receive: call subscribe() first")
        return await member.receive(count_max or self._settings.pop_batch_nums, timeout_ms)

    async def ack(self, *messages: PoppedMessage) -> None:
        """The messages were handled and need not come again.

        Raises:
            ClientError: a broker did not confirm it; those messages may come again.
        """
        instance = self._running().instance
        outcomes = await asyncio.gather(
            *(ack_once(instance, self._group, one) for one in messages), return_exceptions=True
        )
        for problem in outcomes:
            if isinstance(problem, BaseException):
                raise problem

    async def extend(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Handling takes longer: nobody else gets the message for so long, from now on.

        Raises:
            ClientError: the broker did not confirm it; the message may come again.
        """
        if invisible_ms < 0:
            raise ClientError(f"invisible_ms={invisible_ms} must not be negative")
        await prolong_once(self._running().instance, self._group, message, invisible_ms)

    async def run(self, handler: MessageHandler, concurrency: int = 20) -> None:
        """Have a function handle messages, so many at once, until the consumer is closed.

        Its invisible time is renewed while a message is handled. A message is acknowledged when
        the function returns; when it raises, the message comes again later: after 10 s, 30 s, a
        minute, and so on. A function without ``async`` is called in threads.

        Raises:
            ClientError: nothing is subscribed.
        """
        member = self._running()
        if not self._subscriptions:
            raise ClientError("there is nothing to handle: call subscribe() first")
        await member.handle(PopHandling(self, handler, concurrency))

    async def release(self, message: PoppedMessage) -> None:
        """Let another member try now; Contrail's brokers hand it out a second later.

        Raises:
            ClientError: the broker did not confirm it; it comes again after its invisible time.
        """
        await self.extend(message, 0)
