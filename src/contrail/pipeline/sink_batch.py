"""A sink's batches: who coordinates them, where their rows go, and how they are decided.

A decided batch stays decided. Whoever finds it so, a replay or an abort that came too late,
carries the decision out from its record and adds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from contrail.client.sink_requests import Participants
from contrail.errors import BrokerRefused, ClientError, SinkRefused
from contrail.pipeline.sink_calls import Calls
from contrail.pipeline.sink_layout import Topics
from contrail.protocol.bodies.sinks import SinkStatus

_log = logging.getLogger(__name__)

_COORDINATORS_MAX = 10_000


def plain_brokers(statuses: Mapping[str, SinkStatus | None]) -> list[str]:
    """The brokers that do not know sinks: Apache's."""
    return sorted(name for name, status in statuses.items() if status is None)


def ask_all(calls: Calls, sink_id: str) -> dict[str, SinkStatus | None]:
    """What each master knows of a sink; one that does not answer may be its coordinator.

    Raises:
        ClientError: not all answered.
    """
    return {name: calls.status(name, sink_id) for name in calls.masters()}


def choose_coordinator(statuses: Mapping[str, SinkStatus | None]) -> str:
    """The broker with the newest word about a sink, else the first by name."""
    newest = max((_newest_batch(one) for one in statuses.values()), default=-1)
    names = sorted(name for name, one in statuses.items() if _newest_batch(one) == newest)
    if not names:
        raise SinkRefused("no broker is registered with the NameServer: start one")
    return names[0]


def _newest_batch(status: SinkStatus | None) -> int:
    if status is None:
        return -1
    decided = -1 if status.decided is None else status.decided.batch_id
    return max(decided, -1 if status.layout is None else status.layout.batch_id)


def coordinator_of(calls: Calls, sink_id: str) -> str:
    """The coordinator of a sink, asked for once per process.

    Raises:
        ClientError: a broker does not answer.
    """
    found = calls.coordinators.get(sink_id)
    return remember(calls, sink_id, ask_all(calls, sink_id)) if found is None else found


def remember(calls: Calls, sink_id: str, statuses: Mapping[str, SinkStatus | None]) -> str:
    """Choose a sink's coordinator, for this process from now on."""
    if len(calls.coordinators) >= _COORDINATORS_MAX:
        calls.coordinators.clear()
    calls.coordinators[sink_id] = choose_coordinator(statuses)
    return calls.coordinators[sink_id]


def begin_batch(calls: Calls, sink_id: str, batch_id: int, topics: Topics) -> SinkStatus:
    """The state of a batch whose layout has ``topics``, or what is recorded for them already.

    Raises:
        SinkRefused: the sink has seen a newer batch.
    """
    status = calls.begin(coordinator_of(calls, sink_id), sink_id, batch_id, topics)
    newest = _newest_batch(status)
    if newest > batch_id:
        raise SinkRefused(
            f"batch {batch_id} of sink {sink_id!r} is older than batch {newest}, which the brokers "
            "have seen: a task of long ago is still running, or the query has a new checkpoint "
            "under an old sinkId: give another sinkId, or the old checkpoint"
        )
    return status


def is_decided(status: SinkStatus, batch_id: int) -> bool:
    return status.decided is not None and status.decided.batch_id == batch_id


# The end of a batch.


def commit_batch(calls: Calls, sink_id: str, batch_id: int, participants: Participants) -> None:
    """Decide a batch and carry it out. May be repeated, also after a crash in the middle.

    Raises:
        ClientError: a broker does not answer; the batch may be decided.
    """
    coordinator = coordinator_of(calls, sink_id)
    refusal: BrokerRefused | None = None
    try:
        calls.commit(coordinator, sink_id, batch_id, participants, decide=True)
    except BrokerRefused as error:
        # Another may have decided for other attempts, which is as good.
        refusal = error
    if not complete_batch(calls, sink_id, batch_id, also=participants):
        raise refusal or SinkRefused(
            f"broker {coordinator} took the decision on batch {batch_id} of sink {sink_id!r} and "
            "does not know it: is it the one that coordinates the sink?"
        )


def complete_batch(calls: Calls, sink_id: str, batch_id: int, also: Iterable[str] = ()) -> bool:
    """Carry out what is decided, from the coordinator's record; False when nothing is.

    The record counts, not what the caller would have decided: another may have been faster.

    Raises:
        ClientError: a participant does not answer; the others have done it.
    """
    status = calls.status(coordinator_of(calls, sink_id), sink_id)
    if status is None or status.decided is None or status.decided.batch_id < batch_id:
        return False
    if status.decided.batch_id == batch_id:
        _carry_out(calls, sink_id, batch_id, status, also)
    return True


def _carry_out(
    calls: Calls, sink_id: str, batch_id: int, status: SinkStatus, also: Iterable[str]
) -> None:
    assert status.decided is not None
    participants = status.decided.participants
    # Dead attempts may have left something at the others.
    topics = {} if status.layout is None else status.layout.topics
    spread = {name for queues in topics.values() for name, _ in queues}
    failures: list[ClientError] = []
    for name in sorted({*participants, *spread, *also}):
        try:
            calls.commit(name, sink_id, batch_id, participants, decide=False)
        except ClientError as error:
            if name in participants:
                failures.append(error)
            else:
                _log.warning("broker %s keeps what dead tasks prepared: %s", name, error)
    if failures:
        raise failures[0]


def roll_back(
    calls: Calls, sink_id: str, batch_id: int, attempts: Mapping[str, Sequence[str]]
) -> None:
    """Roll back attempts, by broker name; what cannot be told is logged and ends by its age."""
    for name, ids in sorted(attempts.items()):
        try:
            calls.abort(name, sink_id, batch_id, ids)
        except ClientError as error:
            _log.warning("broker %s keeps what failed tasks prepared: %s", name, error)
