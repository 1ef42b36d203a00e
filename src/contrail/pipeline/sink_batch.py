"""A sink's batches: the queues of their rows, their coordinators, and their decisions.

Rows of a replayed batch must go to the same queues as before, so no row is sent until every broker
of the batch holds the same plan: the queues of each topic, and the name of the coordinator. A
broker keeps the first plan that it receives for a batch. Tasks send plans to brokers in the order
of the brokers' names, so if two plans meet at a broker, all brokers before it hold the plan found
there: the task adopts it. A later task that reaches one of the brokers finds the plan, and needs
all other brokers in it.

A decided batch stays decided. A replay, or an abort that came too late, carries out the recorded
decision and adds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from contrail.client.sink_requests import Participants
from contrail.errors import BrokerRefused, ClientError, SinkRefused
from contrail.pipeline.sink_calls import Calls
from contrail.pipeline.sink_layout import BatchPlan
from contrail.protocol.bodies.sinks import Queues, SinkLayout, SinkStatus

_log = logging.getLogger(__name__)

_PLANS_MAX = 1_000
# Each adopted plan is held by a broker further on in the order of names.
_ROUNDS_MAX = 5

Statuses = Mapping[str, SinkStatus | None]


def plain_brokers(statuses: Statuses) -> list[str]:
    """The brokers that do not know sinks: Apache's."""
    return sorted(name for name, status in statuses.items() if status is None)


def ask_all(calls: Calls, sink_id: str) -> dict[str, SinkStatus | None]:
    """Each master's status of a sink; a master that does not answer may have rows of the batch.

    Raises:
        ClientError: a master did not answer.
    """
    return {name: calls.status(name, sink_id) for name in calls.masters()}


# The brokers' statuses.


def find_plan(statuses: Statuses, batch_id: int) -> BatchPlan:
    """The plan of a batch from the brokers' statuses; for a new batch, its coordinator.

    The coordinator may be away: then its decision is not known.

    Raises:
        SinkRefused: the rows of the batch may be in two sets of queues already.
    """
    layouts = {
        name: status.layout
        for name, status in statuses.items()
        if status is not None and status.layout is not None and status.layout.batch_id == batch_id
    }
    names = {topic for layout in layouts.values() for topic in layout.topics}
    topics = {topic: _held(topic, layouts, statuses) for topic in sorted(names)}
    deciders = [name for name, one in statuses.items() if one and is_decided(one, batch_id)]
    if deciders:
        return BatchPlan(min(deciders), topics)
    if not layouts:
        return BatchPlan(_new_coordinator(statuses), {})
    # Prefer a broker whose layout agrees with the queues chosen for all its topics.
    agreeing = [
        name
        for name, layout in layouts.items()
        if all(topics[topic] == queues for topic, queues in layout.topics.items())
    ]
    first = min(agreeing or layouts)
    return BatchPlan(layouts[first].coordinator or first, topics)


def _held(topic: str, layouts: Mapping[str, SinkLayout], statuses: Statuses) -> Queues:
    """The queues that rows may have been sent to; else the layout of the first broker by name."""
    holders: dict[Queues, list[str]] = {}
    for name, layout in sorted(layouts.items()):
        if topic in layout.topics:
            holders.setdefault(layout.topics[topic], []).append(name)
    # No row was sent under a plan that one of its brokers does not hold.
    used = [
        queues
        for queues, names in holders.items()
        if all(name in names or name not in statuses for name, _ in queues)
    ]
    if len(used) > 1:
        raise SinkRefused(
            f"rows of topic {topic!r} may be spread in {len(used)} ways, by brokers that were not "
            f"there at the same time: {_described(holders)}. Their repeats cannot be told: look "
            "at what is stored, and go on with another sinkId or writeId"
        )
    return used[0] if used else next(iter(holders))


def _described(holders: Mapping[Queues, Sequence[str]]) -> str:
    return "; ".join(
        f"{', '.join(names)}: {', '.join(f'{name}:{number}' for name, number in queues[:16])}"
        for queues, names in holders.items()
    )


def _new_coordinator(statuses: Statuses) -> str:
    """The coordinator of the batch before if it is registered, else the first broker by name."""
    if not statuses:
        raise SinkRefused("no broker is registered with the NameServer: start one")
    newest = max(map(_newest_batch, statuses.values()))
    before = {
        _coordinator_before(name, status)
        for name, status in statuses.items()
        if status is not None and status.known and _newest_batch(status) == newest
    }
    chosen = min(before & statuses.keys() or statuses)
    if before and chosen not in before:
        gone = ", ".join(sorted(before))
        _log.warning("%s is not registered: %s coordinates the next batch", gone, chosen)
    return chosen


def _coordinator_before(name: str, status: SinkStatus) -> str:
    return name if status.layout is None else status.layout.coordinator or name


def _newest_batch(status: SinkStatus | None) -> int:
    if status is None:
        return -1
    decided = -1 if status.decided is None else status.decided.batch_id
    return max(decided, -1 if status.layout is None else status.layout.batch_id)


def is_decided(status: SinkStatus, batch_id: int) -> bool:
    return status.decided is not None and status.decided.batch_id == batch_id


# The beginning of a batch.


class Begun(NamedTuple):
    """A batch whose rows may be sent, or a decided batch, whose rows may not."""

    plan: BatchPlan
    is_decided: bool = False


class Beginning:
    """Makes the brokers agree on the queues of a batch."""

    def __init__(self, calls: Calls, sink_id: str, batch_id: int, *, decides: bool) -> None:
        """``decides`` if the batch will be decided: only then all brokers get the coordinator."""
        self._calls = calls
        self._sink_id = sink_id
        self._batch_id = batch_id
        self._decides = decides

    def begin(
        self,
        topics: Sequence[str],
        route: Callable[[str], Queues],
        statuses: Statuses | None = None,
    ) -> Begun:
        """The plan for ``topics`` that all their brokers hold; ``route`` has a new topic's queues.

        Raises:
            SinkRefused: the sink has seen a newer batch, or the brokers hold different plans.
            ClientError: a broker of the plan does not answer.
        """
        found = self._known(topics, statuses)
        if found.is_decided:
            return found
        known = found.plan.topics
        wanted = {topic: known[topic] if topic in known else route(topic) for topic in topics}
        begun = self._agree(BatchPlan(found.plan.coordinator, wanted))
        self._remember(begun.plan)
        return begun

    def _known(self, topics: Sequence[str], statuses: Statuses | None) -> Begun:
        """The plan that this process has agreed on, else the brokers' plan."""
        agreed = self._calls.plans.get((self._sink_id, self._batch_id))
        if agreed is not None and all(topic in agreed.topics for topic in topics):
            return Begun(agreed)
        answers = ask_all(self._calls, self._sink_id) if statuses is None else statuses
        self._require_newest(answers.values())
        plan = find_plan(answers, self._batch_id)
        coordinator = answers.get(plan.coordinator)
        return Begun(plan, coordinator is not None and self._is_over(coordinator))

    def _is_over(self, status: SinkStatus) -> bool:
        return self._decides and is_decided(status, self._batch_id)

    def _remember(self, plan: BatchPlan) -> None:
        plans, key = self._calls.plans, (self._sink_id, self._batch_id)
        before = plans.pop(key, None)
        while len(plans) >= _PLANS_MAX:
            plans.pop(next(iter(plans)))
        is_same = before is not None and before.coordinator == plan.coordinator
        topics = {**before.topics, **plan.topics} if before and is_same else plan.topics
        plans[key] = BatchPlan(plan.coordinator, topics)

    def _agree(self, plan: BatchPlan) -> Begun:
        plans = [plan]
        for _ in range(_ROUNDS_MAX):
            begun = self._tell_all(plans[-1])
            if begun.is_decided or begun.plan == plans[-1]:
                return begun
            plans.append(begun.plan)
        held = "; ".join(f"{one.coordinator} coordinates {dict(one.topics)}" for one in plans[-2:])
        raise SinkRefused(
            f"the brokers hold different plans of batch {self._batch_id} of sink "
            f"{self._sink_id!r}: {held}. Run it again; if that does not help, go on with another "
            "sinkId or writeId"
        )

    def _tell_all(self, plan: BatchPlan) -> Begun:
        """The plan if all brokers hold it, else the first other plan found at a broker."""
        for name in plan.brokers(with_coordinator=self._decides):
            part = plan.part_of(name)
            status = self._tell(name, part, plan.coordinator)
            if self._is_over(status):
                return Begun(BatchPlan(name, plan.topics), is_decided=True)
            layout = self._layout_of(name, status, part)
            differs = any(layout.topics[topic] != queues for topic, queues in part.items())
            if differs or (self._decides and layout.coordinator != plan.coordinator):
                held = {**plan.topics, **{topic: layout.topics[topic] for topic in part}}
                return Begun(BatchPlan(layout.coordinator or name, held))
        return Begun(plan)

    def _tell(self, name: str, part: Mapping[str, Queues], coordinator: str) -> SinkStatus:
        try:
            status = self._calls.begin(name, self._sink_id, self._batch_id, part, coordinator)
        except BrokerRefused:
            raise
        except ClientError as error:
            raise ClientError(
                f"broker {name} must be there for batch {self._batch_id} of sink "
                f"{self._sink_id!r}, for what belongs to it cannot go elsewhere: bring it back, "
                f"then run the batch again ({error})"
            ) from error
        self._require_newest([status])
        return status

    def _layout_of(self, name: str, status: SinkStatus, part: Mapping[str, Queues]) -> SinkLayout:
        layout = status.layout
        if layout is None or layout.batch_id != self._batch_id or part.keys() - layout.topics:
            raise SinkRefused(
                f"broker {name} did not write down where rows of {', '.join(sorted(part))} go in "
                f"batch {self._batch_id} of sink {self._sink_id!r}: was it decided before, with "
                "idempotence=transactional?"
            )
        return layout

    def _require_newest(self, statuses: Iterable[SinkStatus | None]) -> None:
        newest = max(map(_newest_batch, statuses), default=-1)
        if newest > self._batch_id:
            raise SinkRefused(
                f"batch {self._batch_id} of sink {self._sink_id!r} is older than batch {newest}, "
                "which the brokers have seen: a task of long ago is still running, or the query "
                "has a new checkpoint under an old sinkId: give another sinkId, or the old "
                "checkpoint"
            )


# The end of a batch.


def commit_batch(
    calls: Calls, coordinator: str, sink_id: str, batch_id: int, participants: Participants
) -> None:
    """Decide a batch and carry it out. May be repeated, also after a crash in the middle.

    Raises:
        ClientError: a broker does not answer; the batch may be decided.
    """
    refusal: BrokerRefused | None = None
    try:
        calls.commit(coordinator, sink_id, batch_id, participants, decide=True)
    except BrokerRefused as error:
        # Another run may have decided for other attempts, which is equally good.
        refusal = error
    if not complete_batch(calls, coordinator, sink_id, batch_id, also=participants):
        raise refusal or SinkRefused(
            f"broker {coordinator} took the decision on batch {batch_id} of sink {sink_id!r} and "
            "does not know it: is it the one that coordinates the sink?"
        )


def complete_batch(
    calls: Calls, coordinator: str, sink_id: str, batch_id: int, also: Iterable[str] = ()
) -> bool:
    """Carry out the decision in the coordinator's record; False if there is none.

    The record counts, not the caller's own attempts: another run may have decided first.

    Raises:
        ClientError: a participant does not answer; the others have carried it out.
    """
    status = calls.status(coordinator, sink_id)
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
    # Dead attempts may have prepared rows at other brokers.
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
    """Roll back attempts, by broker name; a failure is logged, and the rows end by their age."""
    for name, ids in sorted(attempts.items()):
        try:
            calls.abort(name, sink_id, batch_id, ids)
        except ClientError as error:
            _log.warning("broker %s keeps what failed tasks prepared: %s", name, error)
