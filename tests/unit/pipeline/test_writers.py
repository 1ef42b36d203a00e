"""The sink's guarantees when tasks run again, batches are replayed and commits are interrupted."""

from __future__ import annotations

import asyncio
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from contrail.client.message import MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.client.sink_requests import Participants, Stored
from contrail.errors import BrokerRefused, ClientError, OptionInvalid, SinkRefused
from contrail.model.batch import decode_batch
from contrail.model.properties import decode_properties
from contrail.pipeline import sink_apache, sink_batch, writers
from contrail.pipeline.options import Idempotence, SinkSettings
from contrail.pipeline.sink_calls import SendParcel
from contrail.pipeline.sink_lanes import AsyncLanes, Parcel
from contrail.pipeline.sink_layout import BatchPlan, Topics
from contrail.pipeline.sink_rows import plan_rows
from contrail.pipeline.sink_task import TaskOutcome
from contrail.pipeline.task_identity import TaskIdentity, batch_identity, stream_identity
from contrail.protocol.bodies.sinks import Queues, SinkDecision, SinkKey, SinkLayout, SinkStatus

SCHEMA = StructType([StructField("body", BinaryType())])
KEYED_SCHEMA = StructType([StructField("body", BinaryType()), StructField("keys", StringType())])


@pytest.fixture(autouse=True)
def nothing_was_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_apache, "_warned", set())


class Half:
    """A prepared row."""

    def __init__(self, queue: MessageQueue, key: SinkKey, seq: int, attempt: str, body: bytes):
        self.queue, self.key, self.seq, self.attempt, self.body = queue, key, seq, attempt, body


class FakeCluster:
    """Brokers in memory that keep the contract of the sink requests."""

    def __init__(self, queues: dict[str, int], *, knows_sinks: bool = True) -> None:
        self.plans: dict[tuple[str, int], BatchPlan] = {}
        self.route = [
            MessageQueue("orders", name, number)
            for name, count in sorted(queues.items())
            for number in range(count)
        ]
        self.knows_sinks = knows_sinks
        self.attributes: dict[str, str] = {}
        self.stored: dict[MessageQueue, list[bytes]] = defaultdict(list)
        self.by_id: dict[str, list[bytes]] = defaultdict(list)
        self.reached: dict[tuple[MessageQueue, str, int], tuple[int, int]] = {}
        self.halves: dict[str, list[Half]] = {name: [] for name in queues}
        self.statuses: dict[tuple[str, str], SinkStatus] = {}
        self.requests: list[tuple[str, str]] = []
        # Brokers that do not answer a request, by its name.
        self.away: dict[str, set[str]] = defaultdict(set)
        # Brokers that are down: they are not registered, and answer nothing.
        self.down: set[str] = set()
        # Brokers that go down with the n-th request of all.
        self.lost_at: dict[int, set[str]] = {}
        # Called before a request is carried out, by its name and broker.
        self.before: dict[tuple[str, str], Callable[[], None]] = {}
        # Called before the n-th send from now.
        self.before_send: dict[int, Callable[[], None]] = {}
        self.send_count = 0
        self._ids = iter(range(10**9))

    # Requests.

    def take_ids(self, count: int) -> list[str]:
        return [f"ID{next(self._ids)}" for _ in range(count)]

    def masters(self) -> list[str]:
        return sorted(self.halves.keys() - self.down)

    def publish_queues(self, topic: str, *, create: bool) -> Sequence[MessageQueue]:
        up = [queue for queue in self.route if queue.broker_name not in self.down]
        return [queue._replace(topic=topic) for queue in up]

    def topic_attributes(self, topic: str) -> dict[str, dict[str, str]]:
        return dict.fromkeys(self.halves, self.attributes)

    def _asked(self, request: str, broker_name: str) -> None:
        self.requests.append((request, broker_name))
        self.down |= self.lost_at.pop(len(self.requests), set())
        before = self.before.pop((request, broker_name), None)
        if before is not None:
            before()
        if broker_name in self.away[request] | self.down:
            raise ClientError(f"{request}: broker {broker_name} did not answer")

    def status(self, broker_name: str, sink_id: str) -> SinkStatus | None:
        self._asked("status", broker_name)
        if not self.knows_sinks:
            return None
        return self.statuses.get((broker_name, sink_id), SinkStatus())

    def begin(
        self, broker_name: str, sink_id: str, batch_id: int, topics: Topics, coordinator: str
    ) -> SinkStatus:
        self._asked("begin", broker_name)
        known = self.statuses.get((broker_name, sink_id), SinkStatus())
        layout, decided = known.layout, known.decided
        if decided is not None and batch_id <= decided.batch_id:
            return known
        if layout is None or batch_id > layout.batch_id:
            layout = SinkLayout(batch_id, dict(topics), coordinator)
        elif batch_id == layout.batch_id:
            first = layout.coordinator or coordinator
            layout = SinkLayout(batch_id, {**topics, **layout.topics}, first)
        self.statuses[broker_name, sink_id] = replace(known, layout=layout)
        return self.statuses[broker_name, sink_id]

    def commit(
        self,
        broker_name: str,
        sink_id: str,
        batch_id: int,
        participants: Participants,
        *,
        decide: bool,
    ) -> None:
        self._asked("decide" if decide else "commit", broker_name)
        known = self.statuses.get((broker_name, sink_id), SinkStatus())
        decided = known.decided
        if decided is not None and decided.batch_id == batch_id:
            if decided.participants != participants:
                raise BrokerRefused("decided for other attempts", code=1, remark="")
        elif decide:
            decision = SinkDecision(batch_id, participants)
            self.statuses[broker_name, sink_id] = replace(known, decided=decision)
        if decide:
            return
        kept = []
        for half in self.halves[broker_name]:
            if half.key.sink_id != sink_id or half.key.batch_id > batch_id:
                kept.append(half)
            elif participants.get(broker_name, {}).get(half.key.partition) == half.attempt:
                self._store(half.queue, half.key, half.seq, half.body)
        self.halves[broker_name] = kept

    def abort(self, broker_name: str, sink_id: str, batch_id: int, attempts: Sequence[str]) -> None:
        self._asked("abort", broker_name)
        self.halves[broker_name] = [
            half for half in self.halves[broker_name] if half.attempt not in attempts
        ]

    # Sends.

    def open_lanes(self, send: SendParcel) -> FakeLanes:
        return FakeLanes(self, send)

    async def send_stamped(self, queue: MessageQueue, units: bytes, *, prepared: bool) -> Stored:
        stored = dropped = 0
        self._asked("send", queue.broker_name)
        for unit in decode_batch(units):
            found = decode_properties(unit.properties)
            key, seq = SinkKey.parse(found["SPARK_SINK_KEY"]), int(found["SPARK_SINK_SEQ"])
            if prepared:
                half = Half(queue, key, seq, found["SPARK_SINK_ATTEMPT"], unit.body)
                self.halves[queue.broker_name].append(half)
                stored += 1
            elif self._store(queue, key, seq, unit.body):
                stored += 1
            else:
                dropped += 1
        return Stored(stored, dropped)

    def _store(self, queue: MessageQueue, key: SinkKey, seq: int, body: bytes) -> bool:
        target = (queue, key.sink_id, key.partition)
        if self.reached.get(target, (-1, -1)) >= (key.batch_id, seq):
            return False
        self.reached[target] = (key.batch_id, seq)
        self.stored[queue].append(body)
        return True

    async def send_batch(self, queue: MessageQueue, units: bytes, row_count: int) -> Stored:
        for unit in decode_batch(units):
            self._store_plainly(queue, decode_properties(unit.properties)["UNIQ_KEY"], unit.body)
        return Stored(row_count)

    async def send_outgoing(self, queue: MessageQueue, outgoing: Outgoing) -> Stored:
        assert outgoing.properties["UNIQ_KEY"] == outgoing.unique_id
        self._store_plainly(queue, outgoing.unique_id, outgoing.body)
        return Stored(1)

    def _store_plainly(self, queue: MessageQueue, unique_id: str, body: bytes) -> None:
        self.by_id[unique_id].append(body)
        self.stored[queue].append(body)

    async def is_stored(self, topic: str, unique_id: str) -> bool:
        return unique_id in self.by_id

    # Checks.

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for bodies in self.stored.values() for body in bodies)

    @property
    def half_count(self) -> int:
        return sum(map(len, self.halves.values()))


class Process:
    """Another process that uses the cluster, and may reach only some of its brokers."""

    def __init__(self, cluster: FakeCluster, sees: Sequence[str] = ()) -> None:
        self._cluster = cluster
        self._sees = set(sees) or set(cluster.halves)
        self.plans: dict[tuple[str, int], BatchPlan] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def masters(self) -> list[str]:
        return [name for name in self._cluster.masters() if name in self._sees]

    def publish_queues(self, topic: str, *, create: bool) -> Sequence[MessageQueue]:
        queues = self._cluster.publish_queues(topic, create=create)
        return [queue for queue in queues if queue.broker_name in self._sees]


class FakeLanes:
    """Sends at once."""

    def __init__(self, cluster: FakeCluster, send: SendParcel) -> None:
        self._cluster, self._send = cluster, send
        self._stored = self._dropped = 0

    def submit(self, parcel: Parcel) -> None:
        self._cluster.send_count += 1
        before = self._cluster.before_send.pop(self._cluster.send_count, None)
        if before is not None:
            before()
        outcome = asyncio.run(_awaited(self._send, self._cluster, parcel))
        self._stored += outcome.stored_count
        self._dropped += outcome.dropped_count

    def finish(self) -> Stored:
        return Stored(self._stored, self._dropped)

    def cancel(self) -> None:
        """No request is under way."""


async def _awaited(send: SendParcel, cluster: FakeCluster, parcel: Parcel) -> Stored:
    return await send(cluster, parcel)  # type: ignore[arg-type]


def rows(count: int, first: int = 0) -> list[bytes]:
    return [b"row %05d" % number for number in range(first, first + count)]


def batches(bodies: list[bytes], size: int = 7) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(bodies), size):
        yield pa.record_batch({"body": pa.array(bodies[first : first + size], pa.binary())})


def settings(mode: str = "dedupe", **more: str) -> SinkSettings:
    options = {"namesrvAddr": "127.0.0.1:9876", "topic": "orders", "idempotence": mode, **more}
    return SinkSettings.of({name: value for name, value in options.items() if value})


def task(partition: int = 0, batch: int = 0, attempt: str = "first") -> TaskIdentity:
    return TaskIdentity("sink", batch, partition, attempt)


def write(
    cluster: FakeCluster | Process,
    identity: TaskIdentity,
    bodies: list[bytes],
    mode: str = "dedupe",
) -> writers.Written:
    chosen = settings(mode)
    plan = plan_rows(SCHEMA, chosen.topic)
    return writers.write(cluster, chosen, plan, identity, batches(bodies))


class Killed(Exception):
    """Stands for the death of the task's process."""


def killed_at(cluster: FakeCluster, send_number: int) -> None:
    def kill() -> None:
        raise Killed

    cluster.before_send[cluster.send_count + send_number] = kill


# Dedupe.


def test_a_task_that_runs_again_stores_nothing_twice_and_leaves_nothing_out() -> None:
    cluster = FakeCluster({"broker-a": 3, "broker-b": 2})
    killed_at(cluster, 9)
    with pytest.raises(Killed):
        write(cluster, task(), rows(50))
    assert 0 < len(cluster.bodies) < 50
    again = write(cluster, task(attempt="second"), rows(50))
    assert cluster.bodies == rows(50)
    assert again.outcome.stored_count + again.outcome.dropped_count == again.outcome.row_count == 50
    assert again.outcome.dropped_count > 0


def test_a_replayed_row_goes_to_its_first_queue_though_a_broker_joined() -> None:
    cluster = FakeCluster({"broker-b": 3})
    write(cluster, task(), rows(20))
    cluster.route += [MessageQueue("orders", "broker-a", number) for number in range(4)]
    cluster.halves["broker-a"] = []
    cluster.plans.clear()
    write(cluster, task(attempt="second"), rows(20))
    assert cluster.bodies == rows(20)
    write(cluster, task(batch=1), rows(20, 20))
    assert any(queue.broker_name == "broker-a" for queue in cluster.stored)
    assert cluster.bodies == rows(40)


def test_two_attempts_at_the_same_time_store_each_row_once_and_in_order() -> None:
    cluster = FakeCluster({"broker-a": 2})

    def the_other_attempt() -> None:
        write(cluster, task(attempt="second"), rows(30)[:21])

    cluster.before_send[5] = the_other_attempt
    write(cluster, task(), rows(30))
    assert cluster.bodies == rows(30)
    assert all(bodies == sorted(bodies) for bodies in cluster.stored.values())


def test_a_new_batch_does_not_count_as_a_repeat_of_the_one_before() -> None:
    cluster = FakeCluster({"broker-a": 2})
    for batch in range(3):
        write(cluster, task(batch=batch), rows(10, 10 * batch))
    assert cluster.bodies == rows(30)


def test_a_batch_older_than_one_the_brokers_saw_is_refused_not_dropped() -> None:
    cluster = FakeCluster({"broker-a": 2})
    write(cluster, task(batch=5), rows(3))
    with pytest.raises(SinkRefused, match="batch 2 of sink 'sink' is older than batch 5"):
        write(cluster, task(batch=2), rows(3, 3))
    assert cluster.bodies == rows(3)


def test_rows_of_one_queue_keep_their_order() -> None:
    cluster = FakeCluster({"broker-a": 3})
    write(cluster, task(partition=4), rows(100))
    assert sorted(map(len, cluster.stored.values())) == [33, 33, 34]
    assert all(bodies == sorted(bodies) for bodies in cluster.stored.values())


def test_a_task_without_rows_sends_no_request() -> None:
    cluster = FakeCluster({"broker-a": 1})
    assert write(cluster, task(), []).outcome.row_count == 0
    assert cluster.requests == []


def test_a_broker_that_does_not_answer_stops_the_choice_of_a_coordinator() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1})
    cluster.away["status"].add("broker-b")
    with pytest.raises(ClientError, match="broker-b did not answer"):
        write(cluster, task(), rows(1))
    assert cluster.bodies == []


def test_the_broker_that_knows_a_sink_coordinates_it_though_another_is_first_by_name() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1})
    # As older versions recorded it, without the coordinator's name.
    cluster.statuses["broker-b", "sink"] = SinkStatus(SinkLayout(0, {}))
    for batch in (0, 1):
        written = write(cluster, task(batch=batch), rows(4, 4 * batch))
        assert written.outcome.coordinator == "broker-b"
        for name in ("broker-a", "broker-b"):
            assert layout_at(cluster, name).coordinator == "broker-b"


def test_brokers_are_asked_once_for_each_batch_in_a_process() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1})
    for batch in range(3):
        for partition in range(2):
            write(cluster, task(partition, batch), rows(1))
    assert cluster.requests.count(("status", "broker-b")) == 3


# Plans that brokers hold.


def layout_at(cluster: FakeCluster, broker_name: str) -> SinkLayout:
    layout = cluster.statuses[broker_name, "sink"].layout
    assert layout is not None
    return layout


def assert_once_and_in_order(cluster: FakeCluster, bodies: list[bytes]) -> None:
    assert cluster.bodies == bodies
    assert all(found == sorted(found) for found in cluster.stored.values())


def test_no_row_is_sent_before_all_brokers_hold_the_plan() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1, "broker-c": 1})
    cluster.away["begin"].add("broker-c")
    with pytest.raises(ClientError, match=r"broker broker-c must be there for batch 0.*bring it"):
        write(cluster, task(), rows(9))
    assert cluster.send_count == 0
    cluster.away.clear()
    write(cluster, task(), rows(9))
    held = [layout_at(cluster, name) for name in ("broker-a", "broker-b", "broker-c")]
    assert held[0] == held[1] == held[2]


@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_a_replay_waits_for_a_coordinator_that_is_not_registered(mode: str) -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    cluster.before["send", "broker-a"] = lambda: cluster.down.add("broker-a")
    with pytest.raises(ClientError, match="send: broker broker-a"):
        write(Process(cluster), task(attempt="first"), rows(40), mode)
    with pytest.raises(ClientError, match="broker broker-a must be there for batch 0"):
        write(Process(cluster), task(attempt="second"), rows(40), mode)
    cluster.down.clear()
    written = write(Process(cluster), task(attempt="third"), rows(40), mode)
    if mode == "transactional":
        writers.commit_prepared(Process(cluster), [written])
    assert_once_and_in_order(cluster, rows(40))


def test_a_replay_needs_no_route_for_what_is_planned() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    write(Process(cluster), task(), rows(10))
    cluster.route = [queue for queue in cluster.route if queue.broker_name == "broker-a"]
    write(Process(cluster), task(attempt="second"), rows(20))
    assert_once_and_in_order(cluster, rows(20))


def test_a_plan_that_only_its_coordinator_holds_gives_way_to_a_used_plan() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})

    def die() -> None:
        cluster.down.add("broker-a")
        cluster.away["begin"].add("broker-b")

    cluster.before["begin", "broker-b"] = die
    with pytest.raises(ClientError):
        write(Process(cluster), task(), rows(20))
    cluster.away.clear()
    killed_at(cluster, 3)
    with pytest.raises(Killed):
        write(Process(cluster), task(attempt="second"), rows(20))
    assert cluster.bodies
    cluster.down.clear()
    assert layout_at(cluster, "broker-a") != layout_at(cluster, "broker-b")
    written = write(Process(cluster), task(attempt="third"), rows(20))
    assert written.outcome.coordinator == "broker-b"
    assert_once_and_in_order(cluster, rows(20))
    assert {queue.broker_name for queue in cluster.stored} == {"broker-b"}


@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
def test_two_processes_that_begin_together_and_reach_other_brokers_agree(mode: str) -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    others: list[writers.Written] = []

    def the_other() -> None:
        seer = Process(cluster, ["broker-b"])
        others.append(write(seer, task(attempt="other"), rows(15), mode))

    cluster.before["begin", "broker-b"] = the_other
    mine = write(Process(cluster), task(), rows(30), mode)
    assert mine.outcome.coordinator == others[0].outcome.coordinator == "broker-b"
    if mode == "transactional":
        writers.commit_prepared(cluster, [mine])
    assert_once_and_in_order(cluster, rows(30))
    assert {queue.broker_name for queue in cluster.stored} == {"broker-b"}


def test_several_possibly_used_plans_are_refused_with_their_brokers() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    for name in ("broker-a", "broker-b"):
        write(Process(cluster, [name]), task(), rows(6))
    with pytest.raises(SinkRefused, match=r"2 ways.*broker-a: broker-a:0.*broker-b: broker-b:0"):
        write(Process(cluster), task(attempt="second"), rows(6))


def test_brokers_that_never_agree_on_a_coordinator_are_named() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1})
    for name in ("broker-a", "broker-b"):
        layout = SinkLayout(0, {f"of {name}": ((name, 0),)}, name)
        cluster.statuses[name, "sink"] = SinkStatus(layout)
    with pytest.raises(SinkRefused, match=r"broker-. coordinates.*broker-. coordinates"):
        write(Process(cluster), task(), rows(6), "transactional")
    assert cluster.half_count == 0
    # Without a decision the coordinator does not matter.
    write(Process(cluster), task(), rows(6))
    assert_once_and_in_order(cluster, rows(6))


def test_a_new_batch_goes_on_without_the_coordinator_of_the_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    assert write(Process(cluster), task(), rows(4)).outcome.coordinator == "broker-a"
    cluster.down.add("broker-a")
    second = write(Process(cluster), task(batch=1), rows(4, 4))
    assert second.outcome.coordinator == "broker-b"
    assert "broker-a is not registered: broker-b coordinates" in caplog.text
    cluster.down.clear()
    third = write(Process(cluster), task(batch=2), rows(4, 8))
    assert third.outcome.coordinator == "broker-b"
    assert_once_and_in_order(cluster, rows(12))


def test_a_batch_that_any_broker_knows_to_be_older_is_refused() -> None:
    cluster = FakeCluster({"broker-a": 1, "broker-b": 1})
    cluster.statuses["broker-b", "sink"] = SinkStatus(SinkLayout(7, {}, "broker-b"))
    with pytest.raises(SinkRefused, match="batch 6 of sink 'sink' is older than batch 7"):
        write(cluster, task(batch=6), rows(1))


NAMES = ("broker-a", "broker-b", "broker-c")
UP = st.sets(st.sampled_from(NAMES)).map(lambda names: names | {"broker-b"})
ATTEMPTS = st.lists(st.tuples(UP, st.integers(1, 30), st.sets(st.sampled_from(NAMES))), max_size=6)


@pytest.mark.parametrize("mode", ["dedupe", "transactional"])
@hypothesis_settings(max_examples=75, deadline=None)
@given(attempts=ATTEMPTS)
@example(attempts=[(set(NAMES), 3, {"broker-a", "broker-b"}), ({"broker-b"}, 1, set())])
@example(
    attempts=[
        (set(NAMES), 3, {"broker-b"}),
        ({"broker-b"}, 1, set()),
        ({"broker-a", "broker-b"}, 1, set()),
    ]
)
def test_rows_are_stored_once_though_brokers_go_down_and_attempts_are_interrupted(
    mode: str, attempts: list[tuple[set[str], int, set[str]]]
) -> None:
    """Each attempt reaches some of the brokers, one of them always, and loses some on its way."""
    cluster = FakeCluster(dict.fromkeys(NAMES, 2))

    def attempt(name: str) -> None:
        process = Process(cluster)
        written = write(process, task(attempt=name), rows(30), mode)
        if mode == "transactional":
            writers.commit_prepared(process, [written])

    try:
        for number, (up, request_count, lost) in enumerate(attempts):
            cluster.down = set(NAMES) - up
            cluster.lost_at = {len(cluster.requests) + request_count: lost}
            with suppress(ClientError):
                attempt(f"{number}")
        cluster.down, cluster.lost_at = set(), {}
        attempt("last")
    except SinkRefused as refusal:
        # Two attempts that had no broker in common cannot find each other: that is refused.
        had_none_in_common = any("broker-b" in lost for _, _, lost in attempts)
        if had_none_in_common and "were not there at the same time" in str(refusal):
            return
        raise
    assert_once_and_in_order(cluster, rows(30))
    assert cluster.half_count == 0


def test_each_broker_gets_its_own_part_of_a_plan() -> None:
    mine: Queues = (("broker-b", 0), ("broker-c", 0))
    plan = BatchPlan("broker-d", {"mine": mine, "other": (("broker-a", 0),)})
    assert plan.brokers(with_coordinator=True) == ["broker-a", "broker-b", "broker-c", "broker-d"]
    assert plan.brokers(with_coordinator=False) == ["broker-a", "broker-b", "broker-c"]
    assert plan.part_of("broker-b") == {"mine": mine}
    assert plan.part_of("broker-d") == plan.topics


def test_the_broker_that_decided_a_batch_coordinates_it_whatever_others_hold() -> None:
    told = SinkStatus(SinkLayout(3, {}, "broker-a"))
    decided = SinkStatus(None, SinkDecision(3, {}))
    found = sink_batch.find_plan({"broker-a": told, "broker-b": decided}, 3)
    assert found.coordinator == "broker-b"


def test_without_brokers_there_is_no_coordinator() -> None:
    with pytest.raises(SinkRefused, match="no broker is registered"):
        sink_batch.find_plan({}, 0)


# Transactional.


def prepare(cluster: FakeCluster, batch: int = 0, attempt: str = "first") -> list[writers.Written]:
    return [
        write(
            cluster,
            task(partition, batch, f"{attempt}-{partition}"),
            rows(10, 100 * batch + 10 * partition),
            "transactional",
        )
        for partition in range(3)
    ]


def test_no_row_is_visible_before_the_commit_and_all_after_it() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    assert cluster.bodies == []
    writers.commit_prepared(cluster, prepared)
    assert cluster.bodies == rows(30)
    assert cluster.half_count == 0


def test_the_decision_comes_before_any_row_is_committed() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    cluster.away["decide"].add("broker-a")
    with pytest.raises(ClientError, match="decide"):
        writers.commit_prepared(cluster, prepared)
    assert cluster.bodies == []
    assert ("commit", "broker-b") not in cluster.requests


def test_a_commit_may_be_repeated() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    writers.commit_prepared(cluster, prepared)
    writers.commit_prepared(cluster, prepared)
    assert cluster.bodies == rows(30)


def test_a_replay_after_an_interrupted_commit_completes_it_and_adds_nothing() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    cluster.away["commit"].add("broker-b")
    with pytest.raises(ClientError, match="broker-b"):
        writers.commit_prepared(cluster, prepared)
    assert 0 < len(cluster.bodies) < 30
    cluster.away.clear()
    replayed = prepare(cluster, attempt="replay")
    assert all(one.outcome.was_decided for one in replayed)
    writers.commit_prepared(cluster, replayed)
    assert cluster.bodies == rows(30)
    assert cluster.half_count == 0


def test_a_replay_of_a_decided_batch_waits_for_the_broker_that_decided_it() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    cluster.before["commit", "broker-a"] = lambda: cluster.down.add("broker-a")
    with pytest.raises(ClientError):
        writers.commit_prepared(cluster, prepared)
    assert 0 < len(cluster.bodies) < 30
    with pytest.raises(ClientError, match="broker broker-a must be there"):
        write(Process(cluster), task(attempt="replay"), rows(10), "transactional")
    cluster.down.clear()
    replayed = write(Process(cluster), task(attempt="replay"), rows(10), "transactional")
    assert replayed.outcome.was_decided
    writers.commit_prepared(Process(cluster), [replayed])
    assert_once_and_in_order(cluster, rows(30))
    assert cluster.half_count == 0


def test_a_decided_batch_is_found_though_another_broker_is_away() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    cluster.statuses["broker-b", "sink"] = SinkStatus(SinkLayout(0, {}, "broker-b"))
    prepared = prepare(cluster)
    writers.commit_prepared(cluster, prepared)
    cluster.down.add("broker-a")
    assert write(Process(cluster), task(), rows(10), "transactional").outcome.was_decided


def test_the_driver_decides_at_the_coordinator_of_the_tasks_only() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    cluster.statuses["broker-b", "sink"] = SinkStatus(SinkLayout(0, {}, "broker-b"))
    prepared = prepare(cluster)
    cluster.requests.clear()
    writers.commit_prepared(Process(cluster, ["broker-a"]), prepared)
    assert [name for request, name in cluster.requests if request == "decide"] == ["broker-b"]
    assert cluster.bodies == rows(30)


def test_tasks_with_different_coordinators_are_not_committed() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    first, second, third = prepare(cluster)
    astray = replace(second, outcome=replace(second.outcome, coordinator="broker-b"))
    with pytest.raises(SinkRefused, match="several brokers that coordinate it: broker-a, broker-b"):
        writers.commit_prepared(cluster, [first, astray, third])
    assert cluster.bodies == []


def test_a_participant_that_is_away_does_not_keep_others_from_committing() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    cluster.away["commit"].add("broker-a")
    with pytest.raises(ClientError, match="broker-a"):
        writers.commit_prepared(cluster, prepared)
    assert any(queue.broker_name == "broker-b" for queue in cluster.stored)


def test_an_abort_after_an_interrupted_commit_completes_it() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    cluster.away["commit"].add("broker-b")
    with pytest.raises(ClientError):
        writers.commit_prepared(cluster, prepared)
    cluster.away.clear()
    writers.abort_prepared(cluster, prepared, all_wrote=True)
    assert cluster.bodies == rows(30)


def test_when_all_tasks_wrote_an_abort_rolls_nothing_back() -> None:
    """The decision may still be under way, and must find the prepared rows."""
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    writers.abort_prepared(cluster, prepared, all_wrote=True)
    assert cluster.half_count == 30
    writers.commit_prepared(cluster, prepared)
    assert cluster.bodies == rows(30)


def test_an_abort_after_a_failed_task_rolls_the_others_back() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    prepared = prepare(cluster)
    writers.abort_prepared(cluster, prepared, all_wrote=False)
    assert cluster.half_count == 0
    assert cluster.bodies == []


def test_a_task_that_fails_rolls_its_own_rows_back() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    killed_at(cluster, 7)
    with pytest.raises(Killed):
        write(cluster, task(), rows(30), "transactional")
    assert cluster.half_count == 0


def test_rows_of_dead_attempts_are_rolled_back_by_the_commit() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    write(cluster, task(0, 0, "dead"), rows(10), "transactional")
    prepared = prepare(cluster)
    writers.commit_prepared(cluster, prepared)
    assert cluster.bodies == rows(30)
    assert cluster.half_count == 0


def test_the_first_of_two_deciding_drivers_counts() -> None:
    cluster = FakeCluster({"broker-a": 2, "broker-b": 2})
    slow, fast = prepare(cluster, attempt="slow"), prepare(cluster, attempt="fast")
    writers.commit_prepared(cluster, fast)
    writers.commit_prepared(cluster, slow)
    assert cluster.bodies == rows(30)
    assert cluster.half_count == 0


def test_a_batch_without_rows_decides_nothing() -> None:
    cluster = FakeCluster({"broker-a": 1})
    messages = [write(cluster, task(n), [], "transactional") for n in range(2)]
    assert writers.prepared_of([*messages, None]) == []


def test_commit_messages_are_small_and_can_be_pickled() -> None:
    cluster = FakeCluster({"broker-a": 4, "broker-b": 4})
    written = write(cluster, task(), rows(500), "transactional")
    assert pickle.loads(pickle.dumps(written)) == written
    assert len(pickle.dumps(written)) < 1_000


def test_a_prepared_message_cannot_be_delayed() -> None:
    cluster = FakeCluster({"broker-a": 1})
    schema = StructType([*SCHEMA.fields, StructField("delayLevel", IntegerType())])
    batch = pa.record_batch({"body": [b"a", b"b"], "delayLevel": pa.array([0, 3], pa.int32())})
    plan = plan_rows(schema, "orders")
    with pytest.raises(SinkRefused, match=r"row 1 of partition 0, column delayLevel.*cannot delay"):
        writers.write(cluster, settings("transactional"), plan, task(), iter([batch]))


# None, keys, and Apache's brokers.


def keyed_batch(keys: list[str | None]) -> pa.RecordBatch:
    bodies = [f"{number}".encode() for number in range(len(keys))]
    return pa.record_batch({"body": bodies, "keys": pa.array(keys, pa.string())})


def write_keyed(cluster: FakeCluster, keys: list[str | None]) -> writers.Written:
    plan = plan_rows(KEYED_SCHEMA, "orders")
    chosen = settings(dedupeBy="keys")
    return writers.write(cluster, chosen, plan, task(), iter([keyed_batch(keys)]))


def test_without_idempotence_no_broker_gets_a_sink_request() -> None:
    cluster = FakeCluster({"broker-a": 2})
    written = write(cluster, task(), rows(25), "none")
    assert cluster.bodies == rows(25)
    assert cluster.requests == []
    assert written.outcome.stored_count == 25


def test_apache_brokers_get_plain_rows_without_a_given_mode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = FakeCluster({"broker-apache": 2}, knows_sinks=False)
    for batch in range(2):
        write(cluster, task(batch=batch), rows(5), "")
    assert len(cluster.bodies) == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "broker-apache cannot tell repeated rows" in caplog.text


@pytest.mark.parametrize(
    ("mode", "said"), [("dedupe", "dedupeBy=keys"), ("transactional", "as a whole")]
)
def test_modes_that_apache_brokers_cannot_keep_are_refused(mode: str, said: str) -> None:
    cluster = FakeCluster({"broker-a": 2}, knows_sinks=False)
    with pytest.raises(SinkRefused, match=f"idempotence={mode}: broker-a cannot") as refused:
        write(cluster, task(), rows(5), mode)
    assert said in str(refused.value)


def test_on_apache_a_row_whose_key_is_stored_is_left_out() -> None:
    cluster = FakeCluster({"broker-a": 3}, knows_sinks=False)
    write_keyed(cluster, ["a", "b", "c"])
    again = write_keyed(cluster, ["c", "d", "a", "d"])
    assert len(cluster.bodies) == 4
    assert (again.outcome.stored_count, again.outcome.dropped_count) == (1, 3)


def test_by_keys_a_row_needs_a_key() -> None:
    cluster = FakeCluster({"broker-a": 3}, knows_sinks=False)
    with pytest.raises(SinkRefused, match="row 1 of partition 0, column keys: it is null"):
        write_keyed(cluster, ["a", None])


def test_by_keys_a_topic_must_have_a_window() -> None:
    cluster = FakeCluster({"broker-a": 3})
    with pytest.raises(SinkRefused, match="'orders' keeps repeated keys on broker-a"):
        write_keyed(cluster, ["a"])


def test_by_keys_equal_rows_have_equal_ids_and_queues_in_any_order() -> None:
    cluster = FakeCluster({"broker-a": 3, "broker-b": 3})
    cluster.attributes = {"contrail.dedupe.window.ms": "1000"}
    keys: list[str | None] = [f"key {number}" for number in range(20)]
    write_keyed(cluster, keys)
    places = {body: queue for queue, bodies in cluster.stored.items() for body in bodies}
    before = len(cluster.by_id)
    cluster.stored.clear()
    write_keyed(cluster, keys[::-1])
    assert len(cluster.by_id) == before == 20
    after = {body: queue for queue, bodies in cluster.stored.items() for body in bodies}
    assert all(places[b"%d" % n] == after[b"%d" % (19 - n)] for n in range(20))


def test_delayed_rows_are_sent_alone_in_ordinary_batches() -> None:
    cluster = FakeCluster({"broker-a": 1})
    schema = StructType([*SCHEMA.fields, StructField("deliverTimestamp", LongType())])
    moments = pa.array([None, None, 5_000, None], pa.int64())
    batch = pa.record_batch({"body": pa.array(rows(4)), "deliverTimestamp": moments})
    plan = plan_rows(schema, "orders")
    writers.write(cluster, settings("none"), plan, task(), iter([batch]))
    assert cluster.send_count == 3
    assert next(iter(cluster.stored.values())) == rows(4)


# Options and identity.


def test_a_batch_write_without_an_id_is_at_least_once_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        writer = writers.batch_writer(SCHEMA, settings(""))
        assert writer._settings.idempotence is Idempotence.NONE
    assert caplog.text.count("no writeId") == 1


def test_an_idempotent_batch_write_needs_an_id() -> None:
    with pytest.raises(OptionInvalid, match="writeId: idempotence=dedupe needs it"):
        writers.batch_writer(SCHEMA, settings("dedupe"))
    named = writers.batch_writer(SCHEMA, settings("dedupe", writeId="run 7"))
    assert named._settings.write_id == "run 7"


def test_a_transactional_batch_write_without_an_id_gets_its_own() -> None:
    first, second = (writers.batch_writer(SCHEMA, settings("transactional")) for _ in range(2))
    assert first._settings.write_id
    assert first._settings.write_id != second._settings.write_id


def test_ids_belong_to_their_kind_of_write() -> None:
    with pytest.raises(OptionInvalid, match="writeId: it is for batch writes"):
        writers.stream_writer(SCHEMA, settings(writeId="x"))
    with pytest.raises(OptionInvalid, match="sinkId: it is for streams"):
        writers.batch_writer(SCHEMA, settings(sinkId="x"))
    with pytest.raises(OptionInvalid, match="at most 128"):
        writers.stream_writer(SCHEMA, settings(sinkId="x" * 129))


def test_writers_can_be_pickled_for_executors() -> None:
    writer = writers.stream_writer(SCHEMA, settings())
    assert pickle.loads(pickle.dumps(writer))._settings == writer._settings


class FakeTask:
    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def partitionId(self) -> int:
        return 5

    def getLocalProperty(self, key: str) -> str | None:
        return self._properties.get(key.rpartition(".")[2])


def test_a_stream_has_the_identity_of_its_query_and_batch_and_a_new_attempt() -> None:
    running = FakeTask(queryId="q-1", batchId="12")
    first, second = stream_identity(running, None), stream_identity(running, None)
    assert first.key == second.key == "q-1/12/5"
    assert first.attempt != second.attempt
    assert stream_identity(running, "mine").key == "mine/12/5"
    assert batch_identity(running, "run").key == "run/0/5"


def test_a_stream_whose_identity_is_missing_fails_loudly() -> None:
    with pytest.raises(SinkRefused, match=r"sql\.streaming\.queryId.*sinkId"):
        stream_identity(FakeTask(batchId="3"), None)
    with pytest.raises(SinkRefused, match=r"streaming\.sql\.batchId"):
        stream_identity(FakeTask(queryId="q"), "mine")


# Lanes.


def test_lanes_send_one_queue_in_order_and_several_queues_at_a_time() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(3)]
    sent: list[tuple[int, bytes]] = []
    busy: set[MessageQueue] = set()
    most = 0

    async def send(parcel: Parcel) -> Stored:
        nonlocal most
        assert parcel.queue not in busy
        busy.add(parcel.queue)
        most = max(most, len(busy))
        await asyncio.sleep(0)
        busy.discard(parcel.queue)
        sent.append((parcel.queue.queue_id, parcel.units))
        return Stored(1)

    async def run() -> Stored:
        lanes = AsyncLanes(send, pending_bytes_max=20)
        for number in range(30):
            await lanes.submit(Parcel(queues[number % 3], 1, b"%03d" % number))
        return await lanes.finish()

    assert asyncio.run(run()).stored_count == 30
    assert most == 3
    for number in range(3):
        mine = [units for queue_id, units in sent if queue_id == number]
        assert mine == sorted(mine)


def test_a_failed_lane_ends_all_lanes_with_its_error() -> None:
    queues = [MessageQueue("orders", "broker-a", number) for number in range(2)]

    async def send(parcel: Parcel) -> Stored:
        if parcel.queue.queue_id == 1:
            raise ClientError("refused")
        await asyncio.Event().wait()
        return Stored(1)

    async def run() -> None:
        lanes = AsyncLanes(send)
        for queue in queues:
            await lanes.submit(Parcel(queue, 1, b"x"))
        await lanes.finish()

    with pytest.raises(ClientError, match="refused"):
        asyncio.run(run())


# Warnings about rows that were known.


def test_rows_of_a_known_write_are_reported_with_their_number() -> None:
    cluster = FakeCluster({"broker-a": 2})
    wrote = write(cluster, TaskIdentity("w-1", 0, 0, "first"), rows(100))
    assert writers.left_out_text("w-1", [wrote]) is None
    again = write(cluster, TaskIdentity("w-1", 0, 0, "again"), rows(110))
    told = writers.left_out_text("w-1", [again, None])
    assert told is not None
    assert told.startswith("writeId 'w-1': 100 of 110 rows were already stored under this id")


def test_a_committed_write_is_reported_by_its_tasks() -> None:
    decided = writers.Written("w-1", 0, 0, "x", TaskOutcome(was_decided=True, coordinator="a"))
    told = writers.left_out_text("w-1", [decided])
    assert told is not None
    assert "committed before, and the rows of 1 of 1 tasks were left out" in told
