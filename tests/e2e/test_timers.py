"""Timed messages through a real broker: on time, called back, limited, and kept over a kill."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.broker.services.recall_key import KEY_FILE
from contrail.clock import ManualClock, SharedClock
from contrail.model.message import StoredMessage
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker, messages

TOPIC = "timed"
DAY_MS = 86_400_000
I64_MAX = (1 << 63) - 1


class TimerAsker(Asker):
    """A broker that is asked for times."""

    def now_ms(self) -> int:
        return self.cluster.clock.now_ms()

    def send_at(self, key: str, deliver_ms: int, topic: str = TOPIC) -> str:
        """Send, and the handle that calls the message back."""
        properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(deliver_ms)}
        answer = self.send(topic, key.encode(), properties=properties)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.fields["recallHandle"]

    def found(self, topic: str = TOPIC) -> list[StoredMessage]:
        """The messages in queue 0 of the topic now."""
        found: list[StoredMessage] = []
        while True:
            answer = self.pull(topic, len(found))
            more = messages(answer)
            if not more:
                return found
            found += more

    def keys(self, topic: str = TOPIC) -> list[str]:
        return [message.properties["UNIQ_KEY"] for message in self.found(topic)]

    def wait_for(self, keys: list[str]) -> None:
        eventually(lambda: self.keys() == keys, f"{keys} are delivered")

    def recall(
        self, handle: str, topic: str = TOPIC, *, code: int = RequestCode.RECALL_MESSAGE
    ) -> tuple[int, str | None, str | None]:
        fields = {"producerGroup": "p", "topic": topic, "recallHandle": handle}
        answer = self.ask(code, fields)
        return answer.code, answer.fields.get("msgId"), answer.remark


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(clock=ManualClock()) as cluster:
        yield cluster


@pytest.fixture
def broker(cluster: LocalCluster) -> TimerAsker:
    broker = TimerAsker(cluster)
    broker.make_topic(TOPIC)
    return broker


def taken(cluster: LocalCluster) -> bool:
    app = cluster.brokers[0].app
    assert app is not None
    # A message sent a moment ago may not be in its queue yet.
    return app.store.underived_bytes == 0 and app.kinds.timers.behind_count == 0


@pytest.mark.proves("kinds.timers.any-time")
def test_messages_come_in_their_milliseconds(cluster: LocalCluster, broker: TimerAsker) -> None:
    start_ms = broker.now_ms()
    broker.send_at("late", start_ms + 3210)
    broker.send_at("early", start_ms + 1005)
    eventually(lambda: taken(cluster), "the timers are enqueued")
    cluster.advance(ms=1004)
    assert broker.keys() == []
    cluster.advance(ms=1)
    broker.wait_for(["early"])
    cluster.advance(ms=2204)
    assert broker.keys() == ["early"]
    cluster.advance(ms=1)
    broker.wait_for(["early", "late"])
    assert [message.store_timestamp_ms for message in broker.found()] == [
        start_ms + 1005,
        start_ms + 3210,
    ]


@pytest.mark.proves("kinds.timers.recall")
def test_a_recalled_message_is_never_delivered(cluster: LocalCluster, broker: TimerAsker) -> None:
    start_ms = broker.now_ms()
    handle = broker.send_at("gone", start_ms + 60_000)
    broker.send_at("kept", start_ms + 60_000)
    decoded = RecallHandle.decode(handle)
    assert (decoded.topic, decoded.unique_key) == (TOPIC, "gone")
    assert decoded.deliver_ms == start_ms + 59_001
    assert broker.recall(handle) == (ResponseCode.SUCCESS, "gone", None)
    eventually(lambda: taken(cluster), "the recall is enqueued")
    cluster.advance(ms=61_000)
    broker.wait_for(["kept"])


@pytest.mark.proves("kinds.recall.one-message")
def test_a_handle_takes_back_only_the_message_it_was_given_for(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    due_ms = broker.now_ms() + 60_000
    properties = {"UNIQ_KEY": "same", "TIMER_DELIVER_MS": str(due_ms)}

    def sent(body: bytes, **more: str) -> str:
        answer = broker.send(TOPIC, body, properties={**properties, **more})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.fields["recallHandle"]

    theirs = sent(b"kept")
    # Another producer gives its own message the same key, for the same second.
    ours = sent(b"gone", TIMER_DELIVER_MS=str(due_ms - 300))
    # The broker chooses the nonce that tells two messages of one key apart.
    again = sent(b"gone too", CONTRAIL_RECALL_NONCE=RecallHandle.decode(theirs).nonce)
    assert len({theirs, ours, again}) == 3
    for handle in (ours, again):
        assert broker.recall(handle) == (ResponseCode.SUCCESS, "same", None)
        code = RequestCode.RECALL_TIMER
        assert broker.recall(handle, code=code)[0] == ResponseCode.SUCCESS
    eventually(lambda: taken(cluster), "the recalls are enqueued")
    cluster.advance(ms=61_000)
    broker.wait_for(["same"])
    (message,) = broker.found()
    assert message.body == b"kept" and "CONTRAIL_RECALL_NONCE" not in message.properties


@pytest.mark.proves("kinds.recall.one-message")
@pytest.mark.parametrize("key", ["A B", " A", "A ", "A  B", "A " + "x" * 38])
def test_a_message_whose_key_has_spaces_is_taken_back(
    cluster: LocalCluster, broker: TimerAsker, key: str
) -> None:
    due_ms = broker.now_ms() + 60_000
    handle = broker.send_at(key, due_ms)
    broker.send_at("A", due_ms)
    assert broker.recall(handle) == (ResponseCode.SUCCESS, key, None)
    eventually(lambda: taken(cluster), "the recall is enqueued")
    cluster.advance(ms=61_000)
    broker.wait_for(["A"])


def test_a_recall_is_refused_for_what_is_wrong_with_it(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    start_ms = broker.now_ms()
    handle = broker.send_at("a", start_ms + 60_000)
    broker.make_topic("other")
    name = cluster.brokers[0].name
    illegal = ResponseCode.ILLEGAL_OPERATION

    def handle_of(broker_name: str, deliver_ms: int) -> str:
        return RecallHandle(TOPIC, broker_name, deliver_ms, "a").encode()

    assert broker.recall(handle, "nowhere")[0] == ResponseCode.TOPIC_NOT_EXIST
    assert broker.recall(handle, "other")[0] == illegal
    assert broker.recall("no handle")[0] == illegal
    assert broker.recall(handle_of("broker-z", start_ms + 9000))[0] == illegal
    assert broker.recall(handle_of(name, start_ms))[0] == illegal
    assert broker.recall(handle_of(name, start_ms + 3 * DAY_MS))[0] == illegal
    # Nobody was given such a handle; operators need none.
    made_up = handle_of(name, start_ms + 9000)
    assert broker.recall(made_up)[0] == illegal
    # That nothing is there to be called back is not reported.
    assert broker.recall(made_up, code=RequestCode.RECALL_TIMER)[0] == ResponseCode.SUCCESS


@pytest.mark.proves("kinds.recall.sealed")
def test_a_handle_made_by_hand_takes_nobodys_message_back(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    start_ms = broker.now_ms()
    own = RecallHandle.decode(broker.send_at("own", start_ms + 60_000))
    others = RecallHandle.decode(broker.send_at("others", start_ms + 60_000))
    by_hand = [
        others._replace(seal=""),
        others._replace(seal=own.seal),
        others._replace(seal="x" * 22),
        others._replace(seal="x" * 38),
        others._replace(seal=others.nonce + own.seal[16:]),
        own._replace(unique_key="others"),
    ]
    for handle in by_hand:
        code, _, remark = broker.recall(handle.encode())
        assert code == ResponseCode.ILLEGAL_OPERATION and "has not given the handle" in str(remark)
    eventually(lambda: taken(cluster), "the timers are enqueued")
    cluster.advance(ms=61_000)
    broker.wait_for(["own", "others"])


@pytest.mark.proves("kinds.recall.sealed")
def test_operators_take_messages_back_without_a_handle_of_the_broker(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    start_ms = broker.now_ms()
    handle = RecallHandle.decode(broker.send_at("gone", start_ms + 60_000))
    broker.send_at("kept", start_ms + 60_000)
    foreign = handle._replace(seal="x" * 38).encode()
    refused = broker.recall(foreign, code=RequestCode.RECALL_TIMER)
    assert refused[0] == ResponseCode.ILLEGAL_OPERATION and "five words" in str(refused[2])
    by_hand = handle._replace(seal="").encode()
    code, key, _ = broker.recall(by_hand, code=RequestCode.RECALL_TIMER)
    assert (code, key) == (ResponseCode.SUCCESS, "gone")
    eventually(lambda: taken(cluster), "the recall is enqueued")
    cluster.advance(ms=61_000)
    broker.wait_for(["kept"])
    for topic in ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
        of_system = handle._replace(topic=topic, seal="").encode()
        refused = broker.recall(of_system, topic, code=RequestCode.RECALL_TIMER)
        assert refused[0] == ResponseCode.NO_PERMISSION


@pytest.mark.proves("kinds.recall.sealed")
def test_a_handle_without_a_seal_is_taken_for_messages_of_before_the_key(tmp_path: Path) -> None:
    with LocalCluster(clock=ManualClock(), folder=tmp_path) as cluster:
        broker = TimerAsker(cluster)
        broker.make_topic(TOPIC)
        due_ms = broker.now_ms() + 3_600_000
        before = RecallHandle.decode(broker.send_at("before", due_ms))._replace(seal="")
        cluster.brokers[0].stop()
        # As the folder of a release without a key: its handles had five words.
        (cluster.brokers[0].folder / "store" / "config" / KEY_FILE).unlink()
        cluster.advance(ms=1000)
        cluster.brokers[0].start()
        after = RecallHandle.decode(broker.send_at("after", due_ms))._replace(seal="")
        illegal = ResponseCode.ILLEGAL_OPERATION
        assert broker.recall(after.encode())[0] == illegal
        assert broker.recall(before._replace(topic="other").encode(), "other")[0] != 0
        assert broker.recall(before._replace(deliver_ms=due_ms - 1).encode())[0] == illegal
        assert broker.recall(before._replace(unique_key="never").encode())[0] == illegal
        assert broker.recall(before.encode()) == (ResponseCode.SUCCESS, "before", None)
        eventually(lambda: taken(cluster), "the recall is enqueued")
        cluster.advance(ms=3_601_000)
        broker.wait_for(["after"])


@pytest.mark.proves("broker.edges.own-deletions")
def test_a_producers_own_deletion_takes_nothing_back(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    due_ms = broker.now_ms() + 60_000
    broker.send_at("kept", due_ms)
    properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": "kept"}
    for deleted in (f"{TOPIC}+kept", "kept"):
        forged = {**properties, "TIMER_DEL_UNIQKEY": deleted}
        answer = broker.send(TOPIC, b"0", properties=forged)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "TIMER_DEL_UNIQKEY" in str(answer.remark) and "recall" in str(answer.remark)
    # It means nothing in a message that does not wait.
    assert broker.send(TOPIC, b"0", properties={"TIMER_DEL_UNIQKEY": "kept"}).code == 0
    eventually(lambda: taken(cluster), "the timer is enqueued")
    cluster.advance(ms=61_000)
    eventually(lambda: broker.keys().count("kept") == 1, "the message is delivered")


def test_recalls_can_be_switched_off() -> None:
    with LocalCluster(clock=ManualClock(), properties={"recallMessageEnable": "false"}) as cluster:
        broker = TimerAsker(cluster)
        broker.make_topic(TOPIC)
        handle = broker.send_at("a", broker.now_ms() + 60_000)
        assert broker.recall(handle)[0] == ResponseCode.NO_PERMISSION


@pytest.mark.proves("kinds.timers.limit")
@pytest.mark.parametrize(
    "timer",
    [
        {"TIMER_DELIVER_MS": str(I64_MAX)},
        {"TIMER_DELAY_MS": str(I64_MAX)},
        {"TIMER_DELAY_SEC": str(I64_MAX)},
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELAY_MS": "soon"},
    ],
    ids=str,
)
def test_times_beyond_the_limit_are_refused_by_name(
    broker: TimerAsker, timer: dict[str, str]
) -> None:
    answer = broker.send(TOPIC, properties=timer)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    remark = answer.remark or ""
    assert "timerMaxDelaySec" in remark or "soon" in remark


@pytest.mark.proves("kinds.timers.rolling")
def test_a_year_is_kept_when_it_is_allowed() -> None:
    properties = {"timerMaxDelaySec": "31536000"}
    with LocalCluster(clock=ManualClock(), properties=properties) as cluster:
        broker = TimerAsker(cluster)
        broker.make_topic(TOPIC)
        due_ms = broker.now_ms() + 364 * DAY_MS + 7
        broker.send_at("a", due_ms)
        app = cluster.brokers[0].app
        assert app is not None
        for _ in range(364):
            eventually(lambda: taken(cluster) and app.kinds.timers.pending_count == 1, "it waits")
            assert broker.keys() == []
            cluster.advance(hours=24)
        eventually(lambda: taken(cluster), "it is enqueued")
        cluster.advance(ms=6)
        assert broker.keys() == []
        cluster.advance(ms=1)
        broker.wait_for(["a"])
        (message,) = broker.found()
        assert message.store_timestamp_ms == due_ms
        assert int(message.properties["TIMER_ROLL_TIMES"]) > 100


@pytest.mark.proves("kinds.timers.counts")
def test_counts_and_the_check_point_can_be_asked_for(
    cluster: LocalCluster, broker: TimerAsker
) -> None:
    start_ms = broker.now_ms()
    for delay_s in (30, 40, 4000):
        broker.send_at(f"{delay_s}", start_ms + delay_s * 1000)
    eventually(lambda: taken(cluster), "the timers are enqueued")
    body = json.loads(broker.done(RequestCode.GET_TIMER_METRICS, {}).body)
    assert body["timingCount"][TOPIC]["count"] == 3
    assert body["timingDistribution"] == {
        "5": 0,
        "60": 2,
        "300": 0,
        "900": 0,
        "3600": 0,
        "14400": 1,
        "28800": 0,
        "86400": 0,
    }

    def check() -> tuple[int, ...]:
        cluster.advance(ms=1000)
        return struct.unpack(">7q", broker.done(RequestCode.GET_TIMER_CHECK_POINT, {}).body)

    eventually(lambda: check()[2:4] == (3, 3), "the check point knows all three")
    assert check()[0] <= broker.now_ms()


@pytest.mark.proves("kinds.timers.down-past-the-time")
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_killed_broker_delivers_what_was_due_meanwhile(tmp_path: Path, flush: str) -> None:
    clock = SharedClock(tmp_path / "clock")
    with LocalCluster(
        in_children=True, clock=clock, properties={"flushDiskType": flush}
    ) as cluster:
        broker = TimerAsker(cluster)
        broker.make_topic(TOPIC)
        start_ms = broker.now_ms()
        for number in range(50):
            broker.send_at(f"{number:02d}", start_ms + 3_600_000 + number)
        handle = broker.send_at("gone", start_ms + 3_600_000)
        assert broker.recall(handle)[0] == ResponseCode.SUCCESS
        cluster.brokers[0].kill()
        cluster.advance(hours=24 * 8)
        cluster.brokers[0].start()
        keys = [f"{number:02d}" for number in range(50)]
        broker.wait_for(keys)
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        late = broker.now_ms() + 1500
        broker.send_at("last", late)
        broker.wait_for([*keys, "last"])
        assert broker.found()[-1].store_timestamp_ms >= late
