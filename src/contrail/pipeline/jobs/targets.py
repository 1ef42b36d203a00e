"""Checks of the topics that a job reads and writes, before Spark is started, also in dry runs."""

from __future__ import annotations

from collections.abc import Mapping

from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused, MessageIllegal, NotThere, OptionInvalid, RouteMissing
from contrail.model.topic import (
    QUEUE_COUNT_MAX,
    RETRY_PREFIX,
    Perm,
    check_topic_name,
    is_closed_topic,
    is_system_topic,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue

_PROBE_SINK = "contrail-job-probe"


def require_readable(admin: Admin, starts: Mapping[MessageQueue, int]) -> None:
    """Pull once from each broker: not every topic that has queues may be read.

    ``starts`` has the first queue offset of each queue.

    Raises:
        OptionInvalid: the topic is a system topic, or a broker refuses pulls of it.
    """
    for queue in {one.broker_name: one for one in starts}.values():
        # These pulls are an operator's, which brokers allow to read system topics.
        _refuse_system_topic(queue.topic)
        try:
            admin.messages_from(queue, starts[queue], 1)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.NO_PERMISSION:
                raise
            raise OptionInvalid(f"topic {queue.topic!r} may not be read: {refusal}") from refusal


def check_target(topic: str, queues: int | None, *, is_there: bool) -> None:
    """Refuse a topic that no job can write to or create.

    ``queues`` is the number of queues on each broker of a topic to create.

    Raises:
        OptionInvalid: the text names a remedy.
    """
    refuse_retry_topic(topic)
    _refuse_system_topic(topic, is_system=is_system_topic(topic) and not is_there)
    if is_there:
        return
    try:
        check_topic_name(topic)
    except MessageIllegal as error:
        raise OptionInvalid(str(error)) from error
    if queues is None:
        raise OptionInvalid(
            f"topic {topic!r} does not exist: say with queues how many each broker shall have"
        )
    if not 1 <= queues <= QUEUE_COUNT_MAX:
        raise OptionInvalid(f"queues is {queues}: a topic has 1 to {QUEUE_COUNT_MAX} on a broker")


def refuse_retry_topic(topic: str) -> None:
    """Raises ``OptionInvalid`` for a group's retry topic."""
    if topic.startswith(RETRY_PREFIX):
        raise OptionInvalid(
            f"to_topic {topic!r}: brokers take no batches for a retry topic; name another topic"
        )


def _refuse_system_topic(topic: str, *, is_system: bool = False) -> None:
    if is_closed_topic(topic) or is_system:
        raise OptionInvalid(f"topic {topic!r} belongs to the system: name another")


def require_topic(admin: Admin, topic: str) -> None:
    """Refuse a target that accepts no sends.

    Raises:
        NotThere: no broker has the topic.
        OptionInvalid: no broker allows sends to it.
    """
    _refuse_system_topic(topic)
    if writable_queues(admin, topic):
        return
    try:
        perms = sorted({queue.perm for queue in admin.topic_route(topic).queues})
    except RouteMissing:
        raise NotThere(f"topic {topic!r} does not exist on the target: create it first") from None
    raise OptionInvalid(
        f"topic {topic!r} may not be written on the target "
        f"(perm={','.join(map(str, perms))}): give it the permission 6 first"
    )


def writable_queues(admin: Admin, topic: str) -> list[tuple[str, int]]:
    """The writable queues, by broker name and queue id; empty for a missing topic."""
    try:
        route = admin.topic_route(topic)
    except RouteMissing:
        return []
    return sorted(
        (queue.broker_name, number)
        for queue in route.queues
        if queue.perm & Perm.WRITE
        for number in range(queue.write_queue_count)
    )


def offers_idempotence(admin: Admin) -> bool:
    """Whether every master knows the sink's requests: Contrail's brokers do, Apache's do not."""
    masters = {one.broker_name for one in admin.brokers() if one.is_master}
    return all(_knows_sinks(admin, name) for name in sorted(masters))


def _knows_sinks(admin: Admin, broker_name: str) -> bool:
    try:
        admin.ask_broker(broker_name, RequestCode.CONTRAIL_SINK_STATUS, {"sinkId": _PROBE_SINK})
    except BrokerRefused as refusal:
        if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False
        raise
    return True
