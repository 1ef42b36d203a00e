"""Messages that a consumer sends back to a running broker: tried again on time, or given up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from struct import pack_into

import pytest

from contrail.clock import ManualClock, SharedClock
from contrail.model.message import StoredMessage
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages
from tests.e2e.raw_client import RawClient, heartbeat

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
# Where the body starts in a record with two IPv4 hosts, and where its place in the log stands.
BODY_POSITION, PLACE_POSITION = 88, 28
_names = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as running:
        yield running


@pytest.fixture
def group() -> str:
    return f"readers-{next(_names)}"


@pytest.fixture
def topic() -> str:
    return f"orders-{next(_names)}"


class Consumer(Asker):
    """A group's consumer, as far as it has trouble with its messages."""

    def __init__(self, cluster: LocalCluster, group: str) -> None:
        super().__init__(cluster)
        self.cluster = cluster
        self.group = group
        self.retry_topic, self.dead_topic = f"%RETRY%{group}", f"%DLQ%{group}"

    def messages_of(self, topic: str, queue_offset: int = 0) -> list[StoredMessage]:
        return list(messages(self.pull(topic, queue_offset, consumerGroup=self.group)))

    def sent(self, topic: str, body: bytes = b"x", **options: object) -> StoredMessage:
        """Send a message, and what a consumer gets of it."""
        return self.messages_of(topic, self.stored(topic, body, **options))[0]

    def send_back(self, message: StoredMessage | int, **changes: str) -> ReceivedResponse:
        place = message if isinstance(message, int) else message.physical_offset
        fields = {"offset": str(place), "group": self.group, "delayLevel": "0"}
        return self.ask(SEND_BACK, {**fields, **changes})

    def fail(self, message: StoredMessage, **changes: str) -> None:
        """Send back, which must succeed."""
        answer = self.send_back(message, **changes)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)

    def wait_for(self, topic: str, count: int) -> list[StoredMessage]:
        """The messages of a topic once there are so many; the clock moves a little at a time."""
        found: list[StoredMessage] = []

        def is_there() -> bool:
            self.cluster.advance(ms=50)
            found[:] = self.messages_of(topic)
            return len(found) >= count

        eventually(is_there, f"{count} messages in {topic}")
        assert len(found) == count
        return found


@pytest.mark.proves("kinds.retry.send-back")
def test_a_message_comes_back_after_ten_seconds_and_not_before(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    original = consumer.sent(topic, b"try me", properties={"TAGS": "red", "mine": "kept"})
    consumer.fail(original)
    cluster.advance(ms=9_999)
    assert consumer.messages_of(consumer.retry_topic) == []
    (again,) = consumer.wait_for(consumer.retry_topic, 1)
    assert (again.body, again.reconsume_times) == (b"try me", 1)
    assert (again.born_timestamp_ms, again.born_host) == (
        original.born_timestamp_ms,
        original.born_host,
    )
    properties = again.properties
    assert properties["RETRY_TOPIC"] == topic
    assert properties["UNIQ_KEY"] == original.properties["UNIQ_KEY"]
    assert properties["ORIGIN_MESSAGE_ID"].endswith(f"{original.physical_offset:016X}")
    assert (properties["TAGS"], properties["mine"]) == ("red", "kept")


@pytest.mark.proves("kinds.retry.dead-letters")
def test_a_message_that_fails_too_often_ends_among_the_dead_letters(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    first = message = consumer.sent(topic, b"never")
    for tries, wait_ms in ((1, 10_000), (2, 30_000)):
        consumer.fail(message, maxReconsumeTimes="2")
        cluster.advance(ms=wait_ms)
        message = consumer.wait_for(consumer.retry_topic, tries)[-1]
        assert message.reconsume_times == tries
    consumer.fail(message, maxReconsumeTimes="2")
    # It is read like any topic, by any group.
    reader = Consumer(cluster, f"{group}-undertaker")
    (dead,) = reader.wait_for(consumer.dead_topic, 1)
    assert (dead.body, dead.reconsume_times) == (b"never", 3)
    assert dead.properties["RETRY_TOPIC"] == topic
    assert dead.properties["UNIQ_KEY"] == first.properties["UNIQ_KEY"]
    assert dead.properties["ORIGIN_MESSAGE_ID"].endswith(f"{first.physical_offset:016X}")
    cluster.advance(hours=3)
    assert len(consumer.messages_of(consumer.retry_topic)) == 2


@pytest.mark.proves("kinds.retry.retry-topic")
def test_all_sixteen_retries_climb_the_levels(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    message = consumer.sent(topic)
    minutes_ms = [60_000 * count for count in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    for tries, wait_ms in enumerate([10_000, 30_000, *minutes_ms], 1):
        consumer.fail(message)
        cluster.advance(ms=wait_ms - 1)
        assert len(consumer.messages_of(consumer.retry_topic)) == tries - 1
        message = consumer.wait_for(consumer.retry_topic, tries)[-1]
    assert message.reconsume_times == 16
    consumer.fail(message)
    assert [dead.reconsume_times for dead in consumer.wait_for(consumer.dead_topic, 1)] == [17]


@pytest.mark.proves("kinds.retry.direct")
def test_a_consumer_may_give_up_at_once(cluster: LocalCluster, group: str, topic: str) -> None:
    consumer = Consumer(cluster, group)
    consumer.fail(consumer.sent(topic, b"poison"), delayLevel="-1")
    (dead,) = consumer.messages_of(consumer.dead_topic)
    assert (dead.body, dead.reconsume_times) == (b"poison", 1)


@pytest.mark.proves("kinds.retry.direct")
def test_a_dead_letter_that_fails_again_is_tried_again_by_the_group_that_reads_it(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    consumer.fail(consumer.sent(topic, b"poison"), delayLevel="-1")
    (dead,) = consumer.messages_of(consumer.dead_topic)
    other = Consumer(cluster, f"{group}-undertaker")
    assert other.send_back(dead).code == ResponseCode.NO_PERMISSION
    other.messages_of(consumer.dead_topic)
    other.fail(dead)
    cluster.advance(ms=30_000)
    (again,) = other.wait_for(other.retry_topic, 1)
    assert (again.body, again.properties["RETRY_TOPIC"]) == (b"poison", topic)


@pytest.mark.proves("kinds.retry.group-policy")
@pytest.mark.parametrize(
    ("policy", "wait_ms"),
    [
        (
            {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 4000, "max": 9000, "multiplier": 2},
            },
            5_000,
        ),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 61_000]}}, 120_000),
        ({"type": "CUSTOMIZED"}, 10_000),
    ],
)
def test_a_groups_policy_says_how_long_its_retries_wait(
    cluster: LocalCluster, group: str, topic: str, policy: Mapping[str, object], wait_ms: int
) -> None:
    consumer = Consumer(cluster, group)
    consumer.make_group(group, groupRetryPolicy=policy)
    consumer.fail(consumer.sent(topic))
    cluster.advance(ms=wait_ms - 1)
    assert consumer.messages_of(consumer.retry_topic) == []
    assert len(consumer.wait_for(consumer.retry_topic, 1)) == 1


def test_a_group_without_retry_queues_sees_nothing_twice(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    consumer.make_group(group, retryQueueNums=0)
    consumer.fail(consumer.sent(topic))
    assert consumer.pull(consumer.retry_topic, 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_retry_that_a_client_sends_itself_ends_among_the_dead_letters_too(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    consumer.make_group(group)
    marks = {"RETRY_TOPIC": topic, "DELAY": "3"}
    assert consumer.send(consumer.retry_topic, b"once", properties=marks, j="2", l="2").code == 0
    assert consumer.send(consumer.retry_topic, b"over", properties=marks, j="3", l="2").code == 0
    assert [dead.body for dead in consumer.messages_of(consumer.dead_topic)] == [b"over"]
    cluster.advance(ms=10_000)
    assert [message.body for message in consumer.wait_for(consumer.retry_topic, 1)] == [b"once"]


@pytest.mark.proves("apache.notes.dead-letter-perm")
@pytest.mark.parametrize("perm", [0, 2, 4])
def test_closed_dead_letters_are_stored_whatever_way_they_come_and_read_once_opened(
    cluster: LocalCluster, group: str, topic: str, perm: int
) -> None:
    consumer = Consumer(cluster, group)
    consumer.make_group(group)
    consumer.change_settings(f"contrailDeadLetterPerm={perm}")
    try:
        for body in (b"back", b"back again"):
            consumer.fail(consumer.sent(topic, body), delayLevel="-1")
        marks = {"RETRY_TOPIC": topic}
        over = consumer.send(consumer.retry_topic, b"over", properties=marks, j="3", l="2")
        assert over.code == ResponseCode.SUCCESS
    finally:
        consumer.change_settings("contrailDeadLetterPerm=6")
    if not perm & 4:
        assert consumer.pull(consumer.dead_topic, 0).code == ResponseCode.NO_PERMISSION
    consumer.make_topic(consumer.dead_topic, read=1, write=1, perm=6)
    found = [dead.body for dead in consumer.messages_of(consumer.dead_topic)]
    assert found == [b"back", b"back again", b"over"]


# Messages that no send-back may reach.


def test_a_message_that_still_waits_cannot_be_had_early(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    answer = consumer.send(topic, b"not yet", properties={"DELAY": "18"})
    place = int(answer.fields["msgId"][-16:], 16)
    assert consumer.send_back(place).code == ResponseCode.SYSTEM_ERROR
    assert consumer.send_back(place, delayLevel="-1").code == ResponseCode.SYSTEM_ERROR
    assert consumer.pull(consumer.dead_topic, 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_half_message_cannot_be_had_before_its_commit(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    marks = {"TRAN_MSG": "true", "PGROUP": "p"}
    answer = consumer.send(topic, b"half", properties=marks, f="4")
    assert answer.code == ResponseCode.SUCCESS
    place = int(answer.fields["msgId"][-16:], 16)
    assert consumer.send_back(place, delayLevel="-1").code == ResponseCode.SYSTEM_ERROR


def test_a_record_inside_the_body_of_a_message_is_not_taken_for_one(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    consumer.stored(topic, b"model")
    model = consumer.pull(topic, 0).body
    behind = consumer.sent(topic, b"last")
    place = behind.physical_offset + behind.record_bytes + BODY_POSITION
    forged = bytearray(model)
    pack_into(">q", forged, PLACE_POSITION, place)
    carrier = consumer.sent(topic, bytes(forged))
    assert carrier.physical_offset + BODY_POSITION == place
    assert consumer.send_back(place, delayLevel="-1").code == ResponseCode.SYSTEM_ERROR
    assert consumer.send_back(carrier, delayLevel="-1").code == ResponseCode.SUCCESS


@pytest.mark.parametrize("place", ["-1", "1", str((1 << 63) - 1)])
def test_a_place_without_a_message_is_refused(
    cluster: LocalCluster, group: str, place: str
) -> None:
    assert Consumer(cluster, group).send_back(int(place)).code == ResponseCode.SYSTEM_ERROR


def test_an_unknown_group_is_refused_where_groups_are_not_made_by_asking(topic: str) -> None:
    with LocalCluster(properties={"autoCreateSubscriptionGroup": "false"}) as cluster:
        consumer = Consumer(cluster, "nobody")
        assert consumer.send_back(0).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


# Crashes.


def test_a_retry_that_was_answered_survives_the_death_of_the_broker(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    cluster = LocalCluster(
        in_children=True,
        clock=clock,
        folder=tmp_path,
        properties={"flushDiskType": "SYNC_FLUSH"},
    )
    with cluster:
        consumer = Consumer(cluster, "readers")
        consumer.fail(consumer.sent("orders", b"again"))
        consumer.fail(consumer.sent("orders", b"dead"), delayLevel="-1")
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        # A consumer that finds its broker again says so first, and has its retry topic back.
        consumer.done(RequestCode.HEART_BEAT, {}, heartbeat("reader@1"))
        clock.advance(ms=10_000)
        assert [message.body for message in consumer.wait_for("%RETRY%readers", 1)] == [b"again"]
        assert [message.body for message in consumer.wait_for("%DLQ%readers", 1)] == [b"dead"]


def test_nothing_is_answered_to_a_one_way_send_back_but_it_counts(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    consumer = Consumer(cluster, group)
    place = consumer.sent(topic, b"quietly").physical_offset
    fields = {"offset": str(place), "group": group, "delayLevel": "-1"}
    with RawClient(consumer.broker.port) as client:
        client.send(encode_request(Request(SEND_BACK, 1, fields, flag=2)))
        assert client.call(RequestCode.GET_BROKER_RUNTIME_INFO).opaque == 1
    assert [dead.body for dead in consumer.wait_for(consumer.dead_topic, 1)] == [b"quietly"]
