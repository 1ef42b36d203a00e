"""Asks a cluster for all facts of a message: traces, stored copies, groups' offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from contrail.client.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.errors import (
    BrokerRefused,
    ClientError,
    MessageIllegal,
    NotOnCluster,
    RemoteProtocolError,
    RouteMissing,
)
from contrail.insight.damage import DamageNoted
from contrail.insight.story import (
    BROKER_TRACE,
    CLIENT_TRACE,
    GroupProgress,
    Story,
    Traced,
    tell,
)
from contrail.model.host import Host, unpack_host
from contrail.model.message_id import decode_offset_message_id
from contrail.model.properties import KEY_SEPARATOR, UNIQ_KEY
from contrail.model.topic import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dlq_topic,
    pop_retry_topic,
    retry_topic,
)
from contrail.protocol.bodies.in_flight import InFlight
from contrail.protocol.bodies.trace import (
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    decode_traces,
)
from contrail.protocol.codes import ResponseCode

_PORT_MAX = 65_535
_POPPED_MAX = 1000
_WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC)


async def names_a_broker(admin: Admin, message_id: str) -> bool:
    """Whether an id is an offset id: it begins with the address of one of the brokers."""
    host = _host_of(message_id)
    if host is None:
        return False
    return any(one.address == str(host) for one in await admin.brokers())


def unknown_broker(message_id: str) -> str | None:
    """The address that an id begins with, if it may be a broker's, for ids of no broker here.

    A producer's id has its process id there, which can nearly never be a port.
    """
    host = _host_of(message_id)
    return str(host) if host is not None and 0 < host.port <= _PORT_MAX else None


def elsewhere(message_id: str) -> str:
    """A hint after the error for an id that was not found."""
    address = unknown_broker(message_id)
    if address is None:
        return ""
    return f"; the id names the broker at {address}, which this cluster does not know"


def _host_of(message_id: str) -> Host | None:
    try:
        return unpack_host(decode_offset_message_id(message_id).store_host)
    except MessageIllegal:
        return None


async def story_of(
    admin: Admin,
    message_id: str,
    topic: str | None,
    trace_topic: str,
    damage: DamageNoted,
    complain: Callable[[str], None],
) -> Story:
    """The story of a message, by an id of either kind; ``complain`` hears what is not listed.

    Raises:
        MessageDamaged: no trace and no copy of the message is sound, but one is damaged.
        NotOnCluster: there is neither a trace nor a copy of the message.
    """
    if await names_a_broker(admin, message_id):
        message = await admin.message_by_offset_id(message_id)
        message_id = message.properties.get(UNIQ_KEY, message_id)
        topic = topic or message.topic
    traced = await _traces(admin, message_id, trace_topic, damage)
    topic = topic or next((t.topic for t, _ in traced if isinstance(t, PubTrace)), None)
    groups = await _groups(admin, topic, traced)
    copies: list[ReceivedMessage] = []
    for name in (*([topic] if topic else []), *_group_topics(groups, topic)):
        copies += await copies_in(admin, name, message_id, damage)
    for name in _WAITING_TOPICS:
        copies += await _waiting(admin, name, message_id, damage, complain)
    if not traced and not copies:
        damage.require_none()
        where = f"topic {topic}" if topic else "no topic is known: give --topic"
        raise NotOnCluster(
            f"there is no trace and no copy of message {message_id!r} ({where})"
            f"{elsewhere(message_id)}"
        )
    of_topic = [copy for copy in copies if copy.queue.topic == topic]
    progress = await _progress(admin, groups, of_topic)
    popped = await _popped(admin, groups, topic, message_id)
    return tell(message_id, topic, traces=traced, copies=copies, progress=progress, popped=popped)


async def ids_by_key(
    admin: Admin, key: str, topic: str | None, trace_topic: str, damage: DamageNoted
) -> list[str]:
    """The ids of the messages with a key: in a topic, or in the traces."""
    if topic is not None:
        found = await damage.sound_of(admin.messages_by_key(topic, key))
        return [one.message_id for one in found]
    ids = {
        trace.message_id: None
        for trace, _ in await _traces_by_key(admin, key, trace_topic, damage)
        if isinstance(trace, PubTrace) and key in trace.keys.split(KEY_SEPARATOR)
    }
    return list(ids)


async def copies_in(
    admin: Admin, topic: str, message_id: str, damage: DamageNoted
) -> list[ReceivedMessage]:
    """A message's copies in a topic; none if there is no such topic."""
    try:
        return await damage.sound_of(admin.messages_by_unique_key(topic, message_id))
    except RouteMissing:
        return []


async def _waiting(
    admin: Admin,
    topic: str,
    message_id: str,
    damage: DamageNoted,
    complain: Callable[[str], None],
) -> list[ReceivedMessage]:
    """A message's waiting copies, which Contrail's brokers list on their own host only."""
    try:
        return await copies_in(admin, topic, message_id, damage)
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.NO_PERMISSION:
            raise
        complain(f"waiting messages of {topic} are not listed here: ask on the broker's host")
        return []


async def _traces(
    admin: Admin, message_id: str, trace_topic: str, damage: DamageNoted
) -> list[Traced]:
    found = await _traces_by_key(admin, message_id, trace_topic, damage)
    return [traced for traced in found if traced.trace.message_id == message_id]


async def _traces_by_key(
    admin: Admin, key: str, trace_topic: str, damage: DamageNoted
) -> list[Traced]:
    try:
        messages = await damage.sound_of(admin.messages_by_key(trace_topic, key))
    except RouteMissing:
        # No client of this cluster writes traces.
        return []
    found: list[Traced] = []
    for message in messages:
        # A broker writes its traces itself; a client has sent them from somewhere else.
        source = BROKER_TRACE if message.born_host == message.store_host else CLIENT_TRACE
        # Other messages of that topic are no traces.
        with suppress(RemoteProtocolError):
            found += [Traced(trace, source) for trace in decode_traces(message.body)]
    return found


async def _groups(admin: Admin, topic: str | None, traced: Iterable[Traced]) -> list[str]:
    consumers = (SubBeforeTrace, SubAfterTrace)
    found = {trace.group for trace, _ in traced if isinstance(trace, consumers) and trace.group}
    if topic is not None:
        # If the message was deleted, traces may still exist.
        with suppress(RouteMissing):
            found |= set(await admin.topic_consumers(topic))
    return sorted(found)


def _group_topics(groups: Iterable[str], topic: str | None) -> Iterator[str]:
    for group in groups:
        yield retry_topic(group)
        yield dlq_topic(group)
        if topic is not None:
            yield pop_retry_topic(topic, group)


async def _popped(
    admin: Admin, groups: Iterable[str], topic: str | None, message_id: str
) -> list[tuple[str, InFlight]]:
    """The message in the hands of consumers that popped it; Apache's brokers do not tell."""
    found: list[tuple[str, InFlight]] = []
    for group in groups:
        with suppress(ClientError):
            for page in await admin.in_flight(group, topic, count_max=_POPPED_MAX):
                here = [one for one in page.messages if one.message_id == message_id]
                found += [(group, one) for one in here]
    return found


async def _progress(
    admin: Admin, groups: Iterable[str], stored: Iterable[ReceivedMessage]
) -> list[GroupProgress]:
    return [
        GroupProgress(group, message, await admin.committed(group, message.queue))
        for message in stored
        for group in groups
    ]
