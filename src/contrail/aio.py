"""The asyncio client: the same names as the blocking ones of ``contrail``."""

from __future__ import annotations

from contrail.client.admin import Admin as Admin
from contrail.client.batches import SentMany as SentMany
from contrail.client.compression import Compression as Compression
from contrail.client.consumed_message import ConsumedMessage as ConsumedMessage
from contrail.client.consumed_message import ConsumeResult as ConsumeResult
from contrail.client.credentials import CredentialsFile as CredentialsFile
from contrail.client.idempotent import idempotent as idempotent
from contrail.client.idempotent_stores import MemoryStore as MemoryStore
from contrail.client.idempotent_stores import SqliteStore as SqliteStore
from contrail.client.message import Message as Message
from contrail.client.message import MessageQueue as MessageQueue
from contrail.client.message import ReceivedMessage as ReceivedMessage
from contrail.client.message import SendReceipt as SendReceipt
from contrail.client.message import SendStatus as SendStatus
from contrail.client.pop_consumer import PopConsumer as PopConsumer
from contrail.client.popping import PoppedMessage as PoppedMessage
from contrail.client.producer import Producer as Producer
from contrail.client.pull_consumer import PullConsumer as PullConsumer
from contrail.client.push_consumer import PushConsumer as PushConsumer
from contrail.client.selectors import HashSelector as HashSelector
from contrail.client.selectors import MachineRoomSelector as MachineRoomSelector
from contrail.client.selectors import RandomSelector as RandomSelector
from contrail.client.state.allocation import Averagely as Averagely
from contrail.client.state.allocation import AveragelyByCircle as AveragelyByCircle
from contrail.client.state.allocation import ByConfig as ByConfig
from contrail.client.state.allocation import ByMachineRoom as ByMachineRoom
from contrail.client.state.allocation import ConsistentHash as ConsistentHash
from contrail.client.state.allocation import MachineRoomNearby as MachineRoomNearby
from contrail.client.state.local_transactions import TransactionState as TransactionState
from contrail.client.subscriptions import Sql92 as Sql92
from contrail.client.transactions import Transaction as Transaction
from contrail.client.transactions import TransactionListener as TransactionListener
from contrail.client.transactions import TransactionReceipt as TransactionReceipt
from contrail.protocol.signing import Credentials as Credentials

__all__ = [
    "Admin",
    "Averagely",
    "AveragelyByCircle",
    "ByConfig",
    "ByMachineRoom",
    "Compression",
    "ConsistentHash",
    "ConsumeResult",
    "ConsumedMessage",
    "Credentials",
    "CredentialsFile",
    "HashSelector",
    "MachineRoomNearby",
    "MachineRoomSelector",
    "MemoryStore",
    "Message",
    "MessageQueue",
    "PopConsumer",
    "PoppedMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "RandomSelector",
    "ReceivedMessage",
    "SendReceipt",
    "SendStatus",
    "SentMany",
    "Sql92",
    "SqliteStore",
    "Transaction",
    "TransactionListener",
    "TransactionReceipt",
    "TransactionState",
    "idempotent",
]
