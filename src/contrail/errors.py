"""Every exception family of Contrail. Imports no other module of Contrail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# The response code INVALID_PARAMETER; this room cannot import the table of codes.
_INVALID_PARAMETER = 29


class ContrailError(Exception):
    """The root of all errors that Contrail raises on purpose."""


class ConfigError(ContrailError):
    """A setting is unknown, malformed or out of range; the message names it."""


class StoreError(ContrailError):
    """The store cannot carry out a call."""


class TableTooLong(StoreError):
    """A table's file would be longer than its reader accepts."""


class StoreLocked(StoreError):
    """Another process has this store folder open."""


class StoreLayoutError(StoreError):
    """A file in the store folder has a name or length that no store of this configuration has."""


class StoreCorrupt(StoreError):
    """Bytes below the durable position are damaged: starting would lose acknowledged messages."""

    def __init__(self, message: str, *, physical_start: int, physical_end: int) -> None:
        super().__init__(message)
        self.physical_start = physical_start
        self.physical_end = physical_end


class OpeningAbandoned(StoreError):
    """Opening the store was ended on request; the folder is as a crash would leave it."""


class StorePoisoned(StoreError):
    """A log write or sync failed; no append is acknowledged until the process restarts."""


class StoreClosed(StoreError):
    """The store was closed."""


class StoreReadOnly(StoreError):
    """The store serves reads but refuses appends for now."""


class StoreFollows(StoreReadOnly):
    """The store of a slave, or of a group's member that does not lead, takes no own records."""


class LogCut(StoreError):
    """Bytes of a group member's log were cut off: the group's leader has others there."""


class FeatureRefused(StoreError):
    """A store folder asks for what this release, or a single broker, would not do rightly."""


class DeliveryUnderWay(StoreError):
    """A slave that acts as master is sending the messages to another broker; ask again later."""


class RawBytesRefused(StoreError):
    """Bytes of a master do not continue this log; nothing was written, and ``reason`` counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DiskFull(StoreReadOnly):
    """The disk is past its high-water mark, or the next segment could not be allocated."""


class RecordDamaged(StoreError):
    """The record at a physical offset is damaged.

    ``is_record`` says that a record surely begins there; otherwise there may never have been one.
    """

    def __init__(self, message: str, *, physical_offset: int, is_record: bool = False) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset
        self.is_record = is_record


class StateFileDamaged(StoreError):
    """A small state file and its backup are both unreadable."""


class MessageIllegal(StoreError):
    """A message breaks a limit of the record format; nothing was stored."""


class BodyTooLarge(MessageIllegal):
    """The body, or a batch's bodies together, exceed ``maxMessageSize``."""


class PropertiesTooLarge(MessageIllegal):
    """The encoded properties exceed 32,767 bytes."""


class TopicTooLong(MessageIllegal):
    """The topic exceeds 127 bytes, or 255 for a retry or dead-letter topic."""


class TopicMissing(MessageIllegal):
    """The message names no topic."""


class TopicNameIllegal(MessageIllegal):
    """The topic name has a character that no topic may have."""


class HostIllegal(MessageIllegal):
    """A packed host is neither 8 (IPv4) nor 20 (IPv6) bytes."""


class BatchIllegal(MessageIllegal):
    """A batch breaks a rule that single messages do not have."""


class RemoteProtocolError(ContrailError):
    """A peer broke the remoting protocol; its connection is closed and ``reason`` counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class LocalProtocolError(ContrailError):
    """Contrail tried to send a command that the remoting protocol cannot carry."""


class RequestRejected(ContrailError):
    """A request is answered with an error: a response code and a remark that explains it."""

    # Header fields of the answer, for the few refusals that have some.
    fields: dict[str, str] | None = None

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class EntryIllegal(RequestRejected, ValueError):
    """An entry of a persisted table breaks the rule of its file's reader; the message names it.

    A file's reader treats the entry as damaged; a request that sets the entry is refused.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(_INVALID_PARAMETER, problem)


class CallFailed(ContrailError):
    """A request to a peer was not answered: no connection, a broken one, or no time left."""


class FilterInvalid(ContrailError):
    """A filter expression does not compile; the message is the remark for the subscriber."""


class CallTimedOut(CallFailed):
    """No answer came in time: the peer may or may not have carried out the request."""


class ClientError(ContrailError):
    """The root of the errors that producers, consumers and the admin client raise."""


class ClientClosed(ClientError):
    """The client was closed, or not started yet."""


class ClientForked(ClientError):
    """The client belongs to the parent of this process: make a new one after the fork."""


class GroupTaken(ClientError):
    """This process already has a producer, or a consumer, of that group on the cluster."""


class NameServerUnreachable(ClientError):
    """No NameServer answered."""


class RouteMissing(ClientError):
    """No broker has queues of the topic."""

    def __init__(self, message: str, *, topic: str) -> None:
        super().__init__(message)
        self.topic = topic


class BrokerUnknown(ClientError):
    """No route names that broker."""


class NotOnCluster(ClientError):
    """The group, message, queue or transaction that a question names does not exist."""


class DeadLettersClosed(ClientError):
    """A group's dead letters may not be read; the message names the command that opens them."""


class NoBroker(BrokerUnknown):
    """No broker at all is registered with the NameServer."""


class BrokerRefused(ClientError):
    """A server answered with an error: ``code`` and ``remark`` are its own.

    ``is_in_doubt``: the request may be carried out all the same. ``leader`` is the address of the
    broker that leads the server's failover group, as far as the server knows.
    """

    def __init__(
        self, message: str, *, code: int, remark: str, is_in_doubt: bool = False, leader: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.remark = remark
        self.is_in_doubt = is_in_doubt
        self.leader = leader


class MessageInvalid(ClientError, ValueError):
    """A message, or a batch, breaks a rule of the protocol; nothing was sent."""


class SendFailed(ClientError):
    """A message was not sent, or no broker confirmed it; ``attempts`` describes each try."""

    def __init__(self, message: str, *, topic: str, attempts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.topic = topic
        self.attempts = attempts


class SendTimedOut(SendFailed):
    """No certain answer in time: the message may or may not be stored."""


class BackPressure(ClientError):
    """Too many sends, or bytes of sends, are under way; send again when some have ended."""


class NoReply(ClientError):
    """A request-reply call got no reply in time."""


class MessageUnreadable(ClientError):
    """A received message cannot be decoded; ``ReceivedMessage.decode_error`` holds this error.

    ``is_record_damaged`` is True for a record that was damaged after it was stored, False for a
    body that cannot be decompressed as its producer sent it.
    """

    def __init__(self, message: str, *, is_record_damaged: bool = False) -> None:
        super().__init__(message)
        self.is_record_damaged = is_record_damaged


class OffsetIllegal(ClientError, ValueError):
    """A call named a queue offset that does not exist."""


class MessageDamaged(ClientError):
    """A broker reported that wanted messages are damaged, or were damaged and replaced.

    ``partial`` has the sound messages, in the form the call would have returned.
    """

    def __init__(self, message: str, *, partial: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.partial = partial


class SomeFailed(ClientError):
    """Some of several servers failed a request; ``failures`` has the error of each.

    ``partial`` is the result of the other servers, in the form the call would have returned.
    """

    def __init__(
        self, message: str, *, failures: Mapping[str, ClientError], partial: object
    ) -> None:
        super().__init__(message)
        self.failures = failures
        self.partial = partial


class PipelineError(ContrailError):
    """The root of the errors of the Spark source, the Spark sink and the pipeline jobs."""


class OptionInvalid(PipelineError, ValueError):
    """An option, a column or a job's setting is unknown, malformed or contradicts another."""


class NotThere(OptionInvalid):
    """An option or a query names a topic or group, for example, that does not exist."""


class DataLost(PipelineError):
    """Messages within the offsets of a read were removed, or a queue was made anew."""


class RecordUndecodable(PipelineError):
    """The body or the batch of one whole record cannot be decoded as its producer sent it."""

    def __init__(self, message: str, *, physical_offset: int) -> None:
        super().__init__(message)
        self.physical_offset = physical_offset


class SinkRefused(PipelineError):
    """The sink cannot give its options' guarantees on this cluster; nothing was written."""


class JobFailed(PipelineError):
    """A pipeline job ended before its work was done; its checkpoint says how far it got."""
