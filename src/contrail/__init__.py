"""Contrail: RocketMQ in Python. These are the blocking clients; ``contrail.aio`` has the others.

The public names are resolved on first use, so that importing one room does not pay for another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrail.client.batches import SentMany as SentMany
    from contrail.client.blocking.admin import Admin as Admin
    from contrail.client.blocking.pop_consumer import PopConsumer as PopConsumer
    from contrail.client.blocking.producer import Producer as Producer
    from contrail.client.blocking.producer import Transaction as Transaction
    from contrail.client.blocking.pull_consumer import PullConsumer as PullConsumer
    from contrail.client.blocking.push_consumer import ConsumedMessage as ConsumedMessage
    from contrail.client.blocking.push_consumer import PushConsumer as PushConsumer
    from contrail.client.compression import Compression as Compression
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
    from contrail.client.popping import PoppedMessage as PoppedMessage
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
    from contrail.client.transactions import TransactionListener as TransactionListener
    from contrail.client.transactions import TransactionReceipt as TransactionReceipt
    from contrail.errors import ContrailError as ContrailError
    from contrail.model.message import MessageDraft as MessageDraft
    from contrail.model.properties import encode_properties as encode_properties
    from contrail.protocol.signing import Credentials as Credentials
    from contrail.store.config import FlushDiskType as FlushDiskType
    from contrail.store.config import StoreConfig as StoreConfig
    from contrail.store.log import MessageStore as MessageStore
    from contrail.store.reader import StoreReader as StoreReader

__version__ = "0.1.0.dev0"

# public name -> the module that defines it
_PUBLIC: dict[str, str] = {
    "Admin": "contrail.client.blocking.admin",
    "Averagely": "contrail.client.state.allocation",
    "AveragelyByCircle": "contrail.client.state.allocation",
    "ByConfig": "contrail.client.state.allocation",
    "ByMachineRoom": "contrail.client.state.allocation",
    "Compression": "contrail.client.compression",
    "ConsistentHash": "contrail.client.state.allocation",
    "ConsumeResult": "contrail.client.consumed_message",
    "ConsumedMessage": "contrail.client.blocking.push_consumer",
    "Credentials": "contrail.protocol.signing",
    "CredentialsFile": "contrail.client.credentials",
    "ContrailError": "contrail.errors",
    "FlushDiskType": "contrail.store.config",
    "HashSelector": "contrail.client.selectors",
    "MachineRoomNearby": "contrail.client.state.allocation",
    "MachineRoomSelector": "contrail.client.selectors",
    "MemoryStore": "contrail.client.idempotent_stores",
    "Message": "contrail.client.message",
    "MessageDraft": "contrail.model.message",
    "MessageQueue": "contrail.client.message",
    "MessageStore": "contrail.store.log",
    "PopConsumer": "contrail.client.blocking.pop_consumer",
    "PoppedMessage": "contrail.client.popping",
    "Producer": "contrail.client.blocking.producer",
    "PullConsumer": "contrail.client.blocking.pull_consumer",
    "PushConsumer": "contrail.client.blocking.push_consumer",
    "RandomSelector": "contrail.client.selectors",
    "ReceivedMessage": "contrail.client.message",
    "SendReceipt": "contrail.client.message",
    "SendStatus": "contrail.client.message",
    "SentMany": "contrail.client.batches",
    "Sql92": "contrail.client.subscriptions",
    "SqliteStore": "contrail.client.idempotent_stores",
    "StoreConfig": "contrail.store.config",
    "StoreReader": "contrail.store.reader",
    "Transaction": "contrail.client.blocking.producer",
    "TransactionListener": "contrail.client.transactions",
    "TransactionReceipt": "contrail.client.transactions",
    "TransactionState": "contrail.client.state.local_transactions",
    "encode_properties": "contrail.model.properties",
    "idempotent": "contrail.client.idempotent",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'contrail' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
