"""LIST_FIGURES tells what the single requests tell, for any topics, groups, offsets and members."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.handlers.consume_progress import ProgressHandlers
from contrail.broker.handlers.figures import FigureHandlers, WaitingCounts
from contrail.broker.state.client_channels import ClientChannel
from contrail.errors import RequestRejected
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.consume_stats import decode_consume_stats_list
from contrail.protocol.bodies.figures import Figures, figures_steps
from contrail.protocol.bodies.heartbeat import ConsumerData
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Response
from contrail.protocol.json_style import at_once
from contrail.wire.peer import Handler
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import BROKER, Setup, request

TOPICS = ("orders", "bills", 'Ünïcode "quoted"', "gone")
GROUPS = ("g1", "g2", "%RETRY%x")
CLIENTS = ("c1", "c2")

Change = Callable[["World"], None]


class Rates:
    def topic_put_per_second(self, topic: str) -> float:
        return len(topic) / 4

    def group_get_per_second(self, topic: str, group: str) -> float:
        return len(topic + group) / 8


class World(Setup):
    """The tables of a broker, and the two handlers that tell of them."""

    def __init__(self) -> None:
        super().__init__()
        rates = Rates()
        shared = {
            "offsets": self.offsets,
            "consumers": self.consumers,
            "groups": self.group_table,
            "topics": self.topic_table,
            "store": self.store,
            "rates": rates,
            "clock": self.clock,
        }
        self.figures = FigureHandlers(
            waiting=lambda: WaitingCounts(3, 2),
            broker_name=BROKER,
            **shared,  # type: ignore[arg-type]
        )
        self.progress = ProgressHandlers(
            settings=self.settings,
            broker_address="10.0.0.1:10911",
            **shared,  # type: ignore[arg-type]
        )

    def ask(self, handlers: dict[int, Handler], code: int) -> bytes:
        response = handlers[code](request(code), FakePeer())
        assert isinstance(response, Response)
        assert isinstance(response.body, bytes)
        return response.body

    def told(self) -> Figures:
        return Figures.decode(self.ask(self.figures.table(), RequestCode.LIST_FIGURES))


def topics() -> st.SearchStrategy[Change]:
    def put(topic: str, reads: int, writes: int) -> Change:
        return lambda world: world.topic_table.put(TopicConfig(topic, reads, writes), 1)

    counts = st.integers(0, 20)
    return st.builds(put, st.sampled_from(TOPICS[:-1]), counts, counts)


def messages() -> st.SearchStrategy[Change]:
    def store(topic: str, queue_id: int, first: int, count: int) -> Change:
        def change(world: World) -> None:
            world.store.first[topic.encode(), queue_id] = first
            world.store.times[topic.encode(), queue_id] = list(range(count))

        return change

    small = st.integers(0, 5)
    return st.builds(store, st.sampled_from(TOPICS), small, small, small)


def offsets() -> st.SearchStrategy[Change]:
    def commit(group: str, topic: str, queue_id: int, place: int, is_reset: bool) -> Change:
        def change(world: World) -> None:
            world.offsets.admit(group, topic, "10.0.0.9", queue_id)
            note = world.offsets.assign_reset if is_reset else world.offsets.commit
            note(group, topic, queue_id, place)

        return change

    return st.builds(
        commit,
        st.sampled_from(GROUPS),
        st.sampled_from(TOPICS),
        st.integers(0, 20),
        st.integers(0, 12),
        st.booleans(),
    )


def groups() -> st.SearchStrategy[Change]:
    def put(group: str) -> Change:
        return lambda world: world.group_table.put(SubscriptionGroupConfig(group), 1)

    return st.builds(put, st.sampled_from(GROUPS))


def members() -> st.SearchStrategy[Change]:
    def join(group: str, client: str, wanted: list[str]) -> Change:
        def change(world: World) -> None:
            data = ConsumerData(group, subscriptions=tuple(map(SubscriptionData, wanted)))
            world.consumers.register(data, ClientChannel(FakePeer(), client, "JAVA", 479, 0))

        return change

    wanted = st.lists(st.sampled_from([*TOPICS, "elsewhere"]), max_size=3, unique=True)
    return st.builds(join, st.sampled_from(GROUPS), st.sampled_from(CLIENTS), wanted)


CHANGES = st.lists(st.one_of(topics(), messages(), offsets(), groups(), members()), max_size=30)


@pytest.mark.proves("console.data.figures", "console.data.equal")
@given(CHANGES)
def test_the_figures_are_those_of_the_single_requests(changes: list[Change]) -> None:
    world = World()
    for change in changes:
        change(world)
    told = world.told()
    assert (told.broker_name, told.taken_ms) == (BROKER, 1_000_000)
    assert (told.timers, told.halves) == (3, 2)
    _queues_are_those_of_the_store(world, told)
    _members_are_those_connected(world, told)
    stats = decode_consume_stats_list(
        world.ask(world.progress.table(), RequestCode.GET_BROKER_CONSUME_STATS)
    )
    lags = {group: sum(one.behind_count for one in entries) for group, entries in stats.items()}
    rates = {group: sum(one.tps for one in entries) for group, entries in stats.items()}
    mine = _lags_and_rates(told)
    assert {group: mine[0].get(group, 0) for group in stats} == lags
    assert {group: mine[1].get(group, 0.0) for group in stats} == pytest.approx(rates)
    assert set(stats) == set(told.groups[: told.settings_count])


def _queues_are_those_of_the_store(world: World, told: Figures) -> None:
    table = world.topic_table.topics
    assert told.topics[: len(told.perms)] == list(table)
    for place, (begin, end) in enumerate(told.queue_spans()):
        config = table[told.topics[place]]
        counts = (told.read_queues[place], told.write_queues[place])
        assert counts == (config.read_queue_count, config.write_queue_count)
        name, queues = config.topic.encode(), range(end - begin)
        assert told.queue_mins[begin:end] == [world.store.queue_offset_min(name, q) for q in queues]
        assert told.queue_maxs[begin:end] == [world.store.queue_offset_max(name, q) for q in queues]


def _members_are_those_connected(world: World, told: Figures) -> None:
    online = {name: group for name, group in world.consumers.groups.items() if group.channels}
    for place, (begin, end) in enumerate(told.member_spans()):
        name = told.groups[place]
        clients = sorted(told.clients[one] for one in told.members[begin:end])
        assert clients == sorted(world.consumers.client_ids(name))
        assert (told.consume_types[place] >= 0) == (name in online)
    subscribed = zip(told.subscribers, told.subscribed, strict=True)
    assert {(told.groups[group], told.topics[topic]) for group, topic in subscribed} == {
        (name, topic) for name, group in online.items() for topic in group.subscriptions
    }


def _lags_and_rates(told: Figures) -> tuple[dict[str, int], dict[str, float]]:
    """As 317 counts: wanted topics, write queues, queues without an offset from 0."""
    lags: dict[str, int] = {}
    rates: dict[str, float] = {}
    ends = told.queue_spans()
    for pair, (begin, _) in enumerate(told.offset_spans()):
        if not told.pair_wanted[pair]:
            continue
        group, topic = told.groups[told.pair_groups[pair]], told.pair_topics[pair]
        queues = range(told.write_queues[topic])
        lags[group] = lags.get(group, 0) + sum(
            told.queue_maxs[ends[topic][0] + queue_id] - max(0, told.offsets[begin + queue_id])
            for queue_id in queues
        )
        rates[group] = rates.get(group, 0.0) + told.pair_rates[pair]
    return lags, rates


@given(CHANGES)
def test_figures_are_written_and_read_back(changes: list[Change]) -> None:
    world = World()
    for change in changes:
        change(world)
    told = world.told()
    assert Figures.decode(at_once(figures_steps(told))) == told


DAMAGE = [
    (b'"offsets":[', b'"offsets":[7,'),
    (b'"pairTopics":[0', b'"pairTopics":[9'),
    (b'"queueMaxs":[', b'"queueMaxs":["1",'),
    (b'"groups":[', b'"groups":[7,'),
    (b'"perms":[6', b'"perms":[true'),
    (b'"takenMs":1000000', b'"takenMs":null'),
    (b'"memberCounts":[0', b'"memberCounts":[1'),
    (b'"settingsCount":', b'"settingsCount":999'),
    (b'"brokerName"', b'"otherName"'),
    (b"{", b"["),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one[1].decode())
def test_columns_that_do_not_fit_are_refused(damage: tuple[bytes, bytes]) -> None:
    world = World()
    world.group_table.put(SubscriptionGroupConfig("g1"), 1)
    world.offsets.commit("g1", "orders", 0, 1)
    body = world.ask(world.figures.table(), RequestCode.LIST_FIGURES)
    before, after = damage
    assert before in body
    with pytest.raises(RequestRejected, match="figures of a broker"):
        Figures.decode(body.replace(before, after, 1))


@pytest.mark.proves("console.data.beside", "console.data.msgspec")
def test_no_step_of_a_look_is_long() -> None:
    """1,000 topics of 10 queues and 2,300 groups: no step asks the store for more than 8 queues."""
    world = World()
    for number in range(1_000):
        world.topic_table.put(TopicConfig(f"topic-{number}", 10, 10), 1)
    for number in range(2_300):
        world.group_table.put(SubscriptionGroupConfig(f"group-{number}"), 1)
        world.offsets.commit(f"group-{number}", f"topic-{number % 1_000}", 0, 1)
    asked = _CountedStore(world)
    world.store.queue_offset_max = asked.queue_offset_max  # type: ignore[method-assign]
    steps = world.figures.steps(request(RequestCode.LIST_FIGURES), FakePeer())
    counts: list[int] = []
    answer = None
    while answer is None:
        before = asked.count
        try:
            next(steps)
        except StopIteration as done:
            answer = done.value
        counts.append(asked.count - before)
    assert len(Figures.decode(answer.body).offsets) == 23_000
    assert sum(counts) >= 10_000
    assert max(counts) <= 8
    assert len(counts) > 4_000


class _CountedStore:
    def __init__(self, world: World) -> None:
        self.count = 0
        self._ask = world.store.queue_offset_max

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        self.count += 1
        return self._ask(topic, queue_id)
