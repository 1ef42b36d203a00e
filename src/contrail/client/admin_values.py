"""The values that the admin client returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.json_style import MessageQueue

Moment = datetime | int
"""A time as users write it: a ``datetime`` (local time without a zone) or epoch milliseconds."""


@dataclass(frozen=True, slots=True, order=True)
class BrokerAddress:
    """One broker process: its cluster, its name, its id (0 is the master) and where it listens."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER_ID

    def __str__(self) -> str:
        return f"broker {self.broker_name!r} ({self.address})"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """How far one queue reaches; ``queue_offset_max`` is the offset the next message will get.

    ``last_store_timestamp_ms`` is 0 for a queue without messages, and -1 if unknown.
    """

    queue: MessageQueue
    queue_offset_min: int
    queue_offset_max: int
    last_store_timestamp_ms: int

    @property
    def count(self) -> int:
        return self.queue_offset_max - self.queue_offset_min


@dataclass(frozen=True, slots=True)
class TopicStats:
    """How far each queue of a topic reaches, and how many messages a second come in.

    ``put_per_second`` is 0 from brokers older than 5.0, which do not report it.
    """

    topic: str
    queues: tuple[QueueStats, ...]
    put_per_second: float = 0.0

    @property
    def count(self) -> int:
        """How many messages the topic holds."""
        return sum(queue.count for queue in self.queues)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group on one queue.

    ``broker_offset`` is the offset the next message will get, ``last_timestamp_ms`` when the
    message that the group consumed last was stored (0 for none).
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    lag: int
    last_timestamp_ms: int
    # Messages pulled by a member and not consumed yet; brokers before 5.0 do not report them.
    in_flight: int = 0


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind, by queue and in all."""

    group: str
    queues: tuple[QueueLag, ...]
    total: int
    consumed_per_second: float = 0.0

    @property
    def by_topic(self) -> dict[str, int]:
        """The lag on each topic, retry topics included."""
        totals: dict[str, int] = {}
        for entry in self.queues:
            totals[entry.queue.topic] = totals.get(entry.queue.topic, 0) + entry.lag
        return totals


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """A client and the brokers it is connected to; ``version`` is RocketMQ's release number."""

    client_id: str
    address: str
    language: str
    version: int
    broker_names: tuple[str, ...] = ()
    last_update_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupConnections:
    """The connected consumers of a group. Without connections the other fields mean nothing."""

    group: str
    connections: tuple[ClientConnection, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    subscriptions: Mapping[str, SubscriptionData] = field(default_factory=dict)

    @property
    def is_online(self) -> bool:
        return bool(self.connections)


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """The connected producers of a group."""

    group: str
    connections: tuple[ClientConnection, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerRuntime:
    """A broker's runtime info as received, and its most used figures as properties."""

    broker: BrokerAddress
    values: Mapping[str, str]

    @property
    def version(self) -> str:
        return self.values.get("brokerVersionDesc", "")

    @property
    def contrail_version(self) -> str | None:
        """The version of Contrail; None of a broker of another make."""
        return self.values.get("contrailVersion")

    @property
    def put_per_second(self) -> float:
        """Messages stored per second over the last ten seconds."""
        return self.first_figure("putTps")

    @property
    def get_per_second(self) -> float:
        """Messages handed to consumers per second over the last ten seconds."""
        return self.first_figure("getTransferredTps") or self.first_figure("getTransferedTps")

    @property
    def disk_used_ratio(self) -> float:
        return self.first_figure("commitLogDiskRatio")

    @property
    def put_count_today(self) -> int:
        return self._counted("msgPutTotal", "TodayMorning", "TodayNow")

    @property
    def get_count_today(self) -> int:
        return self._counted("msgGetTotal", "TodayMorning", "TodayNow")

    @property
    def put_count_yesterday(self) -> int:
        return self._counted("msgPutTotal", "YesterdayMorning", "TodayMorning")

    @property
    def get_count_yesterday(self) -> int:
        return self._counted("msgGetTotal", "YesterdayMorning", "TodayMorning")

    def first_figure(self, name: str) -> float:
        """The first of several figures, 0 for none: brokers report rates of 10 s, 1 and 10 min."""
        pieces = self.values.get(name, "").split()
        try:
            return float(pieces[0]) if pieces else 0.0
        except ValueError:
            return 0.0  # A broker of another make; the text itself is in ``values``.

    def _counted(self, name: str, begin: str, end: str) -> int:
        texts = (self.values.get(f"{name}{moment}", "") for moment in (begin, end))
        first, last = (int(text) if text.isdecimal() else 0 for text in texts)
        return last - first


@dataclass(frozen=True, slots=True)
class TransactionPage:
    """A page of a broker's open transactions, and the count of all."""

    broker: BrokerAddress
    transactions: tuple[OpenTransaction, ...]
    total: int


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open half message; ``next_check_ms`` is -1 while no producer of its group is connected."""

    broker_name: str
    transaction_id: str
    topic: str
    producer_group: str
    message_id: str
    born_ms: int
    age_ms: int
    check_count: int
    next_check_ms: int
