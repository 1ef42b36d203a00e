"""Messages that consumers send back: every refusal in its order, and what is stored."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.send_back import SendBackHandlers
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.state.stats import SNDBCK2DLQ_TIMES, SNDBCK_PUT_NUMS, BrokerStats
from contrail.errors import DiskFull, RecordDamaged, RequestRejected
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from contrail.model.group import CustomizedRetry, GroupRetryPolicy, SubscriptionGroupConfig
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import decode_properties, encode_properties
from contrail.model.subscription import SubscriptionData
from contrail.model.topic import TopicConfig
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from contrail.store.services.append import AppendedRun
from contrail.store.services.reading import QueueRow
from contrail.wire.peer import LATER
from tests.fakes.peers import FakePeer
from tests.unit.broker.client_setup import Setup, request

STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
SCHEDULE = b"SCHEDULE_TOPIC_XXXX"


class _Log:
    """Records by their physical offset; a run is appended 100 bytes further on."""

    def __init__(self) -> None:
        self.messages: dict[int, StoredMessage] = {}
        self.rows_of: dict[tuple[bytes, int, int], int] = {}
        self.appended: list[MessageDraft] = []
        self.refusal: Exception | None = None

    def add(self, topic: str, **changes: object) -> int:
        place = 1000 + 100 * len(self.messages)
        fields: dict[str, object] = {
            "topic": topic,
            "queue_id": 0,
            "queue_offset": len(self.messages),
            "physical_offset": place,
            "record_bytes": 100,
            "body": b"body",
            "raw_properties": encode_properties({"UNIQ_KEY": f"K{place}"}),
            "flag": 0,
            "sys_flag": 0,
            "body_crc": 0,
            "born_timestamp_ms": 1,
            "born_host": STORE_HOST,
            "store_timestamp_ms": 2,
            "store_host": STORE_HOST,
            "reconsume_times": 0,
            "prepared_transaction_offset": 0,
            **changes,
        }
        message = StoredMessage(**fields)  # type: ignore[arg-type]
        self.messages[place] = message
        self.rows_of[topic.encode(), message.queue_id, message.queue_offset] = place
        return place

    def record(self, physical_offset: int) -> StoredMessage:
        if physical_offset not in self.messages:
            raise RecordDamaged("no record", physical_offset=physical_offset)
        return self.messages[physical_offset]

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        place = self.rows_of.get((topic, queue_id, queue_offset))
        return [] if place is None else [QueueRow(queue_offset, place, 100, 0)]

    def problem_at(self, physical_offset: int) -> str | None:
        return None

    def queues(self) -> list[tuple[bytes, int]]:
        return [(topic, queue_id) for topic, queue_id, _ in self.rows_of]

    def append(self, drafts: list[MessageDraft]) -> AppendedRun:
        if self.refusal is not None:
            raise self.refusal
        self.appended += drafts
        return AppendedRun([0], [9000], 5, 9100)


class _Broker(Setup):
    def __init__(self, *, waits: bool = False, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.log = _Log()
        self.stats = BrokerStats("c", started_ms=0)
        self.acknowledgements = Acknowledgements(self.clock, waits=waits, disk_timeout_ms=5000)
        deliveries = Deliveries(self.log, self.stats, on_appended=lambda: None)  # type: ignore[arg-type]
        self.handlers = SendBackHandlers(
            settings=self.settings,
            topics=self.topics,
            groups=self.groups,
            consumers=self.consumers,
            store=self.log,
            deliveries=deliveries,
            answers=self.acknowledgements,
            stats=self.stats,
            clock=self.clock,
            delay_table=parse_delay_levels(DEFAULT_DELAY_LEVELS),
        )

    def ask(self, place: int, *, version: int = 479, **fields: object) -> FakePeer:
        wanted = {"offset": place, "group": "g", "delayLevel": 0, **fields}
        asked = request(RequestCode.CONSUMER_SEND_MSG_BACK, wanted, version=version)
        peer = FakePeer()
        answer = self.handlers.table()[asked.code](asked, peer)
        if isinstance(answer, Response):
            peer.reply(asked, answer)
        else:
            assert answer is LATER
        return peer

    def stored(self, place: int, *, version: int = 479, **fields: object) -> MessageDraft:
        """The message stored by one request that succeeds."""
        ((_, response),) = self.ask(place, version=version, **fields).replies
        assert (response.code, response.remark) == (ResponseCode.SUCCESS, None)
        return self.log.appended[-1]

    def refusal(self, place: int, **fields: object) -> int:
        with pytest.raises(RequestRejected) as caught:
            self.ask(place, **fields)  # type: ignore[arg-type]
        assert not self.log.appended
        return caught.value.code

    def count(self, stat: str, key: str) -> int:
        found = self.stats.find(stat, key)
        return 0 if found is None else found.value


def test_a_message_that_failed_waits_at_level_three_for_its_retry_topic() -> None:
    broker = _Broker()
    draft = broker.stored(broker.log.add("orders"))
    assert (draft.topic, draft.queue_id, draft.body) == (SCHEDULE, 2, b"body")
    assert draft.reconsume_times == 1
    properties = decode_properties(draft.properties)
    assert properties["REAL_TOPIC"] == "%RETRY%g" and properties["REAL_QID"] == "0"
    assert properties["RETRY_TOPIC"] == "orders" and properties["DELAY"] == "3"
    assert properties["ORIGIN_MESSAGE_ID"] == "7F00000100002A9F00000000000003E8"
    retry = broker.topic_table.get("%RETRY%g")
    assert retry is not None
    assert (retry.read_queue_count, retry.write_queue_count, retry.perm) == (1, 1, 6)
    assert broker.topic_table.get("%DLQ%g") is None


def test_a_level_above_the_highest_is_the_highest() -> None:
    broker = _Broker()
    draft = broker.stored(broker.log.add("orders"), delayLevel=999)
    assert (draft.topic, draft.queue_id) == (SCHEDULE, 17)
    assert decode_properties(draft.properties)["DELAY"] == "18"


@pytest.mark.parametrize(
    ("reconsume_times", "fields"),
    [(16, {}), (0, {"delayLevel": -1}), (2, {"maxReconsumeTimes": 2})],
)
def test_a_message_that_is_given_up_goes_to_the_dead_letters(
    reconsume_times: int, fields: dict[str, object]
) -> None:
    broker = _Broker()
    place = broker.log.add("orders", reconsume_times=reconsume_times)
    draft = broker.stored(place, **fields)  # type: ignore[arg-type]
    assert (draft.topic, draft.queue_id) == (b"%DLQ%g", 0)
    assert draft.reconsume_times == reconsume_times + 1
    properties = decode_properties(draft.properties)
    assert properties["DELAY"] == "0" and properties["RETRY_TOPIC"] == "orders"
    assert "REAL_TOPIC" not in properties
    dead = broker.topic_table.get("%DLQ%g")
    assert dead is not None and (dead.read_queue_count, dead.perm) == (1, 6)
    assert broker.count(SNDBCK2DLQ_TIMES, "orders@g") == 1


@pytest.mark.proves("apache.notes.dead-letter-perm")
@pytest.mark.parametrize("perm", [0, 2, 4, 6])
def test_a_new_dead_letter_topic_has_the_permission_of_the_setting_and_takes_letters(
    perm: int,
) -> None:
    broker = _Broker(dead_letter_perm=perm)
    for number in range(2):
        draft = broker.stored(broker.log.add("orders"), delayLevel=-1)
        assert (draft.topic, len(broker.log.appended)) == (b"%DLQ%g", number + 1)
    dead = broker.topic_table.get("%DLQ%g")
    assert dead is not None and dead.perm == perm


def test_a_dead_letter_topic_that_an_operator_opened_stays_open() -> None:
    broker = _Broker(dead_letter_perm=2)
    broker.stored(broker.log.add("orders"), delayLevel=-1)
    broker.topics.update([TopicConfig("%DLQ%g", 1, 1, 6)], 0)
    broker.stored(broker.log.add("orders"), delayLevel=-1)
    dead = broker.topic_table.get("%DLQ%g")
    assert dead is not None and dead.perm == 6


def test_a_timed_message_that_is_given_up_does_not_wait_again() -> None:
    broker = _Broker()
    properties = encode_properties({"TIMER_DELAY_SEC": "60"})
    place = broker.log.add("orders", raw_properties=properties)
    assert broker.stored(place, delayLevel=-1).topic == b"%DLQ%g"


def test_an_old_clients_maximum_is_not_looked_at() -> None:
    broker = _Broker()
    place = broker.log.add("orders", reconsume_times=2)
    assert broker.stored(place, version=120, maxReconsumeTimes=2).topic == SCHEDULE


def test_the_groups_policy_says_how_long_a_retry_waits() -> None:
    broker = _Broker()
    policy = GroupRetryPolicy(customized=CustomizedRetry((1, 1, 100_000)))
    broker.groups.update([SubscriptionGroupConfig("g", retry_policy=policy)], 0)
    place = broker.log.add("orders")
    # 100 s lie between the fifth level and the sixth.
    assert broker.stored(place).queue_id == 5
    assert broker.stored(place, delayLevel=1).queue_id == 0


def test_a_second_retry_keeps_the_first_topic_and_id() -> None:
    broker = _Broker()
    first = broker.stored(broker.log.add("orders"))
    place = broker.log.add("%RETRY%g", raw_properties=first.properties, reconsume_times=1)
    second = broker.stored(place)
    before, after = decode_properties(first.properties), decode_properties(second.properties)
    for name in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "UNIQ_KEY"):
        assert after[name] == before[name]
    assert (second.queue_id, second.reconsume_times) == (3, 2)
    assert broker.count(SNDBCK_PUT_NUMS, "orders@g") == 2


def test_an_origin_that_a_producer_made_up_makes_no_statistics_of_its_own() -> None:
    broker = _Broker()
    made_up = encode_properties({"RETRY_TOPIC": "made-up"})
    broker.stored(broker.log.add("orders", raw_properties=made_up))
    assert broker.count(SNDBCK_PUT_NUMS, "made-up@g") == 0
    assert broker.count(SNDBCK_PUT_NUMS, "orders@g") == 1


def test_a_retry_goes_only_to_queues_that_are_read() -> None:
    broker = _Broker()
    broker.topic_table.put(TopicConfig("%RETRY%g", 1, 1), 0)
    broker.groups.update([SubscriptionGroupConfig("g", retry_queue_count=1024)], 0)
    place = broker.log.add("orders")
    for _ in range(20):
        assert decode_properties(broker.stored(place).properties)["REAL_QID"] == "0"


def test_a_retry_topic_keeps_its_order_flag() -> None:
    broker = _Broker()
    broker.topic_table.put(TopicConfig("%RETRY%g", 1, 1, order=True), 0)
    broker.stored(broker.log.add("orders"))
    retry = broker.topic_table.get("%RETRY%g")
    assert retry is not None and retry.order


def test_a_unit_of_a_site_marks_its_retry_topic() -> None:
    broker = _Broker()
    broker.stored(broker.log.add("orders"), unitMode=True)
    retry = broker.topic_table.get("%RETRY%g")
    assert retry is not None and retry.sys_flag == 2


# Refusals, in their order.


def test_a_group_that_may_not_be_made_is_refused_first() -> None:
    broker = _Broker(auto_create_group=False, permission=4)
    assert broker.refusal(7) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_broker_that_takes_no_messages_takes_none_back() -> None:
    broker = _Broker(permission=4)
    broker.groups.update([SubscriptionGroupConfig("g", retry_queue_count=0)], 0)
    assert broker.refusal(7) == ResponseCode.NO_PERMISSION


def test_a_group_without_retry_queues_drops_what_it_sends_back() -> None:
    broker = _Broker()
    broker.groups.update([SubscriptionGroupConfig("g", retry_queue_count=0)], 0)
    ((_, response),) = broker.ask(7).replies
    assert response == Response()
    assert not broker.log.appended and broker.topic_table.get("%RETRY%g") is None


@pytest.mark.proves("kinds.retry.send-back")
def test_a_retry_topic_that_is_not_writable_is_refused_before_the_message_is_looked_up() -> None:
    broker = _Broker()
    broker.topic_table.put(TopicConfig("%RETRY%g", 1, 1, 4), 0)
    assert broker.refusal(7) == ResponseCode.NO_PERMISSION


@pytest.mark.proves("kinds.retry.send-back")
@pytest.mark.parametrize("place", [7, -1, -(1 << 63), (1 << 63) - 1])
def test_an_offset_without_a_message_is_refused(place: int) -> None:
    assert _Broker().refusal(place) == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("field", ["offset", "group", "delayLevel"])
def test_a_request_without_its_fields_is_refused(field: str) -> None:
    broker = _Broker()
    fields = {"offset": "1000", "group": "g", "delayLevel": "0"}
    del fields[field]
    asked = request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
    with pytest.raises(RequestRejected, match=field):
        broker.handlers.handle_send_back(asked, FakePeer())


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"]
)
def test_a_waiting_message_cannot_be_had_by_sending_it_back(topic: str) -> None:
    broker = _Broker()
    assert broker.refusal(broker.log.add(topic)) == ResponseCode.SYSTEM_ERROR


def test_bytes_that_only_look_like_a_record_are_refused() -> None:
    broker = _Broker()
    broker.log.add("orders", queue_offset=4)
    forged = broker.log.add("orders", queue_offset=4)
    broker.log.rows_of[b"orders", 0, 4] = forged - 100
    assert broker.refusal(forged) == ResponseCode.SYSTEM_ERROR


def test_a_topic_that_a_group_may_not_read_is_not_read_by_sending_back() -> None:
    broker = _Broker()
    broker.groups.update([SubscriptionGroupConfig("g")], 0)
    broker.groups.set_readable("g", "orders", False, 0)
    assert broker.refusal(broker.log.add("orders")) == ResponseCode.NO_PERMISSION


def test_dead_letters_of_another_group_are_taken_back_from_their_readers_only() -> None:
    broker = _Broker()
    place = broker.log.add("%DLQ%other")
    assert broker.refusal(place) == ResponseCode.NO_PERMISSION
    broker.consumers.remember_pulled("g", "%DLQ%other", SubscriptionData("%DLQ%other"), 0)
    assert broker.stored(place).topic == SCHEDULE


def test_a_store_that_takes_nothing_leaves_the_message_with_its_consumer() -> None:
    broker = _Broker()
    broker.log.refusal = DiskFull("the disk is full")
    place = broker.log.add("orders")
    with pytest.raises(RequestRejected, match="the disk is full") as caught:
        broker.ask(place)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR
    assert broker.stats.put_failed_count == 1
    assert broker.count(SNDBCK_PUT_NUMS, "orders@g") == 0


def test_under_sync_flush_the_answer_waits_for_the_disk() -> None:
    broker = _Broker(waits=True)
    peer = broker.ask(broker.log.add("orders"))
    assert not peer.replies
    broker.acknowledgements.reached(9099)
    assert not peer.replies
    broker.acknowledgements.reached(9100)
    assert [response for _, response in peer.replies] == [Response()]
    assert broker.count(SNDBCK_PUT_NUMS, "orders@g") == 1


def test_a_message_that_is_perhaps_not_on_the_disk_stays_with_its_consumer() -> None:
    broker = _Broker(waits=True)
    late = broker.ask(broker.log.add("orders"))
    broker.clock.advance(ms=5000)
    broker.acknowledgements.expire()
    assert not late.replies
    failed = broker.ask(broker.log.add("orders"))
    broker.clock.advance(ms=1)
    broker.acknowledgements.expire()
    broker.acknowledgements.fail()
    assert [response for _, response in late.replies] == [Response(1, "FLUSH_DISK_TIMEOUT")]
    assert [response for _, response in failed.replies] == [Response(1, "SERVICE_NOT_AVAILABLE")]
    assert broker.count(SNDBCK_PUT_NUMS, "orders@g") == 0
