"""The asyncio client: the same names as the blocking ones of ``contrail``."""

from __future__ import annotations

from contrail.client.admin import Admin as Admin
from contrail.client.compression import Compression as Compression
from contrail.client.message import Message as Message
from contrail.client.message import MessageQueue as MessageQueue
from contrail.client.message import ReceivedMessage as ReceivedMessage
from contrail.client.message import SendReceipt as SendReceipt
from contrail.client.message import SendStatus as SendStatus
from contrail.client.producer import Producer as Producer
from contrail.client.pull_consumer import PullConsumer as PullConsumer
