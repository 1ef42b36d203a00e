"""The bounds of tables that requests fill, from both sides: what fits, and what is told beyond."""

from __future__ import annotations

import tracemalloc

import pytest

from contrail.broker.handlers.clients import ClientHandlers
from contrail.broker.handlers.locks import LockHandlers
from contrail.broker.services import stored_tables
from contrail.broker.services.pull_admission import PullAdmission, is_long, kept_form
from contrail.broker.state import consumers as consumer_state
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.consumer_offsets import FILE_BYTES_MAX, ConsumerOffsets
from contrail.broker.state.consumers import ConsumerTable
from contrail.broker.state.filter_data import DEAD_BYTES_MAX, FILTER_BYTES_MAX, FilterTable
from contrail.broker.state.parked_pulls import LONG_PULLS_MAX, ParkedPull, ParkedPulls
from contrail.broker.state.producers import ProducerTable
from contrail.broker.state.pull_plan import PullPlan
from contrail.broker.state.queue_locks import QueueLocks
from contrail.broker.state.shares import Shares
from contrail.errors import RequestRejected
from contrail.model.fastjson import DOCUMENT_BYTES_MAX
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import QUEUE_ID_MAX
from contrail.model.subscription import SQL92, SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies.heartbeat import (
    GROUPS_MAX,
    ConsumerData,
    Heartbeat,
    encode_heartbeat,
)
from contrail.protocol.bodies.locks import (
    QUEUES_MAX,
    LockRequest,
    decode_locked_queues,
    encode_lock_request,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.json_style import CLIENT_ID_CHARACTERS_MAX, MessageQueue
from contrail.store import config_files
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, compile_sql, request

NOW_MS = 1_000_000


def stranger(number: int = 0, host: str = "10.0.0.9") -> FakePeer:
    peer = FakePeer(f"{host}:{40_000 + number}")
    peer.is_this_host = False
    return peer


class _Broker(Setup):
    def __init__(self, *, locks_max: int = 100, per_address_max: int = 25) -> None:
        super().__init__()
        self.locks = QueueLocks(count_max=locks_max, count_per_address_max=per_address_max)
        self.handlers = LockHandlers(
            locks=self.locks,
            groups=self.group_table,
            topics=self.topic_table,
            broker_name="broker-a",
            clock=self.clock,
            names=self.topics.names,
        )
        self.clients = ClientHandlers(
            changes=self.changes,
            producers=self.producers,
            consumers=self.consumers,
            groups=self.groups,
            topics=self.topics,
            settings=self.settings,
            compile_sql=compile_sql,
            clock=self.clock,
            names=self.topics.names,
        )
        self.group_table.put(SubscriptionGroupConfig("g"), 1)
        self.topic_table.put(TopicConfig("wide", 1000, 1000), 1)

    def lock(
        self,
        *queues: MessageQueue,
        group: str = "g",
        client_id: str = "c1",
        peer: FakePeer | None = None,
    ) -> tuple[tuple[MessageQueue, ...], str | None]:
        body = encode_lock_request(LockRequest(group, client_id, queues))
        answer = self.handlers.handle_lock(
            request(RequestCode.LOCK_BATCH_MQ, {}, body), peer or stranger()
        )
        assert isinstance(answer.body, bytes)
        return tuple(decode_locked_queues(answer.body)), answer.remark

    def beat(self, heartbeat: Heartbeat, peer: FakePeer) -> Response:
        body = encode_heartbeat(heartbeat)
        return self.clients.handle_heartbeat(request(RequestCode.HEART_BEAT, {}, body), peer)


def queue(queue_id: int = 0, topic: str = "wide", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


# Locks.


@pytest.mark.proves("broker.bounds.bounded")
def test_only_queues_that_are_there_are_locked() -> None:
    broker = _Broker()
    absent = [queue(1000), queue(-1), queue(topic="nobody"), queue(broker="broker-b")]
    held, remark = broker.lock(queue(0), *absent, queue(999))
    assert held == (queue(0), queue(999))
    assert remark == "4 queues are not locked: 'broker-a' has none such"
    assert broker.lock(queue(0), group="nobody") == (
        (),
        "nothing is locked: consumer group 'nobody' does not exist",
    )
    assert broker.locks.shares.total == 2


@pytest.mark.proves("broker.bounds.bounded")
def test_one_address_locks_its_share_and_all_together_the_total() -> None:
    broker = _Broker(locks_max=100, per_address_max=25)
    held, remark = broker.lock(*map(queue, range(30)))
    assert held == tuple(map(queue, range(25)))
    assert remark is not None
    assert "at most 100 in all and 25 of one address" in remark
    # The address keeps the locks it holds, and another connection of it gets no more.
    assert broker.lock(queue(3))[0] == (queue(3),)
    assert broker.lock(queue(40), client_id="c2", peer=stranger(1))[0] == ()
    for number in range(1, 5):
        first = number * 100
        peer = stranger(host=f"10.0.1.{number}")
        held, _ = broker.lock(*map(queue, range(first, first + 30)), client_id="x", peer=peer)
        assert len(held) == (25 if number < 4 else 0)
    assert broker.locks.shares.total == 100
    broker.clock.advance(ms=120_000)
    broker.locks.expire(broker.clock.now_ms())
    assert broker.locks.shares.total == 0
    assert len(broker.lock(*map(queue, range(25)))[0]) == 25


def test_this_host_may_lock_the_total() -> None:
    broker = _Broker(locks_max=100, per_address_max=25)
    assert len(broker.lock(*map(queue, range(120)), peer=FakePeer())[0]) == 100


def test_unlocking_gives_the_share_back() -> None:
    broker = _Broker(per_address_max=2)
    broker.lock(queue(0), queue(1))
    assert broker.lock(queue(2))[0] == ()
    body = encode_lock_request(LockRequest("g", "c1", (queue(0), queue(0))))
    broker.handlers.handle_unlock(request(RequestCode.UNLOCK_BATCH_MQ, {}, body), stranger())
    assert broker.lock(queue(2))[0] == (queue(2),)


def test_a_request_names_a_bounded_number_of_queues_and_a_client_of_bounded_length() -> None:
    broker = _Broker()
    with pytest.raises(RequestRejected, match=f"at most {QUEUES_MAX} are taken"):
        broker.lock(*[queue(0)] * (QUEUES_MAX + 1))
    with pytest.raises(RequestRejected, match=f"at most {CLIENT_ID_CHARACTERS_MAX} are taken"):
        broker.lock(queue(0), client_id="c" * (CLIENT_ID_CHARACTERS_MAX + 1))
    assert broker.lock(queue(0), client_id="c" * CLIENT_ID_CHARACTERS_MAX)[0] == (queue(0),)


@pytest.mark.proves("broker.bounds.bounded")
def test_megabytes_of_locks_leave_nothing_behind() -> None:
    broker = _Broker(locks_max=100_000, per_address_max=25_000)
    bodies = [
        encode_lock_request(
            LockRequest(
                f"group-{number}" if number % 2 else "g",
                f"client-{number}",
                tuple(queue(at, topic=f"t{number}-{at}") for at in range(QUEUES_MAX)),
            )
        )
        for number in range(16)
    ]
    assert sum(map(len, bodies)) > 3 << 20
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for body in bodies:
            broker.handlers.handle_lock(request(RequestCode.LOCK_BATCH_MQ, {}, body), stranger())
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 256 << 10


# Heartbeats.


def channel(peer: FakePeer, owner: str = "10.0.0.9") -> ClientChannel:
    return ClientChannel(peer, "c", "JAVA", 479, NOW_MS, owner)


def test_a_connection_consumes_for_a_bounded_number_of_groups_over_all_heartbeats() -> None:
    table, peer = ConsumerTable(), stranger()
    for number in range(GROUPS_MAX):
        table.register(ConsumerData(f"g{number}"), channel(peer))
    known, more = ConsumerData("g0"), ConsumerData("one-more")
    assert table.refusal(known, channel(peer), with_subscriptions=True) is None
    problem = table.refusal(more, channel(peer), with_subscriptions=True)
    assert problem == f"a connection consumes for at most {GROUPS_MAX} groups"


@pytest.mark.parametrize("host", ["10.0.0.9", ""])
def test_members_are_bounded_by_address_and_in_all(host: str) -> None:
    consumers, producers = ConsumerTable(members_max=40), ProducerTable(members_max=40)
    taken = 0
    for number in range(50):
        one = channel(stranger(number), host)
        if consumers.refusal(ConsumerData("g"), one, with_subscriptions=True) is None:
            consumers.register(ConsumerData("g"), one)
            taken += 1
        if producers.has_room("p", one):
            producers.register("p", one)
    # An address has a quarter; this host may have all.
    assert taken == consumers.shares.total == producers.shares.total == (10 if host else 40)
    for peer in list(consumers.groups["g"].channels):
        consumers.close(peer)
        producers.close(peer)
    assert consumers.shares.total == producers.shares.total == 0
    assert consumers.bytes.total == 0


def test_the_bytes_of_subscriptions_are_bounded_by_address_and_counted_back() -> None:
    table, peer = ConsumerTable(bytes_max=400_000), stranger()
    heavy = ConsumerData(
        "heavy", subscriptions=tuple(SubscriptionData(f"t{n}", "x" * 1000) for n in range(40))
    )
    table.register(heavy, channel(peer))
    taken = table.bytes.total
    assert 80_000 < taken < 100_000
    problem = table.refusal(
        ConsumerData("other", subscriptions=heavy.subscriptions),
        channel(stranger(1)),
        with_subscriptions=True,
    )
    assert problem is not None
    assert "those of one address 100000" in problem
    # Another address has room, the same heartbeat again takes no more, and a short one takes none.
    other = ConsumerData("other", subscriptions=heavy.subscriptions)
    assert table.refusal(other, channel(stranger(2), "10.0.0.10"), with_subscriptions=True) is None
    assert table.refusal(heavy, channel(peer), with_subscriptions=True) is None
    assert table.refusal(other, channel(stranger(1)), with_subscriptions=False) is None
    table.register(ConsumerData("heavy"), channel(peer))
    assert table.bytes.total == 0


def test_a_heartbeat_beyond_a_bound_is_answered_and_says_so() -> None:
    broker = _Broker()
    broker.consumers.shares.share_max = 1
    broker.beat(Heartbeat("c", consumers=(ConsumerData("g"),)), stranger())
    answer = broker.beat(Heartbeat("c", consumers=(ConsumerData("g"),)), stranger(1))
    assert answer.code == 0
    assert answer.remark is not None
    assert "1 of one address" in answer.remark
    with pytest.raises(RequestRejected, match=f"at most {CLIENT_ID_CHARACTERS_MAX} are taken"):
        broker.beat(Heartbeat("c" * (CLIENT_ID_CHARACTERS_MAX + 1)), stranger())
    broker.beat(Heartbeat("c", producer_groups=("p" * 255, "q" * 256)), stranger())
    assert set(broker.producers.groups) == {"p" * 255}


def test_expressions_of_groups_that_are_gone_make_room_and_those_in_use_do_not() -> None:
    filters = FilterTable(compile_sql, count_max=2)

    def subscribe(group: str, *topics: str) -> list[str]:
        wanted = [SubscriptionData(t, "a", expression_type=SQL92, sub_version=1) for t in topics]
        return [refusal.reason for refusal in filters.register(group, wanted, NOW_MS)]

    assert subscribe("g", "t1", "t2") == []
    full = "2 filters are in use, at most 2 are kept in all and 1 for one address"
    assert subscribe("h", "t1") == [full]
    for number in range(50):
        assert subscribe("g", f"fresh{number}") in ([], [full])
    assert len(filters.snapshot()) == 2
    filters.unregister("g", NOW_MS)
    assert subscribe("h", "t1") == []
    assert filters.get("t1", "h") is not None
    assert len(filters.snapshot()) == 2


def sql(topic: str, text: str, version: int = 1) -> SubscriptionData:
    return SubscriptionData(topic, text, expression_type=SQL92, sub_version=version)


@pytest.mark.proves("broker.bounds.bounded")
def test_expressions_in_use_are_bounded_by_address_in_number_and_bytes() -> None:
    filters = FilterTable(compile_sql, count_max=16, bytes_max=80_000)
    reasons = [
        [refusal.reason for refusal in filters.register(f"g{n}", [sql("t", "a")], NOW_MS, "10.1")]
        for n in range(5)
    ]
    full = "4 filters are in use, at most 16 are kept in all and 4 for one address"
    assert reasons == [[], [], [], [], [full]]
    assert filters.register("g9", [sql("t", "a" * 8000)], NOW_MS, "10.2") == []
    both = [sql("t", "a" * 8000), sql("u", "a" * 8000)]
    (refusal,) = filters.register("g9", both, NOW_MS, "10.2")
    assert refusal.topic == "u"
    assert "at most 80000 are kept in all and 10000 for one address" in refusal.reason
    # An expression that grows beyond the share is refused; the old one is no longer wanted.
    (refusal,) = filters.register("g9", [sql("t", "a" * 12_000, 2)], NOW_MS, "10.2")
    assert "for one address" in refusal.reason
    assert filters.get("t", "g9") is None
    # Another member of the group does not take it over.
    filters.register("g0", [sql("t", "b", 2)], NOW_MS, "10.3")
    assert (filters.shares.count_of("10.1"), filters.shares.count_of("10.3")) == (4, 0)
    for n in range(4):
        filters.unregister(f"g{n}", NOW_MS)
    assert filters.shares.total == filters.bytes.total == 0
    # A group that returns is counted again.
    assert filters.register("g0", [sql("t", "b", 2)], NOW_MS, "10.3") == []
    assert filters.shares.count_of("10.3") == 1
    assert filters.expire(NOW_MS + 25 * 3_600_000) != []
    filters.unregister("g0", NOW_MS)
    filters.expire(NOW_MS + 25 * 3_600_000)
    assert filters.dead_bytes == filters.bytes.total == filters.shares.total == 0


@pytest.mark.proves("broker.bounds.bounded")
def test_groups_that_are_gone_keep_bounded_texts_and_nothing_compiled() -> None:
    filters = FilterTable(compile_sql, dead_bytes_max=50_000)
    for number in range(40):
        filters.register(f"g{number}", [sql("t", "a" * 8000)], NOW_MS, "10.1")
        filters.unregister(f"g{number}", NOW_MS)
    kept = filters.snapshot()
    assert [entry.group for entry in kept] == [f"g{number}" for number in range(35, 40)]
    assert all(entry.sql is None for entry in kept)
    assert filters.dead_bytes <= 50_000
    assert filters.compiled(kept[0]) is not None
    again = FilterTable(compile_sql, dead_bytes_max=20_000)
    stored = [
        config_files.ConsumerFilter(entry.topic, entry.group, entry.expression, born_time_ms=5)
        for entry in kept
    ]
    again.load(stored, NOW_MS)
    assert [(entry.group, entry.sql) for entry in again.snapshot()] == [
        ("g38", None),
        ("g39", None),
    ]


@pytest.mark.proves("broker.tables.table-length")
def test_a_table_of_filters_at_its_bounds_has_a_file_that_its_reader_takes() -> None:
    filters = FilterTable(compile_sql)
    odd = ["t", "quoted" * 20, "ünïcödé" * 9, "话题" * 20]
    for number, topic in enumerate(odd):
        for group in odd:
            text = '"\\\n\x01' * 50 * number + "a"
            big = sql(topic, text, (1 << 63) - 1)
            assert filters.register(group + topic, [big], (1 << 63) - 1) == []
    entries = stored_tables._filters_by_topic(filters.snapshot())
    table = config_files.ConsumerFilterTable(entries)
    rendered = len(config_files.CONSUMER_FILTERS.render(table))
    assert filters.bytes.total * 0.5 < rendered < filters.bytes.total + 1000
    assert FILTER_BYTES_MAX + DEAD_BYTES_MAX + 1000 < DOCUMENT_BYTES_MAX


def test_a_heartbeat_names_the_filters_that_are_not_kept() -> None:
    broker = _Broker()
    broker.changes._filters.bytes.share_max = 5000
    wanted = ConsumerData("g", subscriptions=(sql("wide", "a" * 6000),))
    answer = broker.beat(Heartbeat("c", consumers=(wanted,)), stranger())
    assert answer.code == 0
    assert answer.remark is not None
    assert answer.remark.startswith("filters not kept of 1 groups ('g'): topic 'wide': filters in")
    assert "5000 for one address" in answer.remark


# Pulls and offsets.


def test_subscriptions_of_pulls_are_remembered_for_the_last_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_state, "PULLED_MAX", 3)
    table = ConsumerTable()
    for number in range(5):
        table.remember_pulled("g", f"t{number}", SubscriptionData(f"t{number}"), NOW_MS)
    table.remember_pulled("g", "t4", SubscriptionData("t4", "new"), NOW_MS)
    table.remember_pulled("g", "long", SubscriptionData("long", "x" * 2000), NOW_MS)
    found = {t: table.subscription("g", t) for t in ("t0", "t1", "t2", "t3", "t4", "long")}
    assert [topic for topic, one in found.items() if one is not None] == ["t2", "t3", "t4"]


def test_groups_with_a_topic_each_are_bounded_by_address() -> None:
    offsets = ConsumerOffsets({"t@g": {0: 1}}, pairs_max=9)
    for number in range(2):
        offsets.admit("g", f"t{number}", "10.0.0.9")
        offsets.admit("g", f"t{number}", "10.0.0.9")
    offsets.admit("g", "t", "10.0.0.9")
    with pytest.raises(RequestRejected, match="at most 9 are in all and 2 of one address") as busy:
        offsets.admit("g", "t2", "10.0.0.9")
    assert busy.value.code == ResponseCode.SYSTEM_BUSY
    offsets.admit("h", "t2", "10.0.0.10")
    offsets.remove_topic("t0")
    offsets.admit("g", "t2", "10.0.0.9")
    offsets.remove_group("g")
    assert offsets.shares.total == 1


@pytest.mark.proves("broker.bounds.bounded")
def test_offsets_are_bounded_by_the_bytes_they_take_in_their_file() -> None:
    offsets = ConsumerOffsets(bytes_max=8000)

    def commit_until_refused(group: str, owner: str) -> int:
        for queue_id in range(10**6):
            offsets.admit(group, "t", owner, queue_id)
            offsets.admit(group, "t", owner, queue_id)
            offsets.commit(group, "t", queue_id, 1)
        return -1

    with pytest.raises(RequestRejected, match="8000 are kept in all and 1000 for one") as busy:
        commit_until_refused("g", "10.0.0.9")
    queue_id = offsets.queue_count("g", "t")
    assert busy.value.code == ResponseCode.SYSTEM_BUSY
    assert 20 < queue_id < 27
    # The queues that were admitted stay so, and another address has a share of its own.
    offsets.admit("g", "t", "10.0.0.9", *range(queue_id))
    offsets.admit("g", "t", "10.0.0.10", queue_id)
    with pytest.raises(RequestRejected, match="for one address"):
        offsets.admit("h", "t", "10.0.0.9", 0)
    # This host may use all that is left, and a deletion gives everything back.
    with pytest.raises(RequestRejected, match="for one address"):
        commit_until_refused("here", "")
    assert 7900 < offsets.bytes.total <= 8000
    with pytest.raises(RequestRejected, match="for one address"):
        offsets.clone("here", "other", "t")
    with pytest.raises(RequestRejected, match="for one address"):
        offsets.assign_reset("here", "t", 5000, 1)
    assert offsets.of_group("other", "t") == {}
    epoch = offsets.epoch
    offsets.remove_topic("t")
    assert offsets.epoch > epoch
    assert offsets.bytes.total < 10
    assert offsets.shares.total == 0


@pytest.mark.proves("broker.tables.table-length")
def test_a_table_of_offsets_at_its_bound_has_a_file_that_its_reader_takes() -> None:
    names = ["t", "topic-" + "x" * 120, 'quoted"\\"', "ünïcödé" * 9, "话题" * 20]
    pairs = [(f"{group}{number}", topic) for number, group in enumerate(names) for topic in names]
    stored = {f"old@{name}": {7: -1, QUEUE_ID_MAX: -(1 << 63)} for name in names}
    offsets = ConsumerOffsets(stored, unknown={"more": ["x" * 500]})
    for group, topic in pairs:
        for queue_id in (0, *range(QUEUE_ID_MAX - 40, QUEUE_ID_MAX)):
            offsets.admit(group, topic, "10.0.0.9", queue_id)
            offsets.commit(group, topic, queue_id, -(1 << 63))
    table = config_files.ConsumerOffsetTable(*offsets.snapshot())
    rendered = len(config_files.CONSUMER_OFFSETS.render(table))
    # The counted bytes are never fewer than those of the file, and not many more.
    assert offsets.bytes.total * 0.8 < rendered < offsets.bytes.total + 1000
    assert FILE_BYTES_MAX + 1000 < DOCUMENT_BYTES_MAX


@pytest.mark.proves("broker.bounds.bounded")
def test_a_pull_reserves_its_queue_and_is_checked_again_when_that_ends() -> None:
    broker = Setup()
    broker.group_table.put(SubscriptionGroupConfig("g"), 1)
    broker.topic_table.put(TopicConfig("orders", 8, 8), 1)
    offsets = ConsumerOffsets(bytes_max=2400)
    admission = PullAdmission(
        broker.settings,
        broker.topics,
        broker.groups,
        broker.consumers,
        broker.filters,
        broker.clock,
        offsets=offsets,
    )

    def pull(queue_id: int) -> None:
        fields = {"consumerGroup": "g", "topic": "orders", "queueId": queue_id, "sysFlag": 4}
        fields |= {"queueOffset": 0, "maxMsgNums": 32, "commitOffset": 0}
        texts = {"subscription": "*", "suspendTimeoutMillis": "0", "subVersion": "0"}
        admission.plan(request(RequestCode.PULL_MESSAGE, fields | texts), "10.0.0.9:77")

    for queue_id in range(5):
        pull(queue_id)
    reserved = offsets.bytes.total
    pull(0)
    assert offsets.bytes.total == reserved
    for _ in range(2):
        with pytest.raises(RequestRejected, match="cannot have offsets on more queues"):
            pull(5)
    offsets.remove_group("g")
    pull(0)
    assert 0 < offsets.bytes.total < reserved


def test_a_held_pull_keeps_no_body_and_no_field_that_nobody_reads() -> None:
    fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
    fields |= {"queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6, "commitOffset": 0}
    fields |= {"suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0}
    pull = request(RequestCode.PULL_MESSAGE, {**fields, "junk": "x" * 60_000}, b"y" * 100_000)
    kept = kept_form(pull._replace(remark="z" * 1000))
    assert kept.fields == {name: str(value) for name, value in fields.items()}
    assert (kept.body, kept.remark, kept.opaque, kept.flag) == (b"", None, pull.opaque, pull.flag)
    assert not is_long(kept)
    broker = Setup()
    admission = PullAdmission(
        broker.settings,
        broker.topics,
        broker.groups,
        broker.consumers,
        broker.filters,
        broker.clock,
    )
    assert admission.plan(kept, "10.0.0.9:1") == admission.plan(pull, "10.0.0.9:1")
    long = {**kept.fields, "subscription": "x" * 17_000}
    with pytest.raises(RequestRejected, match="at most 16384 are taken"):
        admission.plan(kept._replace(fields=long), "10.0.0.9:1")


def test_few_pulls_with_long_subscriptions_are_held() -> None:
    parked, peer = ParkedPulls(), stranger()
    plan = PullPlan("g", "t", b"t", 0, 0, 32, 0, None, None, 0, 0, None, False)

    def pull(*, is_long: bool) -> ParkedPull:
        return ParkedPull(Request(11, 1, {}), peer, plan, 0, NOW_MS, None, is_long)

    long = [pull(is_long=True) for _ in range(LONG_PULLS_MAX + 1)]
    assert [parked.park(one, count_max=1_000_000) for one in long].count(False) == 1
    assert parked.park(pull(is_long=False), count_max=1_000_000)
    assert parked.take(long[0])
    assert parked.park(long[-1], count_max=1_000_000)


def test_shares_leave_nothing_behind() -> None:
    shares = Shares(10, 3)
    shares.add("a", 3)
    shares.add("", 6)
    assert [shares.room(owner) for owner in ("a", "b", "")] == [0, 1, 1]
    shares.remove("a", 3)
    shares.remove("", 6)
    assert (shares.total, shares.room("a"), shares.count_of("a")) == (0, 3, 0)
