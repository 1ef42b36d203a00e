"""Many topics at once: the same facts as topic by topic, with requests that follow the brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

import pytest

from contrail import Message, Producer
from contrail.client.admin import Admin
from contrail.client.instance import ClientInstance
from contrail.errors import BrokerRefused, ClientError, DataLost, NotThere
from contrail.pipeline import batch_reader, stream_reader
from contrail.pipeline import cluster as cluster_view
from contrail.pipeline.batch_reader import plan_batch, read_task
from contrail.pipeline.cluster import ClusterView
from contrail.pipeline.columns import default_schema, plan_columns
from contrail.pipeline.options import SourceSettings
from contrail.pipeline.partitions import QueueSlice, SharedTask, Task
from contrail.pipeline.pulls import Chunk
from contrail.pipeline.pushed_filters import NOTHING_PUSHED
from contrail.pipeline.stream_reader import StreamReader
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster

TOPICS = [f"many-{number:02}" for number in range(20)]
WITHOUT_RETRIES = {"fetchOffset.numRetries": "0", "subscribePattern": "many-.*"}
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two brokers with twenty topics; the first three topics have messages and a group."""
    with LocalCluster(brokers=2) as running:
        asked(running, _fill)
        with Producer("many", running.namesrv) as producer:
            for topic in TOPICS[:3]:
                for number in range(10):
                    queue = MessageQueue(topic, "broker-a", number % 2)
                    producer.send(Message(topic, b"x"), queue=queue)
        yield running


async def _fill(admin: Admin) -> None:
    for topic in TOPICS:
        await admin.create_topic(topic, queues=2)
    await admin.create_group("reader")
    await admin.commit_offset("reader", MessageQueue(TOPICS[0], "broker-a", 0), 4)
    await admin.commit_offset("reader", MessageQueue(TOPICS[1], "broker-b", 1), 0)


def asked(cluster: LocalCluster, ask: Callable[[Admin], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Admin(cluster.namesrv) as admin:
            return await ask(admin)

    return asyncio.run(run())


def settings(cluster: LocalCluster, *, streaming: bool = False, **options: str) -> SourceSettings:
    given = {"namesrvAddr": cluster.namesrv, **WITHOUT_RETRIES, **options}
    return SourceSettings.of(given, streaming=streaming)


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> Counter[RequestCode]:
    """How many requests of each kind brokers are asked."""
    counted: Counter[RequestCode] = Counter()
    call = ClientInstance.call

    async def counting(
        self: ClientInstance, address: str, code: RequestCode, *given: Any, **named: Any
    ) -> Any:
        counted[code] += 1
        return await call(self, address, code, *given, **named)

    monkeypatch.setattr(ClientInstance, "call", counting)
    return counted


def test_many_topics_have_the_queues_and_ranges_that_each_has_alone(cluster: LocalCluster) -> None:
    async def compare(admin: Admin) -> None:
        found = await admin.queues_of_topics([*TOPICS, "missing"])
        assert found == {topic: await admin.queues(topic) for topic in TOPICS}
        assert found == await admin._queues_by_route([*TOPICS, "missing"])
        queues = [queue for topic in TOPICS for queue in found[topic]]
        answers = await admin.queue_ranges(queues)
        assert not answers.failures and set(answers.values) == set(queues)
        assert answers.values[MessageQueue(TOPICS[0], "broker-a", 1)] == (0, 5)
        for topic in TOPICS[:4]:
            for one in (await admin.topic_stats(topic)).queues:
                reach = one.queue_offset_min, one.queue_offset_max
                assert answers.values[one.queue] == reach
        gone = MessageQueue("missing", "broker-a", 0)
        assert (await admin.queue_ranges([gone])).values == {}
        ends = await admin.search_offsets_of(queues, 0)
        assert ends.values == dict.fromkeys(queues, 0)

    asked(cluster, compare)


def test_brokers_that_do_not_tell_all_figures_are_asked_topic_by_topic(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Admin._ask

    async def as_apache(
        self: Admin, broker: Any, code: RequestCode, fields: Any, what: str, **named: Any
    ) -> Any:
        if code == RequestCode.LIST_FIGURES:
            raise BrokerRefused(what, code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="")
        return await ask(self, broker, code, fields, what, **named)

    async def ranges(admin: Admin) -> Any:
        queues = [queue for topic in TOPICS for queue in await admin.queues(topic)]
        return (await admin.queue_ranges(queues)).values

    told = asked(cluster, ranges)
    monkeypatch.setattr(Admin, "_ask", as_apache)
    assert asked(cluster, ranges) == told


def test_a_group_s_offsets_are_the_same_from_the_brokers_tables(cluster: LocalCluster) -> None:
    async def compare(admin: Admin) -> None:
        queues = [queue for topic in TOPICS for queue in await admin.queues(topic)]
        found = (await admin.committed_of("reader", queues)).values
        assert {queue: at for queue, at in found.items() if at is not None} == {
            MessageQueue(TOPICS[0], "broker-a", 0): 4,
            MessageQueue(TOPICS[1], "broker-b", 1): 0,
        }
        few = [queue for queue in queues if queue.topic in TOPICS[:3]]
        assert (await admin.committed_of("reader", few)).values == {one: found[one] for one in few}

    asked(cluster, compare)


@pytest.mark.proves("spark.scale.requests-per-broker")
def test_a_trigger_asks_each_broker_once_for_its_queues_and_once_for_their_ends(
    cluster: LocalCluster, codes: Counter[RequestCode]
) -> None:
    reader = StreamReader(settings(cluster, streaming=True), default_schema(False))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        reader.reportLatestOffset()
        reader.partitions(start, end)
        reader.commit(end)
        # Two looks at most, the start's and the trigger's, of one request to each of two brokers.
        assert set(codes) == {RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.LIST_FIGURES}
        assert max(codes.values()) <= 4
    finally:
        reader.stop()


@pytest.mark.proves("spark.tables.group-start")
def test_a_batch_and_a_stream_begin_where_a_group_stands(cluster: LocalCluster) -> None:
    with closing(ClusterView(given := settings(cluster, startingOffsets="group:reader"))) as view:
        pieces = plan_batch(given, view, NOTHING_PUSHED)
    starts = {(one.topic, one.broker_name, one.queue_id): one.queue_offset_start for one in pieces}
    assert starts == {
        (TOPICS[0], "broker-a", 0): 4,
        (TOPICS[0], "broker-a", 1): 0,
        **{(topic, "broker-a", queue): 0 for topic in TOPICS[1:3] for queue in range(2)},
    }
    given = settings(cluster, streaming=True, startingOffsets="group:reader")
    reader = StreamReader(given, default_schema(False))
    try:
        assert reader.initialOffset()[TOPICS[0]] == {
            "broker-a:0": 4,
            "broker-a:1": 0,
            "broker-b:0": 0,
            "broker-b:1": 0,
        }
    finally:
        reader.stop()


def test_a_group_that_stands_nowhere_is_refused(cluster: LocalCluster) -> None:
    given = settings(cluster, startingOffsets="group:raeder")
    with closing(ClusterView(given)) as view, pytest.raises(NotThere, match="group 'raeder' has"):
        plan_batch(given, view, NOTHING_PUSHED)


def test_the_queues_of_a_broker_that_is_away_are_missing_and_the_others_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(cluster_view, "_pause", pauses.append)
    with LocalCluster(brokers=2) as cluster:
        asked(cluster, _fill)
        given = settings(cluster, **{"fetchOffset.numRetries": "2"})
        with closing(ClusterView(given)) as view:
            queues = view.queues()
            assert len(queues) == 4 * len(TOPICS)
            cluster.brokers[1].kill()
            found = view.ranges(queues)
            # Streams do not wait for one broker of several; other questions are asked again.
            assert not pauses
            assert {queue.broker_name for queue in found} == {"broker-a"}
            assert len(found) == 2 * len(TOPICS) and view.away == {"broker-b"}
            assert set(view.offsets_at(queues, 0)) == set(found)
            assert pauses == [1_000] * 2
            assert set(view.committed("reader", queues)) == set(found)
            assert view.publish("watcher", dict.fromkeys(queues, 0)) == set(found)


@pytest.mark.proves("spark.scale.bounded-offsets")
def test_a_stream_forgets_the_queues_of_deleted_topics_and_keeps_those_of_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_reader, "RANGES_AGE_MS_MAX", 0)
    with LocalCluster(brokers=2) as cluster:
        asked(cluster, _fill)
        reader = StreamReader(settings(cluster, streaming=True), default_schema(False))
        try:
            start = reader.initialOffset()
            assert set(start) == set(TOPICS)
            asked(cluster, lambda admin: admin.delete_topic(TOPICS[0]))
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            assert end == {topic: start[topic] for topic in TOPICS[1:]}
            assert reader.partitions(start, end) == []
            cluster.brokers[1].kill()
            assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
        finally:
            reader.stop()


@pytest.fixture(scope="module")
def uneven(cluster: LocalCluster) -> SharedTask:
    """A task with short and long slices of one broker, and one from the middle of its queue."""
    topic = "uneven"
    asked(cluster, lambda admin: admin.create_topic(topic, queues=8, broker="broker-a"))
    pieces = []
    with Producer("many", cluster.namesrv) as producer:
        for queue_id, count in enumerate([3, 40, 1, 33, 32, 7, 5, 2]):
            queue = MessageQueue(topic, "broker-a", queue_id)
            for number in range(count):
                body = f"{queue_id}-{number}-".encode() * (2_000 if number % 5 == 4 else 1)
                producer.send(Message(topic, body, tags=f"t{number % 2}"), queue=queue)
            pieces.append(QueueSlice(topic, "broker-a", queue_id, 0, count))
    pieces[6] = QueueSlice(topic, "broker-a", 6, 1, 4)
    return SharedTask(pieces)


def rows(given: SourceSettings, task: Task) -> list[dict[str, Any]]:
    plan = plan_columns(default_schema(True))
    return [row for batch in read_task(given, task, plan) for row in batch.to_pylist()]


@pytest.mark.parametrize("tags", ["*", "t1"])
def test_short_slices_read_together_are_the_rows_of_each_read_alone(
    cluster: LocalCluster, uneven: SharedTask, tags: str
) -> None:
    given = settings(cluster, tags=tags)
    alone = [row for piece in uneven.pieces for row in rows(given, piece)]
    assert rows(given, uneven) == alone
    assert len(alone) == (121 if tags == "*" else 59)


def test_the_order_of_rows_does_not_tell_which_way_they_were_read(
    cluster: LocalCluster, uneven: SharedTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(cluster)
    alone = [row for piece in uneven.pieces for row in rows(given, piece)]
    read_short = batch_reader.read_short
    ways: list[int] = []

    def missing_some(given: SourceSettings, pieces: Sequence[QueueSlice]) -> list[Chunk | None]:
        found = read_short(given, pieces)
        ways.append(sum(chunk is not None for chunk in found))
        return [None if place % 2 else chunk for place, chunk in enumerate(found)]

    monkeypatch.setattr(batch_reader, "read_short", missing_some)
    assert rows(given, uneven) == alone
    assert ways == [6]


def test_slices_of_a_deleted_topic_are_a_loss_in_a_shared_task_too(
    cluster: LocalCluster, uneven: SharedTask
) -> None:
    gone = QueueSlice("deleted-meanwhile", "broker-a", 0, 0, 2)
    given = settings(cluster, pullTimeoutMs="200")
    with pytest.raises((DataLost, ClientError), match="deleted-meanwhile"):
        rows(given, SharedTask([uneven.pieces[0], gone]))
