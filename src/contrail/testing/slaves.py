"""Waiting for the slaves of a test's cluster, until they have all that their masters have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.store import CONSUMER_OFFSETS
from contrail.testing.caller import BlockingCaller
from contrail.testing.waiting import eventually

_TABLES = (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
_RECEIVING = "receiving"
_OWN_CURSORS = "@CID_RMQ_SYS_TRANS"


class ReachedBroker(Protocol):
    """The part of a ``LocalBroker`` that is needed to ask it."""

    name: str
    broker_id: int
    address: str


def wait_for_slaves(
    caller: BlockingCaller, master: ReachedBroker, slaves: Sequence[ReachedBroker], timeout_s: float
) -> None:
    """Wait until these slaves have their master's log, topics, groups and consumer offsets.

    Raises:
        AssertionError: they have not within ``timeout_s``.
    """
    eventually(
        lambda: all(_is_level(caller, master, one) for one in slaves),
        lambda: f"the slaves of {master.name} are level with it: {_status(caller, master)}",
        timeout_s=timeout_s,
    )


def _is_level(caller: BlockingCaller, master: ReachedBroker, slave: ReachedBroker) -> bool:
    status = _status(caller, master)
    has_log = any(
        one.broker_id == slave.broker_id and one.state == _RECEIVING and not one.lag_bytes
        for one in (status.slaves if status is not None else ())
    )
    return (
        has_log
        and all(
            caller.call(master.address, code).body == caller.call(slave.address, code).body
            for code in _TABLES
        )
        and _offsets(caller, master).items() <= _offsets(caller, slave).items()
    )


def _offsets(caller: BlockingCaller, broker: ReachedBroker) -> dict[tuple[str, int], int]:
    """Consumer offsets by group and queue, without the cursors that are each broker's own."""
    body = caller.call(broker.address, RequestCode.GET_ALL_CONSUMER_OFFSET).body
    return {
        (key, queue_id): consumer_offset
        for key, queues in CONSUMER_OFFSETS.parse(body).offsets.items()
        if not key.endswith(_OWN_CURSORS)
        for queue_id, consumer_offset in queues.items()
    }


def _status(caller: BlockingCaller, master: ReachedBroker) -> HaStatus | None:
    answer = caller.call(master.address, RequestCode.GET_BROKER_HA_STATUS)
    return decode_ha_status(answer.body) if answer.code == ResponseCode.SUCCESS else None
