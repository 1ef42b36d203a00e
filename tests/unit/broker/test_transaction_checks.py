"""Questions to producers: when, to which, how often, and the fate without an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from contrail.broker.services.transaction_checks import HalfRetention
from contrail.broker.state.causes import Delivered
from contrail.broker.state.check_schedule import CheckSchedule
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.transaction_records import read_half
from contrail.errors import StoreReadOnly
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import encode_properties
from contrail.model.record import decode_record
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Response
from contrail.runtime.files import FilePart
from contrail.store.services.residency import NotInMemory
from tests.fakes.peers import FakePeer
from tests.fakes.transaction_log import RECORD_BYTES, STORE_HOST, half_draft
from tests.unit.broker.transaction_setup import (
    COMMIT,
    HALF,
    HOUR_MS,
    ROLLBACK,
    World,
    question_place,
)

EXHAUSTED = b"TRANS_CHECK_MAX_TIME_TOPIC"


@pytest.mark.proves("kinds.transactions.check-back")
def test_the_first_question_comes_after_the_timeout_and_the_next_after_the_interval() -> None:
    world = World()
    peer = world.producer()
    world.send_half()
    world.tick()
    world.tick(ms=5999)
    assert peer.notified == []
    world.tick(ms=1)
    assert len(peer.notified) == 1
    world.tick(ms=29_999)
    assert len(peer.notified) == 1
    world.tick(ms=1)
    assert len(peer.notified) == 2


def test_a_question_names_the_copy_that_was_put_back_and_shows_the_message() -> None:
    world = World()
    peer = world.producer()
    half = world.send_half("k1")
    world.tick(ms=6000)
    copy = world.log.of(HALF)[1]
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert copy.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert (copy.born_timestamp_ms, copy.born_host) == (half.born_timestamp_ms, half.born_host)
    assert world.ops() == [("0,", "s")]
    (question,) = peer.notified
    assert question.code == RequestCode.CHECK_TRANSACTION_STATE
    assert question.fields == {
        "topic": "RMQ_SYS_TRANS_HALF_TOPIC",
        "tranStateTableOffset": "1",
        "commitLogOffset": str(copy.physical_offset),
        "msgId": "k1",
        "transactionId": "k1",
        "offsetMsgId": encode_offset_message_id(STORE_HOST, copy.physical_offset),
        "bname": "broker-a",
    }
    shown = decode_record(question.body)
    assert (shown.topic, shown.queue_id, shown.body) == ("orders", 2, b"paid")
    assert (shown.queue_offset, shown.physical_offset) == (1, copy.physical_offset)


@pytest.mark.parametrize("named", [0, 1, 2])
def test_an_end_that_names_any_copy_decides_the_one_transaction(named: int) -> None:
    world = World()
    world.producer()
    world.send_half()
    world.tick(ms=6000)
    world.tick(ms=30_000)
    copies = world.log.of(HALF)
    assert len(copies) == 3
    answer = world.end(copies[named])
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(world.table) == 0
    for copy in copies:
        again = world.end(copy)
        assert again is not None and again.code == ResponseCode.SUCCESS
        other = world.end(copy, ROLLBACK)
        assert other is not None and other.code == ResponseCode.ILLEGAL_OPERATION
    assert len(world.log.commits()) == 1
    assert world.log.commits()[0].prepared_transaction_offset == copies[-1].physical_offset
    world.tick(ms=60_000)
    assert len(world.log.of(HALF)) == 3


def test_an_immunity_time_of_the_message_delays_its_first_question() -> None:
    world = World()
    peer = world.producer()
    world.send_half("late", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    world.send_half("short", CHECK_IMMUNITY_TIME_IN_SECONDS="1")
    world.send_half("odd", CHECK_IMMUNITY_TIME_IN_SECONDS="soon")
    world.tick(ms=6000)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["short", "odd"]
    world.tick(ms=53_999)
    assert "late" not in [sent.fields["msgId"] for sent in peer.notified]
    world.tick(ms=1)
    assert peer.notified[-1].fields["msgId"] == "late"


@pytest.mark.proves("kinds.transactions.check-back")
def test_producers_of_a_group_are_asked_in_turn_and_only_live_ones() -> None:
    world = World()
    peers = [world.producer(port=50001), world.producer(port=50002)]
    stranger = world.producer("others", port=50003)
    gone = world.producer(port=50004)
    gone.close("test")
    for number in range(4):
        world.send_half(f"k{number}")
    world.tick(ms=6000)
    assert [len(peer.notified) for peer in peers] == [2, 2]
    assert (stranger.notified, gone.notified) == ([], [])


def test_without_a_producer_nothing_is_counted_until_one_is_there() -> None:
    world = World()
    world.send_half()
    for _ in range(40):
        world.tick(ms=30_000)
    assert len(world.log.of(HALF)) == 1
    assert world.listed()[0]["nextCheckMs"] == -1
    peer = world.producer()
    world.tick(ms=50)
    assert len(peer.notified) == 1
    assert world.log.of(HALF)[1].properties["TRANSACTION_CHECK_TIMES"] == "1"


class Choked(FakePeer):
    """A peer that does not read what it was sent."""

    is_choked = True


class ChokedByOne(FakePeer):
    """A peer that one question is too much for."""

    is_choked = False

    def notify(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        super().notify(code, fields, body)
        self.is_choked = True


def produces(world: World, peer: FakePeer) -> None:
    channel = ClientChannel(peer, "slow", "JAVA", 479, world.clock.now_ms())
    world.producers.register("payers", channel)


def test_a_producer_that_does_not_read_is_not_asked_until_it_does() -> None:
    world = World()
    peer = Choked()
    produces(world, peer)
    world.send_half()
    world.tick()
    for _ in range(20):
        world.tick(ms=30_000)
    assert peer.notified == []
    assert len(world.log.of(HALF)) == 1
    (row,) = world.listed()
    assert (row["checks"], row["nextCheckMs"]) == (0, -1)
    peer.is_choked = False
    world.tick()
    assert len(peer.notified) == 1
    assert world.listed()[0]["checks"] == 1


def test_of_two_producers_the_one_that_reads_is_asked() -> None:
    world = World()
    slow, reading = Choked(), world.producer()
    produces(world, slow)
    world.send_half()
    world.tick(ms=6000)
    world.tick(ms=30_000)
    world.tick(ms=30_000)
    assert (len(slow.notified), len(reading.notified)) == (0, 3)


def test_a_question_that_finds_the_producer_choked_does_not_count() -> None:
    world = World()
    peer = ChokedByOne()
    produces(world, peer)
    world.send_half("k1")
    world.send_half("k2")
    world.tick(ms=6000)
    assert len(peer.notified) == 1
    assert sorted(str(row["checks"]) for row in world.listed()) == ["0", "1"]


def test_groups_without_a_producer_are_not_looked_at_each_time() -> None:
    world = World()
    for number in range(200):
        world.send_half(f"k{number}", group=f"g{number}")
    world.tick()
    world.tick(ms=6000)
    peer = world.producer("g7")
    looked_at: list[str] = []
    channels = world.producers.channels

    def counted(group: str) -> list[ClientChannel]:
        looked_at.append(group)
        return channels(group)

    world.producers.channels = counted  # type: ignore[method-assign]
    for _ in range(3):
        world.tick()
    assert set(looked_at) == {"g7"}
    assert len(peer.notified) == 1


def test_checks_come_sooner_while_new_transactions_have_no_time_yet() -> None:
    world = World()
    for number in range(1500):
        world.send_half(f"k{number}")
    world.tick()
    assert world.checks.interval_ms == 20
    world.tick()
    assert world.checks.interval_ms == 100


@pytest.mark.parametrize("days", [-4, 4])
def test_a_producers_clock_decides_nothing_about_how_old_a_transaction_is(days: int) -> None:
    world = World()
    born_ms = world.clock.now_ms() + days * 24 * HOUR_MS
    first = half_draft("k1", clock=world.clock)._replace(born_timestamp_ms=born_ms)
    world.store(first)
    stored_ms = world.clock.now_ms()
    for _ in range(13):
        world.tick(ms=HOUR_MS)
    assert len(world.log.of(HALF)) == 2
    world.log.flush()
    world = world.crashed()
    world.producer()
    world.tick()
    (row,) = world.listed()
    assert (row["checks"], row["ageMs"]) == (1, world.clock.now_ms() - stored_ms)
    world.clock.advance(hours=60)
    world.tick()
    assert len(world.log.of(EXHAUSTED)) == 1


def test_consumers_do_not_see_when_a_transaction_began() -> None:
    world = World()
    world.producer()
    half = world.send_half()
    world.tick(ms=6000)
    copy = world.log.of(HALF)[1]
    assert copy.properties["CONTRAIL_FIRST_STORED_MS"] == str(half.store_timestamp_ms)
    world.end(copy, is_check=True)
    assert "CONTRAIL_FIRST_STORED_MS" not in world.log.commits()[0].properties


@pytest.mark.proves("kinds.transactions.given-up")
def test_after_fifteen_questions_the_message_is_given_up() -> None:
    world = World()
    peer = world.producer()
    half = world.send_half("k1", CUSTOM="value")
    world.tick(ms=6000)
    for _ in range(14):
        world.tick(ms=30_000)
    assert len(peer.notified) == 15
    assert world.log.of(EXHAUSTED) == []
    world.tick(ms=30_000)
    (given_up,) = world.log.of(EXHAUSTED)
    assert (given_up.body, given_up.queue_id) == (b"paid", 0)
    assert given_up.properties["REAL_TOPIC"] == "orders"
    assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert world.exhausted_topic_made == 1
    assert len(world.table) == 0
    assert world.ops()[-1] == ("15,", "x")
    late = world.end(half)
    assert late is not None and "given up" in (late.remark or "")
    assert world.log.commits() == []


def test_a_message_given_up_and_cut_off_from_its_op_record_is_not_given_up_again() -> None:
    world = World()
    world.producer()
    world.send_half("k1", TRANSACTION_CHECK_TIMES="14")
    world.tick(ms=6000)
    world.tick(ms=30_000)
    world.log.flush()
    world.tick(ms=30_000)
    assert len(world.log.of(EXHAUSTED)) == 1
    assert world.ops()[-1][1] == "x"
    cut = world.log.after_crash(len(world.log.records))
    cut.records.pop()
    cut._queues[b"RMQ_SYS_TRANS_OP_HALF_TOPIC", 0].pop()
    cut.flush()
    next_life = World(cut, delivered=Delivered.of(cut.records))
    next_life.producer()
    next_life.tick(ms=60_000)
    assert len(next_life.table) == 0
    assert len(next_life.log.of(EXHAUSTED)) == 1
    assert next_life.ops()[-1][1] == "x"


def test_a_half_message_older_than_the_log_keeps_files_is_given_up() -> None:
    world = World()
    world.send_half("k1")
    for _ in range(72):
        world.tick(ms=HOUR_MS)
    assert len(world.log.of(EXHAUSTED)) == 0
    for _ in range(13):
        world.tick(ms=HOUR_MS)
    assert len(world.log.of(EXHAUSTED)) == 1
    assert len(world.table) == 0


def test_without_a_producer_a_copy_is_put_back_twice_a_day_and_not_more() -> None:
    world = World()
    half = world.send_half("k1")
    for _ in range(48):
        world.tick(ms=HOUR_MS)
    copies = world.log.of(HALF)
    assert len(copies) == 5
    assert "TRANSACTION_CHECK_TIMES" not in copies[-1].properties
    assert [fates for _, fates in world.ops()] == ["s"] * 4
    answer = world.end(half)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(world.log.commits()) == 1


def test_a_half_message_whose_segment_may_be_removed_is_put_back() -> None:
    world = World()
    world.checks._retention = HalfRetention(72 * HOUR_MS, segment_bytes=10 * RECORD_BYTES)
    world.send_half("k1")
    world.tick()
    for _ in range(8):
        world.store(plain_draft())
    world.tick()
    assert len(world.log.of(HALF)) == 1
    world.store(plain_draft())
    world.tick()
    assert len(world.log.of(HALF)) == 2
    world.tick()
    assert len(world.log.of(HALF)) == 2


def plain_draft() -> MessageDraft:
    return MessageDraft(b"orders", 0, b"plain")


def test_a_half_message_that_the_log_lost_is_closed_and_does_not_wedge_the_others() -> None:
    world = World()
    peer = world.producer()
    world.send_half("lost")
    world.send_half("kept")
    world.tick()
    world.log.physical_min = RECORD_BYTES
    world.tick(ms=6000)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["kept"]
    assert [half.key for half in world.table] == ["kept"]


@pytest.mark.proves("kinds.transactions.no-wedge")
def test_a_question_that_fails_is_asked_again_later_and_the_others_go_on() -> None:
    world = World()

    class Failing(FakePeer):
        def notify(self, code, fields, body=b""):  # type: ignore[no-untyped-def]
            super().notify(code, fields, body)
            if fields["msgId"] == "bad":
                raise RuntimeError("no bytes go out")

    peer = Failing()
    world.producers.register("payers", ClientChannel(peer, "c", "JAVA", 479, 0))
    world.send_half("bad")
    world.send_half("good")
    world.tick(ms=6000)
    world.tick(ms=30_000)
    asked = [sent.fields["msgId"] for sent in peer.notified]
    assert asked == ["bad", "good", "bad", "good"]


@pytest.mark.proves("kinds.transactions.no-wedge")
def test_a_message_that_cannot_be_read_is_tried_again_and_the_others_go_on() -> None:
    world = World()
    peer = world.producer()
    bad = world.send_half("bad")
    world.send_half("good")
    world.tick()
    world.log.damaged.add(bad.physical_offset)
    world.tick(ms=6000)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["good"]
    assert len(world.table) == 2
    world.log.damaged.clear()
    world.tick(ms=30_000)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["good", "bad", "good"]


class Chilled:
    """Reads of half messages that have left memory, and what is brought in for them."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places: set[int] = set()
        self.asked: list[int] = []
        self._record = world.log.record
        monkeypatch.setattr(world.log, "record", self.record)

    def record(self, physical_offset: int) -> StoredMessage:
        if physical_offset in self.places:
            self.asked.append(physical_offset)
            raise NotInMemory([FilePart(Path("/store/commitlog/0"), physical_offset, 1)])
        return self._record(physical_offset)


def test_a_half_message_that_left_memory_is_asked_about_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    peer = world.producer()
    old, new = world.send_half("old"), world.send_half("new")
    world.tick()
    chilled = Chilled(world, monkeypatch)
    chilled.places.add(old.physical_offset)
    world.tick(ms=6000)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["new"]
    for _ in range(5):
        world.tick(ms=100)
    assert len(chilled.asked) == 6, "looked for ten times a second, and not more often"
    assert [half.checks for half in world.table] == [0, 1]
    chilled.places.clear()
    world.tick(ms=100)
    assert [sent.fields["msgId"] for sent in peer.notified] == ["new", "old"]
    assert [half.checks for half in world.table] == [1, 1]
    assert len(world.log.of(HALF)) == 4
    assert world.end(new) is not None


def test_an_old_half_message_that_left_memory_is_put_back_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    half = world.send_half("k1")
    world.tick()
    chilled = Chilled(world, monkeypatch)
    chilled.places.add(half.physical_offset)
    world.tick(ms=13 * HOUR_MS)
    assert chilled.asked and len(world.log.of(HALF)) == 1
    chilled.places.clear()
    world.tick(ms=100)
    assert len(world.log.of(HALF)) == 2


def test_half_messages_that_left_memory_before_they_were_taken_in_are_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    first, second = world.send_half("first"), world.send_half("second")
    chilled = Chilled(world, monkeypatch)
    chilled.places.add(second.physical_offset)
    world.tick()
    assert [half.key for half in world.table] == ["first"]
    chilled.places.clear()
    world.tick(ms=100)
    assert [half.key for half in world.table] == ["first", "second"]
    assert world.end(first) is not None


def test_a_store_that_takes_nothing_delays_questions_and_counts_none() -> None:
    world = World()
    peer = world.producer()
    world.send_half()
    world.tick()
    world.log.refusal = StoreReadOnly("the disk is full")
    world.tick(ms=6000)
    world.tick(ms=60_000)
    assert peer.notified == []
    world.log.refusal = None
    world.tick(ms=1000)
    assert len(peer.notified) == 1
    assert world.log.of(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"


def test_a_message_too_large_to_be_put_back_is_asked_about_where_it_is() -> None:
    world = World()
    peer = world.producer()
    world.send_half("big", body=b"x" * 100)  # type: ignore[arg-type]
    world.send_half("small")
    world.log.body_bytes_max = 50
    world.tick(ms=6000)
    assert {question_place(sent)[0] for sent in peer.notified} == {0, 2}
    for _ in range(14):
        world.tick(ms=30_000)
    assert len(peer.notified) == 30
    world.tick(ms=30_000)
    assert len(world.table) == 0
    assert len(world.log.of(EXHAUSTED)) == 1


def test_a_clock_set_back_delays_no_question() -> None:
    world = World()
    peer = world.producer()
    world.send_half()
    world.tick(ms=1000)
    world.tick(ms=-24 * HOUR_MS)
    world.tick(ms=4999)
    assert peer.notified == []
    world.tick(ms=1)
    assert len(peer.notified) == 1
    world.tick(ms=-24 * HOUR_MS)
    world.tick(ms=30_000)
    assert len(peer.notified) == 2


def test_a_restart_goes_on_with_the_count_and_the_interval() -> None:
    world = World()
    world.producer()
    world.send_half()
    world.tick(ms=6000)
    next_life = world.crashed()
    peer = next_life.producer()
    next_life.tick(ms=29_999)
    assert peer.notified == []
    next_life.tick(ms=1)
    assert next_life.log.of(HALF)[-1].properties["TRANSACTION_CHECK_TIMES"] == "2"
    answer = next_life.end(next_life.log.of(HALF)[0], COMMIT)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len(next_life.log.commits()) == 1


def test_a_copy_cut_off_from_its_op_record_is_no_second_transaction() -> None:
    world = World()
    world.producer()
    world.send_half()
    world.log.flush()
    world.tick(ms=6000)
    assert [message.topic for message in world.log.records][1:] == [
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    ]
    next_life = world.crashed(2)
    assert len(next_life.table) == 1
    next_life.tick()
    assert next_life.ops() == [("0,", "s")]
    next_life.end(next_life.log.of(HALF)[0], COMMIT)
    assert len(next_life.log.commits()) == 1
    assert len(next_life.table) == 0


def test_many_open_transactions_make_no_long_run() -> None:
    world = World()
    for number in range(3000):
        world.send_half(f"k{number}", group=f"g{number % 50}")
    while len(world.table) < 3000:
        world.tick()
    world.tick(ms=6000)
    world.tick()
    groups = {f"g{number}": None for number in range(60)}
    parked = world.checks._schedule.parked_among(groups)
    assert sorted(parked) == sorted(f"g{number}" for number in range(50))
    before = len(world.log.records)
    world.tick(ms=30_000)
    assert len(world.log.records) == before


# Resuming.


def test_a_given_up_message_is_resumed_with_a_new_count() -> None:
    world = World()
    world.producer()
    world.send_half("k1", TRANSACTION_CHECK_TIMES="15")
    world.tick()
    world.tick(ms=30_000)
    (given_up,) = world.log.of(EXHAUSTED)
    answer = resume(world, given_up.physical_offset)
    assert answer.code == ResponseCode.SUCCESS
    world.tick()
    (half,) = world.table
    assert half.checks == 0
    assert resume(world, given_up.physical_offset).code == ResponseCode.SUCCESS
    world.tick()
    assert len(world.table) == 1
    newest = world.log.of(HALF)[-1]
    next_life = world.crashed()
    assert len(next_life.table) == 1
    done = next_life.end(newest)
    assert done is not None and done.code == ResponseCode.SUCCESS
    refused = resume(next_life, given_up.physical_offset)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert "committed" in (refused.remark or "")


def test_only_half_messages_that_were_not_decided_are_resumed() -> None:
    world = World()
    half = world.send_half("k1")
    world.end(half, ROLLBACK)
    refused = resume(world, half.physical_offset)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    plain = world.store(plain_draft())
    assert resume(world, plain.physical_offset).code == ResponseCode.SYSTEM_ERROR
    assert resume(world, 17).code == ResponseCode.SYSTEM_ERROR


def resume(world: World, physical_offset: int) -> Response:
    fields = {"msgId": encode_offset_message_id(STORE_HOST, physical_offset)}
    answer = world.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, fields)
    assert answer is not None
    return answer


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", EXHAUSTED.decode()])
def test_a_record_in_the_body_of_a_message_is_not_resumed(topic: str) -> None:
    world = World()
    half = world.send_half()
    place = half.physical_offset + 100
    properties = encode_properties({"UNIQ_KEY": "evil", "PGROUP": "evil", "REAL_TOPIC": "orders"})
    world.log.forged[place] = replace(
        half, topic=topic, physical_offset=place, raw_properties=properties
    )
    assert resume(world, place).code == ResponseCode.SYSTEM_ERROR
    assert world.log.records == [half]


# The schedule by itself.


def test_entries_of_closed_transactions_do_not_pile_up() -> None:
    world = World()
    half = read_half(world.send_half())
    schedule = CheckSchedule(lambda half: True)
    schedule.observe(0)
    for _ in range(50_000):
        schedule.put(half, in_ms=HOUR_MS)
    assert len(schedule._heap) < 11_000
    schedule.observe(HOUR_MS)
    assert schedule.take_due(10) == [half]
    assert schedule.take_due(10) == []


def test_groups_whose_transactions_are_over_do_not_pile_up() -> None:
    world = World()
    open_half = read_half(world.send_half(group="open"))
    schedule = CheckSchedule(lambda half: half is open_half)
    schedule.observe(0)
    schedule.park(open_half)
    message = world.send_half(group="over")
    for number in range(50_000):
        half = read_half(message)
        half.group = f"g{number}"
        schedule.park(half)
    assert len(schedule._parked) < 11_000
    assert schedule.release("open", 10) == 1
    assert schedule.take_due(10) == [open_half]
