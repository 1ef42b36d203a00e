"""The calls that a client instance makes to the producers and consumers that share it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from contrail.client.message import MessageQueue, ReceivedMessage
from contrail.protocol.bodies.heartbeat import ConsumerData


class TransactionCheck(NamedTuple):
    """A broker's check of a transaction."""

    message: ReceivedMessage
    broker_address: str
    transaction_id: str
    # The half message's offsets; both go back with the answer.
    queue_offset: int
    physical_offset: int


class ProducerSide(Protocol):
    """A producer as its client instance sees it."""

    @property
    def group(self) -> str: ...

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        ...

    def check_transaction(self, check: TransactionCheck) -> None:
        """A broker checks a transaction; the producer sends the answer when it has one."""
        ...


class ConsumerSide(Protocol):
    """A consumer as its client instance sees it."""

    @property
    def group(self) -> str: ...

    def topics(self) -> Collection[str]:
        """Topics whose routes are to be kept fresh."""
        ...

    def heartbeat_data(self) -> ConsumerData: ...

    def route_changed(self, topic: str) -> None:
        """The queues of a topic changed."""
        ...

    def members_changed(self) -> None:
        """A member joined or left the group: rebalance soon."""
        ...

    def reset_offsets(self, topic: str, consumer_offsets: Mapping[MessageQueue, int]) -> None:
        """An operator reset the group's offsets on a topic."""
        ...

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """This member's consumer offsets, by queue."""
        ...

    def running_info(self) -> Mapping[str, object]:
        """The body of GET_CONSUMER_RUNNING_INFO, without the instance's own part."""
        ...

    async def consume_directly(
        self, message: ReceivedMessage, broker_name: str | None
    ) -> Mapping[str, object]:
        """Have the handler consume one message; a ConsumeMessageDirectlyResult."""
        ...
