"""Memories of sends: which topics have one, and what the log gives back after a restart."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.config import BrokerConfig
from contrail.broker.services import send_dedupe
from contrail.broker.services.send_dedupe import SendDedupe
from contrail.broker.services.topics import Topics
from contrail.broker.state.attributes import DEDUPE_COUNT_ATTRIBUTE, DEDUPE_MS_ATTRIBUTE
from contrail.broker.state.causes import cause_mark
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.broker.state.send_memory import FirstSend, SendMemory, Window
from contrail.broker.state.sent_record import read_sent
from contrail.broker.state.topics import TopicTable
from contrail.clock import ManualClock
from contrail.errors import RecordDamaged
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import TRANSACTION_COMMIT, decode_record
from contrail.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from contrail.store.services.reading import QueueRow

TOPIC = "once"
AGE_MS = 60_000


class FakeLog:
    """Messages in the order of the log; a record takes 100 bytes."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.encoded: dict[int, bytes] = {}
        self.places: dict[tuple[bytes, int], list[int]] = {}
        self.read_count = 0

    def append(
        self,
        topic: str = TOPIC,
        queue_id: int = 0,
        *,
        cause: int = 0,
        sys_flag: int = 0,
        **named: Any,
    ) -> StoredMessage:
        places = self.places.setdefault((topic.encode(), queue_id), [])
        physical_offset = 100 * len(self.encoded)
        draft = MessageDraft(
            topic.encode(),
            queue_id,
            b"x",
            encode_properties(named),
            sys_flag=sys_flag,
            prepared_transaction_offset=cause,
        )
        now_ms = self._clock.now_ms()
        host = draft.born_host
        parts = build_run([draft], [len(places)], physical_offset, now_ms, host, False)
        message = decode_record(b"".join(parts), 0)
        self.encoded[physical_offset] = b"".join(parts)
        places.append(physical_offset)
        return message

    def queues(self) -> list[tuple[bytes, int]]:
        return list(self.places)

    def queue_offset_min(self, topic: bytes, queue_id: int) -> int:
        return 0

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int:
        return len(self.places[topic, queue_id])

    def rows(self, topic: bytes, queue_id: int, queue_offset: int, count: int) -> list[QueueRow]:
        places = self.places[topic, queue_id][queue_offset : queue_offset + count]
        return [QueueRow(queue_offset + at, place, 100, 0) for at, place in enumerate(places)]

    def record_bytes(self, physical_offset: int) -> bytes:
        self.read_count += 1
        if physical_offset not in self.encoded:
            raise RecordDamaged("no whole record", physical_offset=physical_offset)
        return self.encoded[physical_offset]


class Room:
    """A broker's topics and log, and what a restart makes of them."""

    def __init__(self, *, count: int = 1000, topics: tuple[str, ...] = (TOPIC,)) -> None:
        self.clock = ManualClock()
        self.log = FakeLog(self.clock)
        attributes = {DEDUPE_MS_ATTRIBUTE: str(AGE_MS), DEDUPE_COUNT_ATTRIBUTE: str(count)}
        configs = {topic: TopicConfig(topic, attributes=attributes) for topic in topics}
        self.topics = Topics(TopicTable(configs), RuntimeSettings(BrokerConfig()))

    def restarted(self) -> SendDedupe:
        dedupe = SendDedupe(self.topics, self.log, self.clock)
        dedupe.rebuild()
        return dedupe

    def memory(self, topic: str = TOPIC) -> SendMemory:
        return self.restarted().memories[topic]

    def find(self, key: str, topic: str = TOPIC) -> FirstSend | None:
        return self.memory(topic).find(key.encode(), self.clock.now_ms())


def place_of(message: StoredMessage, queue_id: int | None = None) -> FirstSend:
    return FirstSend(
        message.queue_id if queue_id is None else queue_id,
        message.queue_offset,
        message.physical_offset,
        message.store_timestamp_ms,
    )


def test_the_sends_of_all_queues_are_read_back() -> None:
    room = Room()
    sent = {
        f"k{number}": room.log.append(queue_id=number % 4, UNIQ_KEY=f"k{number}")
        for number in range(600)
    }
    memory = room.memory()
    assert len(memory) == 600
    for key, message in sent.items():
        assert memory.find(key.encode(), room.clock.now_ms()) == place_of(message)


def test_no_more_is_read_back_than_the_window_holds() -> None:
    room = Room(count=50)
    for number in range(5000):
        room.log.append(queue_id=number % 2, UNIQ_KEY=f"k{number}")
    memory = room.memory()
    assert len(memory) == 50
    known = [n for n in range(5000) if memory.find(b"k%d" % n, room.clock.now_ms())]
    assert known == list(range(4950, 5000))
    assert room.log.read_count < 1000


def test_a_message_that_is_too_old_is_neither_known_nor_read() -> None:
    room = Room()
    for number in range(5000):
        room.log.append(UNIQ_KEY=f"old{number}")
    room.clock.advance(ms=AGE_MS + 1)
    young = room.log.append(UNIQ_KEY="young")
    assert room.find("young") == place_of(young)
    assert room.find("old4999") is None
    assert room.log.read_count < 2000


def test_a_clock_that_was_put_back_for_a_moment_hides_nothing() -> None:
    room = Room()
    first = room.log.append(UNIQ_KEY="first")
    room.clock.advance(hours=-24)
    room.log.append(UNIQ_KEY="yesterday")
    room.clock.advance(hours=24)
    last = room.log.append(UNIQ_KEY="last")
    assert room.find("first") == place_of(first)
    assert room.find("last") == place_of(last)
    assert room.find("yesterday") is None


def test_messages_of_other_topics_and_without_keys_are_not_known() -> None:
    room = Room(topics=(TOPIC, "twin"))
    room.log.append("other", UNIQ_KEY="a")
    room.log.append("twin", UNIQ_KEY="b")
    room.log.append(KEYS="c")
    assert len(room.memory()) == 0
    assert room.find("b", "twin") is not None


WAITING = [
    (SCHEDULE_TOPIC, 2, {"DELAY": "3"}),
    (TIMER_TOPIC, 0, {"TIMER_OUT_MS": "1760000030000"}),
    (HALF_TOPIC, 0, {"TRAN_MSG": "true"}),
]


@pytest.mark.parametrize(("topic", "queue_id", "extra"), WAITING)
def test_a_message_that_waits_is_known_by_the_queue_it_was_sent_to(
    topic: str, queue_id: int, extra: dict[str, Any]
) -> None:
    room = Room()
    named: dict[str, Any] = {"UNIQ_KEY": "k", "REAL_TOPIC": TOPIC, "REAL_QID": "3", **extra}
    waiting = room.log.append(topic, queue_id, **named)
    assert room.find("k") == place_of(waiting, 3)


@pytest.mark.parametrize(("topic", "queue_id", "extra"), WAITING)
def test_a_delivered_message_is_known_by_the_place_where_it_waited(
    topic: str, queue_id: int, extra: dict[str, Any]
) -> None:
    room = Room()
    named: dict[str, Any] = {"UNIQ_KEY": "k", "REAL_TOPIC": TOPIC, "REAL_QID": "0", **extra}
    waiting = room.log.append(topic, queue_id, **named)
    at = waiting.physical_offset
    if topic == HALF_TOPIC:
        # Asked about once, so it was put back; then committed.
        room.log.append(topic, queue_id, TRANSACTION_CHECK_TIMES="1", **named)
        fate: dict[str, Any] = {"sys_flag": TRANSACTION_COMMIT, "cause": at}
        room.log.append(UNIQ_KEY="k", __transactionId__="k", **fate)
    else:
        # Rolled on once, then delivered.
        rolled = room.log.append(topic, queue_id, cause=cause_mark(at), **named)
        room.log.append(UNIQ_KEY="k", cause=cause_mark(rolled.physical_offset))
    assert room.find("k") == place_of(waiting, 0)


def test_the_end_of_a_long_wait_does_not_make_a_key_young_again() -> None:
    room = Room()
    named: dict[str, Any] = {"UNIQ_KEY": "k", "REAL_TOPIC": TOPIC, "REAL_QID": "0", "DELAY": "18"}
    waiting = room.log.append(SCHEDULE_TOPIC, 17, **named)
    room.clock.advance(hours=2)
    room.log.append(UNIQ_KEY="k", cause=cause_mark(waiting.physical_offset))
    assert room.find("k") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"TIMER_DEL_UNIQKEY": "once_other"},
        {"TRANSACTION_CHECK_TIMES": "0"},
        {"TRAN_PREPARED_QUEUE_OFFSET": "0"},
        {"REAL_QID": "first"},
        {"REAL_QID": "-1"},
        {"REAL_QID": "99999999999"},
        {"TIMER_OUT_MS": "9" * 20},
        {"TIMER_OUT_MS": "soon"},
        {"REAL_TOPIC": "other"},
    ],
)
def test_a_waiting_message_that_no_producer_sent_here_is_left_out(changes: dict[str, Any]) -> None:
    room = Room()
    named: dict[str, Any] = {
        "UNIQ_KEY": "k",
        "REAL_TOPIC": TOPIC,
        "REAL_QID": "0",
        "TIMER_OUT_MS": "1",
    }
    room.log.append(TIMER_TOPIC, **{**named, **changes})
    assert room.find("k") is None


def test_a_damaged_record_and_a_row_that_leads_elsewhere_are_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room()
    kept = [room.log.append(UNIQ_KEY=f"k{number}") for number in range(4)]
    del room.log.encoded[kept[1].physical_offset]
    room.log.places[TOPIC.encode(), 0][2] = kept[0].physical_offset
    memory = room.memory()
    known = [n for n in range(4) if memory.find(b"k%d" % n, room.clock.now_ms())]
    assert known == [0, 3]
    assert "may be stored again" in caplog.text


def test_a_bounded_number_of_waiting_messages_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_dedupe, "_WAITING_ROW_COUNT_MAX", 10)
    room = Room()
    for number in range(50):
        named: dict[str, Any] = {"UNIQ_KEY": f"k{number}", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
        room.log.append(SCHEDULE_TOPIC, 0, **named)
    assert len(room.memory()) == 10
    assert room.find("k40") is not None


# A key, a step of the clock, and now and then a message that waits or a restart.
STEPS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 9_000), st.sampled_from("....wR")),
    max_size=80,
)


@given(STEPS, st.integers(1, 15))
def test_restarts_change_nothing_that_a_producer_can_see(
    steps: list[tuple[int, int, str]], count: int
) -> None:
    """One broker lives on, one starts anew; both read and write the same."""
    room = Room(count=count)
    lived = room.restarted().memories[TOPIC]
    restarted = lived
    for key_number, step_ms, event in steps:
        room.clock.advance(ms=step_ms)
        if event == "R":
            restarted = room.memory()
        now_ms, key = room.clock.now_ms(), f"k{key_number}"
        first = lived.find(key.encode(), now_ms)
        assert restarted.find(key.encode(), now_ms) == first
        if first is None:
            first = stored(room, key, key_number % 3, waits=event == "w")
            for memory in {id(each): each for each in (lived, restarted)}.values():
                memory.remember(key.encode(), first)


def stored(room: Room, key: str, queue_id: int, *, waits: bool) -> FirstSend:
    named: dict[str, Any] = {"UNIQ_KEY": key}
    if waits:
        named |= {"REAL_TOPIC": TOPIC, "REAL_QID": str(queue_id)}
        return place_of(room.log.append(SCHEDULE_TOPIC, 4, **named), queue_id)
    return place_of(room.log.append(queue_id=queue_id, **named))


HOSTS = st.sampled_from([b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", bytes(15) + b"\x01\x00\x00\x2a\x9f"])
DRAFTS = st.builds(
    MessageDraft,
    # From 128 bytes on a topic's length takes two bytes.
    topic=st.sampled_from([b"t", b"t" * 127, b"t" * 128, b"t" * 255]),
    queue_id=st.integers(0, 65_535),
    body=st.binary(min_size=1, max_size=40),
    properties=st.text("abc", max_size=9).map(lambda key: encode_properties({"UNIQ_KEY": key})),
    flag=st.integers(0, 9),
    sys_flag=st.sampled_from([0, TRANSACTION_COMMIT]),
    born_timestamp_ms=st.integers(0, 1 << 60),
    born_host=HOSTS,
    reconsume_times=st.integers(0, 9),
    prepared_transaction_offset=st.integers(-(1 << 62), 1 << 62),
)


@given(DRAFTS, HOSTS, st.integers(0, 1 << 60), st.integers(0, 1 << 60))
def test_the_few_fields_are_those_that_a_whole_reading_gives(
    draft: MessageDraft, store_host: bytes, queue_offset: int, now_ms: int
) -> None:
    parts = build_run([draft], [queue_offset], 4096, now_ms, store_host, False)
    record = b"".join(parts)
    whole = decode_record(record)
    assert read_sent(record) == (
        whole.topic.encode(),
        whole.queue_id,
        whole.queue_offset,
        whole.physical_offset,
        whole.sys_flag,
        whole.store_timestamp_ms,
        whole.prepared_transaction_offset,
        whole.raw_properties,
    )


# The topics with a memory.


def test_a_topic_gets_and_loses_its_memory_with_its_attributes() -> None:
    room = Room(topics=())
    dedupe = room.restarted()
    plain = TopicConfig("t")
    room.topics.update([plain], 1)
    assert "t" not in dedupe.memories
    room.topics.update([dataclasses.replace(plain, attributes={f"+{DEDUPE_MS_ATTRIBUTE}": "7"})], 2)
    memory = dedupe.memories["t"]
    memory.remember(b"k", FirstSend(0, 0, 0, 0))
    changed = dataclasses.replace(plain, attributes={f"+{DEDUPE_COUNT_ATTRIBUTE}": "9"})
    room.topics.update([changed], 3)
    assert dedupe.memories["t"] is memory
    assert memory.window == Window(7, 9)
    assert memory.find(b"k", 0) is not None
    room.topics.delete("t", 4)
    assert "t" not in dedupe.memories


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_retries_and_dead_letters_have_no_memory(topic: str) -> None:
    assert Room(topics=(topic,)).restarted().memories == {}
