"""The rules of topics."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.services.topics import Topics, batch_topics
from contrail.broker.state.creators import CreationRate
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.topics import TopicTable
from contrail.errors import EntryIllegal, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import ResponseCode

NOW_MS = 1_760_000_000_000
CLIENT = "127.0.0.1:40000"


class Room:
    """Topics with what surrounds them."""

    def __init__(self, table: TopicTable | None = None, **settings: object) -> None:
        config = replace(BrokerConfig(), **settings)  # type: ignore[arg-type]
        self.settings = RuntimeSettings(config)
        self.batch_topics: list[bytes] = []
        self.table = table or TopicTable()
        self.topics = Topics(self.table, self.settings, add_batch_topic=self.batch_topics.append)
        self.changed: list[str] = []
        self.topics.on_change.append(lambda config: self.changed.append(config.topic))

    def send(
        self,
        topic: str,
        *,
        default_topic: str = "TBW102",
        queue_count: int = 4,
        now_ms: int = NOW_MS,
    ) -> TopicConfig:
        return self.topics.ensure_for_send(
            topic,
            default_topic=default_topic,
            queue_count=queue_count,
            client=CLIENT,
            now_ms=now_ms,
        )

    def update(self, *requested: TopicConfig) -> None:
        self.topics.update(requested, NOW_MS)


@contextmanager
def refused(code: ResponseCode, match: str | None = None) -> Iterator[None]:
    with pytest.raises(RequestRejected, match=match) as refusal:
        yield
    assert refusal.value.code == code


def test_a_broker_has_the_topics_of_the_original_from_the_start() -> None:
    topics = Room(trace_topic_enabled=True).table.topics
    found = {name: (config.write_queue_count, config.perm) for name, config in topics.items()}
    assert found == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "rmq_sys_wheel_timer": (1, 6),
    }
    assert all(c.read_queue_count == c.write_queue_count for c in topics.values())


def test_a_files_settings_of_a_system_topic_count_more_than_the_default() -> None:
    table = TopicTable({"TBW102": TopicConfig("TBW102", 2, 2, 7)})
    assert Room(table).table.topics["TBW102"].write_queue_count == 2


def test_system_topics_give_the_table_no_new_version() -> None:
    assert Room().table.data_version == DataVersion()


@pytest.mark.proves("broker.send.auto-created-topics")
def test_a_topic_is_created_after_its_template_on_the_first_send() -> None:
    room = Room()
    created = room.send("orders", queue_count=4)
    assert (created.read_queue_count, created.write_queue_count, created.perm) == (4, 4, 6)
    assert room.send("orders", queue_count=8) is created
    assert room.changed == ["orders"]
    assert room.table.data_version == DataVersion(0, 1, NOW_MS)


@pytest.mark.parametrize(("asked", "given_count"), [(100, 8), (8, 8), (1, 1)])
def test_the_template_bounds_the_queues_of_what_is_created(asked: int, given_count: int) -> None:
    assert Room().send("orders", queue_count=asked).write_queue_count == given_count


@pytest.mark.proves("broker.edges.no-queues")
@pytest.mark.parametrize("asked", [0, -3, -(1 << 31)])
def test_a_send_makes_no_topic_without_queues(asked: int) -> None:
    room = Room()
    with pytest.raises(RequestRejected, match=r"'orders' .* no queue: .* ask for at least 1"):
        room.send("orders", queue_count=asked)
    assert room.table.get("orders") is None


@pytest.mark.proves("broker.edges.no-queues")
@pytest.mark.parametrize(("read", "write"), [(0, 4), (4, 0), (0, 0)])
def test_an_operator_makes_no_topic_without_queues(read: int, write: int) -> None:
    room = Room()
    with pytest.raises(RequestRejected, match=r"topic 'orders': .*QueueNums 0 must be from 1 to"):
        room.topics.update([TopicConfig("orders", read, write)], NOW_MS)
    assert room.table.get("orders") is None


def test_producers_of_a_topic_may_be_stopped_by_no_write_queues() -> None:
    room = Room()
    room.topics.update([TopicConfig("orders", 4, 4)], NOW_MS)
    room.topics.update([TopicConfig("orders", 4, 0)], NOW_MS)
    with pytest.raises(RequestRejected, match="readQueueNums 0"):
        room.topics.update([TopicConfig("orders", 0, 4)], NOW_MS)
    assert room.table.topics["orders"].write_queue_count == 0


def test_a_group_without_retries_has_a_retry_topic_with_a_queue() -> None:
    room = Room()
    made = room.topics.ensure_retry_topic("g", NOW_MS, queue_count=0)
    assert (made.read_queue_count, made.write_queue_count) == (1, 1)


def test_nothing_is_created_without_a_template_that_can_be_inherited() -> None:
    room = Room()
    with refused(ResponseCode.TOPIC_NOT_EXIST):
        room.send("orders", default_topic="no-such-topic")
    with refused(ResponseCode.TOPIC_NOT_EXIST):
        room.send("orders", default_topic="SELF_TEST_TOPIC")
    assert room.table.get("orders") is None


def test_switching_automatic_creation_off_takes_effect_at_once() -> None:
    room = Room()
    room.settings.change({"autoCreateTopicEnable": "false"}, NOW_MS)
    with refused(ResponseCode.TOPIC_NOT_EXIST):
        room.send("orders")
    assert room.send("%RETRY%billing").write_queue_count == 1


def test_a_name_no_topic_may_have_is_refused_before_anything_is_created() -> None:
    room = Room()
    for name in ("", "  ", "a/b", "../x", "a" * 128, "ünicode"):
        with refused(ResponseCode.INVALID_PARAMETER):
            room.send(name)


@pytest.mark.proves("broker.send.auto-creation-limits")
def test_automatic_creation_stops_at_the_limit_and_an_administrator_is_not_counted() -> None:
    room = Room(auto_topic_count_max=2)
    room.send("one")
    room.send("two")
    with refused(ResponseCode.TOPIC_NOT_EXIST, "updateTopic"):
        room.send("three")
    room.update(TopicConfig("three", 4, 4))
    room.update(TopicConfig("one", 8, 8))
    assert room.table.auto_created == {"two"}
    assert room.send("four").topic == "four"


def test_a_deleted_topic_no_longer_counts() -> None:
    room = Room(auto_topic_count_max=1)
    room.send("one")
    room.topics.delete(["one"], NOW_MS)
    assert room.send("two").topic == "two"


def test_a_client_may_create_a_bounded_number_of_topics_in_one_second() -> None:
    room = Room(auto_topics_per_second_max=2)
    room.send("one")
    room.send("two")
    with refused(ResponseCode.SYSTEM_BUSY):
        room.send("three")
    assert room.send("three", now_ms=NOW_MS + 1000).topic == "three"


@pytest.mark.proves("broker.send.auto-creation-limits")
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000)), max_size=60))
def test_no_client_ever_gets_more_than_its_share_of_a_second(calls: list[tuple[str, int]]) -> None:
    rate = CreationRate()
    admitted: dict[tuple[str, int], int] = {}
    for client, now_ms in sorted(calls, key=lambda call: call[1]):
        wanted = admitted.get((client, now_ms // 1000), 0) < 3
        assert rate.admit(client, now_ms=now_ms, count_max=3) == wanted
        admitted[client, now_ms // 1000] = admitted.get((client, now_ms // 1000), 0) + wanted


def test_retry_and_dead_letter_topics_are_made_once() -> None:
    room = Room()
    retry = room.topics.ensure_retry_topic("billing", NOW_MS, queue_count=3)
    assert (retry.topic, retry.read_queue_count, retry.perm) == ("%RETRY%billing", 3, 6)
    assert room.topics.ensure_retry_topic("billing", NOW_MS) is retry
    dead = room.topics.ensure_dlq_topic("billing", NOW_MS)
    assert (dead.topic, dead.write_queue_count, dead.perm) == ("%DLQ%billing", 1, 6)
    assert room.changed == ["%RETRY%billing", "%DLQ%billing"]
    assert not room.table.auto_created


def test_topics_that_a_crash_took_are_made_again_for_the_messages_they_have() -> None:
    room = Room()
    room.table.put(TopicConfig("known", 1, 1, 4), 0)
    queues = [(b"known", 3), (b"%DLQ%g", 0), (b"%RETRY%g", 2), (b"%RETRY%g", 0), (b"somebodys", 1)]
    room.topics.restore(queues, 0)
    assert room.table.get("%DLQ%g") == TopicConfig("%DLQ%g", 1, 1, 6)
    assert room.table.get("%RETRY%g") == TopicConfig("%RETRY%g", 3, 3, 6)
    assert room.table.get("somebodys") == TopicConfig("somebodys", 4, 4, 6)
    assert room.table.get("known") == TopicConfig("known", 1, 1, 4)


def test_a_dead_letter_topic_that_is_made_again_is_as_closed_as_a_new_one() -> None:
    room = Room(dead_letter_perm=2)
    room.topics.restore([(b"%DLQ%g", 0), (b"%RETRY%g", 0)], 0)
    assert room.table.get("%DLQ%g") == TopicConfig("%DLQ%g", 1, 1, 2)
    assert room.table.get("%RETRY%g") == TopicConfig("%RETRY%g", 1, 1, 6)


@pytest.mark.proves("broker.tables.closed-topics")
def test_a_topic_whose_entry_is_quarantined_is_made_again_no_more_open_than_it_was(
    caplog: pytest.LogCaptureFixture,
) -> None:
    perms = {"closed": 4, "unread": None, "empty": 2, "BenchmarkTest": 4, "a/b": 6, "%DLQ%g": 4}
    room = Room(table=TopicTable(quarantined=perms), dead_letter_perm=6)
    room.topics.restore([(b"closed", 8), (b"unread", 0), (b"open", 0), (b"%DLQ%g", 0)], 0)
    found = {name: room.table.get(name) for name in (*perms, "open")}
    assert {name: config.perm for name, config in found.items() if config is not None} == {
        "closed": 4,
        "unread": 0,
        "empty": 2,
        "BenchmarkTest": 4,
        "%DLQ%g": 4,
        "open": 6,
    }
    assert found["closed"] == TopicConfig("closed", 9, 9, 4)
    assert found["empty"] == TopicConfig("empty", 4, 4, 2)
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert any("'unread'" in text and "updateTopic -t unread -p 6" in text for text in said)


def test_a_retry_topic_follows_the_order_flag_of_its_group() -> None:
    room = Room()
    room.topics.ensure_retry_topic("billing", NOW_MS, queue_count=2)
    ordered = room.topics.ensure_retry_topic("billing", NOW_MS, order=True)
    assert (ordered.order, ordered.read_queue_count) == (True, 2)


@pytest.mark.proves("broker.topics.create-and-update")
def test_an_update_replaces_the_settings_and_is_announced() -> None:
    room = Room()
    room.update(TopicConfig("orders", 8, 8))
    room.update(TopicConfig("orders", 16, 4, 4, order=True, attributes={"+message.type": "FIFO"}))
    config = room.table.topics["orders"]
    assert (config.read_queue_count, config.write_queue_count, config.perm) == (16, 4, 4)
    assert config.order
    assert config.attributes == {"message.type": "FIFO"}
    assert room.changed == ["orders", "orders"]


def test_an_update_that_changes_nothing_gives_no_new_version() -> None:
    room = Room()
    room.update(TopicConfig("orders", 8, 8))
    before = room.table.data_version
    room.update(TopicConfig("orders", 8, 8))
    assert room.table.data_version == before
    assert room.changed == ["orders"]


@pytest.mark.parametrize(
    "requested",
    [
        TopicConfig("bad/name"),
        TopicConfig(""),
        TopicConfig("TBW102"),
        TopicConfig("rmq_sys_anything"),
        TopicConfig("DefaultCluster"),
        TopicConfig("broker-a"),
        TopicConfig("orders", perm=8),
        TopicConfig("orders", perm=-1),
        TopicConfig("orders", read_queue_count=-1),
        TopicConfig("orders", write_queue_count=65_536),
        TopicConfig("orders", filter_type="NO_TAG"),
        TopicConfig("orders", attributes={"+message.type": "MIXED"}),
    ],
)
def test_an_update_out_of_bounds_is_an_invalid_parameter(requested: TopicConfig) -> None:
    room = Room()
    with refused(ResponseCode.INVALID_PARAMETER):
        room.update(TopicConfig("fine"), requested)
    assert room.table.get("fine") is None
    assert room.changed == []


def test_the_reserve_time_needs_storage_we_do_not_have() -> None:
    with refused(ResponseCode.SYSTEM_ERROR, "tiered"):
        Room().update(TopicConfig("orders", attributes={"+reserve.time": "3600"}))


def test_the_store_is_told_of_topics_that_keep_batches_whole() -> None:
    room = Room()
    room.update(TopicConfig("batches", attributes={"+queue.type": "BatchCQ"}))
    room.update(TopicConfig("plain", attributes={"+queue.type": "SimpleCQ"}))
    assert room.batch_topics == [b"batches"]
    assert batch_topics(room.table.topics) == {b"batches"}
    assert Room(TopicTable(room.table.topics)).batch_topics == [b"batches"]


@pytest.mark.proves("nameserver.routes.order-config", "broker.topics.order-config")
def test_order_configuration_marks_the_topics_it_names() -> None:
    room = Room()
    room.update(TopicConfig("orders", 8, 8), TopicConfig("other", 8, 8))
    room.topics.mark_ordered(["orders", "unknown"], NOW_MS)
    assert room.table.topics["orders"].order
    assert not room.table.topics["other"].order


def test_fields_of_newer_writers_survive_an_update() -> None:
    room = Room(TopicTable({"orders": TopicConfig("orders", unknown={"colour": "red"})}))
    room.update(TopicConfig("orders", 4, 4))
    assert room.table.topics["orders"].unknown == {"colour": "red"}


def test_deleting_a_topic_tells_its_watchers_once() -> None:
    room = Room()
    gone: list[str] = []
    room.topics.on_delete.append(gone.append)
    room.update(TopicConfig("orders"))
    existed: list[bool] = []
    for _ in range(2):
        room.topics.delete(
            ["orders"], NOW_MS, on_deleted=lambda topic, there: existed.append(there)
        )
    assert existed == [True, False]
    assert gone == ["orders"]


def test_a_page_of_another_version_starts_from_the_beginning() -> None:
    table = TopicTable({name: TopicConfig(name) for name in "abcde"})
    assert list(table.page(table.data_version, 2, 2)) == ["c", "d"]
    assert list(table.page(table.data_version, 4, 9)) == ["e"]
    assert list(table.page(table.data_version, 5, 9)) == []
    assert list(table.page(DataVersion(0, 9, 9), 2, 2)) == ["a", "b"]
    assert list(table.page(None, 2, 2)) == ["a", "b"]


def test_retry_topics_made_by_sending_count_towards_the_limits() -> None:
    room = Room(auto_topic_count_max=3, auto_topics_per_second_max=2)
    for name in ("%RETRY%a", "%RETRY%b"):
        assert room.send(name, default_topic="none").write_queue_count == 1
    with refused(ResponseCode.SYSTEM_BUSY):
        room.send("%RETRY%c", default_topic="none")
    room.send("%RETRY%c", default_topic="none", now_ms=NOW_MS + 1000)
    with refused(ResponseCode.TOPIC_NOT_EXIST, "there are 3 topics of contrailAutoTopicsMax=3"):
        room.send("%RETRY%d", default_topic="none", now_ms=NOW_MS + 1000)
    assert room.send("%RETRY%a", default_topic="none").topic == "%RETRY%a"


def test_a_slave_makes_no_retry_topic_and_marks_none_as_ordered() -> None:
    room = Room(role=BrokerRole.SLAVE, broker_id=1)
    before = dict(room.table.topics)
    assert room.topics.ensure_retry_topic("billing", NOW_MS).topic == "%RETRY%billing"
    room.topics.mark_ordered(["BenchmarkTest"], NOW_MS)
    assert dict(room.table.topics) == before
    assert room.table.data_version == DataVersion()


def test_a_slave_has_the_topics_of_its_master_and_tells_of_each_that_changed() -> None:
    room = Room(role=BrokerRole.SLAVE, broker_id=1)
    deleted: list[str] = []
    room.topics.on_delete.append(deleted.append)
    one, two = TopicConfig("one"), TopicConfig("two", attributes={"queue.type": "BatchCQ"})
    version = DataVersion(1, 2, 3)
    room.table.put(TopicConfig("old"), NOW_MS)
    assert room.topics.follow({"one": one, "two": two}, version) == ["old"]
    assert deleted == ["old"]
    assert room.table.get("SCHEDULE_TOPIC_XXXX") is not None
    assert room.changed == ["one", "two"]
    assert room.batch_topics == [b"two"]
    assert room.table.data_version == version
    assert room.topics.follow({"one": one, "two": two}, version) == []
    assert room.changed == ["one", "two"]


def test_a_table_with_an_illegal_topic_is_not_followed() -> None:
    room = Room(role=BrokerRole.SLAVE, broker_id=1)
    before = dict(room.table.topics)
    with pytest.raises(EntryIllegal):
        room.topics.follow({"../x": TopicConfig("../x")}, DataVersion(1, 2, 3))
    assert dict(room.table.topics) == before
    assert room.changed == []
