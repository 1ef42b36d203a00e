"""The blocking pull consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from contrail.client.blocking.pull_calls import PullConsumerCalls
from contrail.client.hooks import ConsumeHook
from contrail.client.message import MessageQueue
from contrail.client.options import PullOptions
from contrail.client.pull_consumer import PullConsumer as AsyncPullConsumer


class PullConsumer(PullConsumerCalls):
    """A consumer whose program polls. Use it in ``with``, or ``start`` and ``close``."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        *,
        hooks: Sequence[ConsumeHook] = (),
        **options: Unpack[PullOptions],
    ) -> None:
        super().__init__(AsyncPullConsumer(group, namesrv, hooks=hooks, **options))

    @property
    def group(self) -> str:
        return self._twin.group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._twin.client_id

    def assignment(self) -> list[MessageQueue]:
        """The queues this consumer reads now."""

        async def ask() -> list[MessageQueue]:
            return self._twin.assignment()

        return self._run(ask)
