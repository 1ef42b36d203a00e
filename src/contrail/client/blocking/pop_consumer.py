"""The blocking pop consumer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from contrail.client.blocking.pop_calls import PopConsumerCalls
from contrail.client.options import PopOptions
from contrail.client.pop_consumer import PopConsumer as AsyncPopConsumer


class PopConsumer(PopConsumerCalls):
    """A consumer that receives messages. Use it in ``with``, or ``start`` and ``close``."""

    def __init__(
        self,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        **options: Unpack[PopOptions],
    ) -> None:
        super().__init__(AsyncPopConsumer(group, namesrv, **options))

    @property
    def group(self) -> str:
        return self._twin.group

    @property
    def client_id(self) -> str:
        """The client id that brokers know; set by ``start``."""
        return self._twin.client_id
