"""Ends a story: the tables reach the slaves, the brokers end, and their folders are compared."""

from __future__ import annotations

import json
import struct
import time
from collections import defaultdict
from collections.abc import Mapping

from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.comparison import Record, decode_properties, read_log
from tests.interop.differential.raw import RawConnection
from tests.interop.replication.folders import Agreement, Folder, check_same, timers
from tests.interop.replication.replicas import APACHE_5, INDEX_SLOTS, OURS, Replicas
from tests.interop.replication.servers import BrokerProcess
from tests.interop.replication.story import QUEUE_COUNT, TOPIC, Sent

GROUP = "readers"

_QUERY_CONSUMER_OFFSET = 14
_UPDATE_CONSUMER_OFFSET = 15
_GET_ALL_DELAY_OFFSET = 45
_GET_TIMER_CHECK = 60
_UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
_SET_MESSAGE_REQUEST_MODE = 401
_GET_ALL_MESSAGE_REQUEST_MODE = 402
_CHECK = struct.Struct(">7q")
# A slave of 5.x asks for its master's tables every 60 s, for the first time after as long.
_TABLES_TIMEOUT_S = 200.0
_TIMERS_TIMEOUT_S = 60.0
_POLL_S = 0.5


def agree(replicas: Replicas, sent: Sent, *, tables: bool = True) -> list[Agreement]:
    """Compare every slave with the master; with ``tables`` wait for consumer offsets first."""
    if tables:
        _commit_offsets(replicas)
    eventually(
        lambda: not _undelivered(replicas.master, sent),
        lambda: f"delivery of {_undelivered(replicas.master, sent)[:5]}",
        pause_s=_POLL_S,
    )
    replicas.wait_until_equal("at the end")
    _wait_for_timers(replicas)
    if tables and replicas.kinds[0] != OURS:
        _wait_for_progress(replicas)
    for kind, broker in zip(replicas.kinds, replicas.brokers, strict=True):
        # Apache's files are maps and whole at any time; ours writes its newest rows as it stops.
        broker.stop() if kind == OURS else broker.kill()
    master, *slaves = [
        Folder(broker.store, index_slots=INDEX_SLOTS, keeps_keys=kind == OURS)
        for kind, broker in zip(replicas.kinds, replicas.brokers, strict=True)
    ]
    _check_sent(master, sent)
    agreements = []
    for kind, slave in zip(replicas.kinds[1:], slaves, strict=True):
        what = f"{kind} under {replicas.kinds[0]}"
        agreements.append(check_same(master, slave, what))
        print(f"{what}: {agreements[-1]}")
    return agreements


def _wait_for_progress(replicas: Replicas) -> None:
    """Until our slaves know what their master of Apache's has delivered, and its request modes."""
    if replicas.has_timers:
        mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "PULL", "popShareQueueNum": 0}
        with RawConnection(replicas.master.address) as connection:
            answer = connection.ask(_SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
            assert answer.code == 0, answer
    for kind, slave in zip(replicas.kinds[1:], replicas.slaves, strict=True):
        if kind == OURS:
            eventually(
                lambda slave=slave: (  # type: ignore[misc]
                    _progress(replicas, slave) == _progress(replicas, replicas.master)
                ),
                lambda slave=slave: [  # type: ignore[misc]
                    _progress(replicas, one) for one in (replicas.master, slave)
                ],
                timeout_s=_TIMERS_TIMEOUT_S,
                pause_s=_POLL_S,
            )


def _progress(replicas: Replicas, broker: BrokerProcess) -> tuple[object, ...]:
    """The delay offsets; of a broker with timers their queue offset and the request modes too."""
    with RawConnection(broker.address) as connection:
        found = fastjson.loads(connection.ask(_GET_ALL_DELAY_OFFSET).body)
        assert isinstance(found, dict)
        table = found["offsetTable"]
        assert isinstance(table, dict)
        # Whether a level that nothing was delivered of is named depends on the version.
        delays = {str(level): at for level, at in table.items() if at}
        if not replicas.has_timers:
            return (delays,)
        read_ms, *_, queue_offset, _, _, _ = _CHECK.unpack(connection.ask(_GET_TIMER_CHECK).body)
        assert read_ms >= 0
        modes = fastjson.loads(connection.ask(_GET_ALL_MESSAGE_REQUEST_MODE).body)
        return delays, queue_offset, modes


def _wait_for_timers(replicas: Replicas) -> None:
    """Until slaves of 5.x have filed the timers that their master has.

    They go by its checkpoint, which they ask for every 3 s. Ours file what the log tells when they
    lead, and brokers before 5.0 have no timers.
    """
    for kind, slave in zip(replicas.kinds, replicas.brokers, strict=True):
        if kind == APACHE_5 and slave is not replicas.master and replicas.has_timers:
            eventually(
                lambda slave=slave: not _timers_apart(replicas, slave),  # type: ignore[misc]
                lambda slave=slave: f"equal timers; {_timers_apart(replicas, slave)}",  # type: ignore[misc]
                timeout_s=_TIMERS_TIMEOUT_S,
                pause_s=_POLL_S,
            )


def _timers_apart(replicas: Replicas, slave: BrokerProcess) -> str:
    """How far the timers of a slave are from its master's; empty when they are equal.

    After a kill ours files no message again that it had delivered: its slave may have those too.
    """
    ours, theirs = timers(replicas.master.store), timers(slave.store)
    now_ms = time.time() * 1000
    waiting = {row for row in theirs - ours if row[0] > now_ms or replicas.kinds[0] != OURS}
    apart = sorted((ours - theirs) | waiting)[:4]
    return f"{len(ours)} and {len(theirs)}, such as {apart}" if apart else ""


def _undelivered(broker: BrokerProcess, sent: Sent) -> list[str]:
    """The keys of what is due and not under its topic yet, by the files of a running broker."""
    return sorted(sent.delivered - _keys_by_topic(read_log(broker.store))[TOPIC])


def _check_sent(master: Folder, sent: Sent) -> None:
    """Every acknowledged message is in the log, under its topic once it is due."""
    stored = _keys_by_topic(master.records)
    everywhere = set().union(*stored.values())
    assert sent.delivered <= stored[TOPIC]
    assert sent.waiting | sent.halves <= everywhere
    assert not sent.waiting & stored[TOPIC]


def _keys_by_topic(records: list[Record]) -> dict[str, set[str]]:
    """The first key of every message, by the topic it is stored under."""
    stored: dict[str, set[str]] = defaultdict(set)
    for record in records:
        keys = decode_properties(record.fields.properties.encode()).get("KEYS", "")
        stored[record.fields.topic].add(keys.split(" ")[0])
    return stored


def _commit_offsets(replicas: Replicas) -> None:
    """Commit offsets of a group at the master and wait until every slave answers the same."""
    wanted = {queue_id: 7 + queue_id for queue_id in range(QUEUE_COUNT)}
    with RawConnection(replicas.master.address) as connection:
        group = json.dumps({"groupName": GROUP}).encode()
        assert connection.ask(_UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, body=group).code == 0
        for queue_id, consumer_offset in wanted.items():
            fields = {**_queue(queue_id), "commitOffset": str(consumer_offset)}
            answer = connection.ask(_UPDATE_CONSUMER_OFFSET, fields)
            assert answer.code == 0, answer
    for slave in replicas.slaves:
        eventually(
            lambda slave=slave: _offsets(slave) == wanted,  # type: ignore[misc]
            lambda slave=slave: f"{wanted} at the slave, not {_offsets(slave)}",  # type: ignore[misc]
            timeout_s=_TABLES_TIMEOUT_S,
            pause_s=_POLL_S,
        )


def _offsets(broker: BrokerProcess) -> Mapping[int, int]:
    with RawConnection(broker.address) as connection:
        answers = {
            queue_id: connection.ask(_QUERY_CONSUMER_OFFSET, _queue(queue_id))
            for queue_id in range(QUEUE_COUNT)
        }
    return {
        queue_id: int(answer.fields["offset"])
        for queue_id, answer in answers.items()
        if answer.code == 0
    }


def _queue(queue_id: int) -> dict[str, str]:
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": str(queue_id)}
