"""Transactions over the wire: half messages, ends, questions, restarts and kills."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from contrail.clock import Clock, ManualClock, SharedClock
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft
from contrail.model.message_id import decode_offset_message_id, encode_offset_message_id
from contrail.model.properties import encode_properties
from contrail.model.record import decode_record
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, send_fields

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
GROUP = "payers"
TOPIC = "orders"
EXHAUSTED = "TRANS_CHECK_MAX_TIME_TOPIC"


class Producer:
    """One connection that sends half messages, ends them, and is asked about them."""

    def __init__(self, cluster: LocalCluster, name: str = "p1") -> None:
        self._clock: Clock = cluster.clock
        self._client = RawClient(cluster.brokers[0].port)
        body = {"clientID": name, "producerDataSet": [{"groupName": GROUP}]}
        answer = self._client.call(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS, answer

    def half(self, key: str) -> ReceivedResponse:
        """Send a half message; the answer says where it is."""
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": key}
        text = encode_properties(properties).decode()
        born = str(self._clock.now_ms())
        fields = send_fields(TOPIC, a=GROUP, f="4", g=born, i=text)
        answer = self._client.call(RequestCode.SEND_MESSAGE_V2, fields, key.encode())
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    def end(self, half: ReceivedResponse, fate: int) -> ReceivedResponse:
        """End two-way, which no client does, to see the answer."""
        return self._client.call(RequestCode.END_TRANSACTION, end_fields(half, fate))

    def end_one_way(self, half: ReceivedResponse, fate: int) -> None:
        self.send(end_fields(half, fate))

    def send(self, fields: dict[str, str]) -> None:
        request = Request(RequestCode.END_TRANSACTION, 0, fields, flag=FLAG_ONE_WAY)
        self._client.send(encode_request(request))

    def question(self) -> Request:
        """The next question of the broker."""
        while True:
            frame = self._client.next_frame()
            if isinstance(frame, Request) and frame.code == RequestCode.CHECK_TRANSACTION_STATE:
                return frame

    def has_news(self) -> bool:
        return self._client.has_news()

    def answer(self, question: Request, fate: int) -> None:
        """As a client answers: with what the question named."""
        fields = question.fields
        self.send(
            {
                "producerGroup": GROUP,
                "tranStateTableOffset": fields["tranStateTableOffset"],
                "commitLogOffset": fields["commitLogOffset"],
                "commitOrRollback": str(fate),
                "fromTransactionCheck": "true",
                "msgId": fields["msgId"],
                "transactionId": fields["transactionId"],
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()


def end_fields(half: ReceivedResponse, fate: int) -> dict[str, str]:
    place = decode_offset_message_id(half.fields["msgId"]).physical_offset
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(place),
        "commitOrRollback": str(fate),
        "msgId": half.fields["transactionId"],
        "transactionId": half.fields["transactionId"],
    }


@contextmanager
def cluster_with(**properties: str) -> Iterator[tuple[LocalCluster, Asker]]:
    with LocalCluster(clock=ManualClock(), properties=properties) as cluster:
        asker = Asker(cluster)
        asker.make_topic(TOPIC, read=1, write=1)
        yield cluster, asker


def listed(asker: Asker) -> list[dict[str, object]]:
    answer = asker.done(RequestCode.LIST_TRANSACTIONS, {"limit": "1000"})
    found: list[dict[str, object]] = json.loads(answer.body)
    assert int(answer.fields["total"]) == len(found)
    return found


def delivered(asker: Asker) -> list[str]:
    """The keys of what consumers get; every body is its key."""
    return [body.decode() for body in asker.bodies(TOPIC)]


def advance_until_asked(cluster: LocalCluster, asker: Asker, checks: int) -> None:
    """Move the clock until the only open transaction was asked about so often."""

    def asked() -> bool:
        cluster.advance(ms=1000)
        return listed(asker)[0]["checks"] == checks

    eventually(asked, f"{checks} questions")


@pytest.mark.proves("kinds.transactions.fates")
def test_committed_messages_are_delivered_and_rolled_back_ones_are_not() -> None:
    with cluster_with() as (cluster, asker), Producer(cluster) as producer:
        halves = {key: producer.half(key) for key in ("committed", "back", "open")}
        assert delivered(asker) == []
        assert producer.end(halves["committed"], COMMIT).code == ResponseCode.SUCCESS
        assert producer.end(halves["back"], ROLLBACK).code == ResponseCode.SUCCESS
        assert delivered(asker) == ["committed"]
        assert [one["transactionId"] for one in listed(asker)] == ["open"]


@pytest.mark.proves("kinds.transactions.one-fate")
def test_the_first_fate_wins_and_is_answered_the_same_again() -> None:
    with cluster_with() as (cluster, asker), Producer(cluster) as producer:
        half = producer.half("k1")
        assert producer.end(half, ROLLBACK).code == ResponseCode.SUCCESS
        assert producer.end(half, ROLLBACK).code == ResponseCode.SUCCESS
        refused = producer.end(half, COMMIT)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        assert "rolled back" in (refused.remark or "")
        assert delivered(asker) == []


@pytest.mark.parametrize(("fate", "keys"), [(COMMIT, ["k1"]), (ROLLBACK, [])])
def test_an_unknown_transaction_is_asked_about_and_the_answer_decides(
    fate: int, keys: list[str]
) -> None:
    with cluster_with() as (cluster, asker), Producer(cluster) as producer:
        half = producer.half("k1")
        producer.end_one_way(half, UNKNOWN)
        advance_until_asked(cluster, asker, 1)
        question = producer.question()
        shown = decode_record(question.body)
        assert (shown.topic, shown.queue_id, shown.body) == (TOPIC, 0, b"k1")
        assert question.fields["transactionId"] == "k1"
        producer.answer(question, UNKNOWN)
        advance_until_asked(cluster, asker, 2)
        second = producer.question()
        assert second.fields["commitLogOffset"] != question.fields["commitLogOffset"]
        # The answer to the first question comes late, and counts all the same.
        producer.answer(question, fate)
        eventually(lambda: not listed(asker), "the decision")
        producer.answer(second, COMMIT + ROLLBACK - fate)
        assert producer.end(half, fate).code == ResponseCode.SUCCESS
        assert delivered(asker) == keys


@pytest.mark.proves("kinds.transactions.check-back")
def test_the_twin_of_a_producer_that_is_gone_is_asked() -> None:
    with cluster_with() as (cluster, asker):
        with Producer(cluster, "gone") as gone:
            gone.half("k1")
        cluster.advance(ms=1000)
        for _ in range(5):
            cluster.advance(ms=40_000)
        eventually(lambda: listed(asker)[0]["nextCheckMs"] == -1, "nobody to ask")
        assert listed(asker)[0]["checks"] == 0
        with Producer(cluster, "twin") as twin:
            cluster.advance(ms=1000)
            twin.answer(twin.question(), COMMIT)
            eventually(lambda: delivered(asker) == ["k1"], "the twin's commit")


@pytest.mark.proves("kinds.transactions.given-up")
def test_after_its_questions_a_transaction_is_given_up_and_can_be_resumed() -> None:
    with cluster_with(transactionCheckMax="2") as (cluster, asker), Producer(cluster) as producer:
        half = producer.half("k1")
        advance_until_asked(cluster, asker, 1)
        advance_until_asked(cluster, asker, 2)

        def given_up() -> bool:
            cluster.advance(ms=1000)
            return not listed(asker)

        eventually(given_up, "the message is given up")
        assert [one.body for one in asker.listed(EXHAUSTED)] == [b"k1"]
        refused = producer.end(half, COMMIT)
        assert refused.code == ResponseCode.ILLEGAL_OPERATION
        place = exhausted_id(asker)
        asker.done(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": place})
        eventually(lambda: len(listed(asker)) == 1, "it is open again")
        asker.done(RequestCode.DECIDE_TRANSACTION, {"transactionId": "k1", "fate": "commit"})
        assert delivered(asker) == ["k1"]


def exhausted_id(asker: Asker) -> str:
    """The offset message id of the one message in the exhausted topic."""
    (record,) = asker.listed(EXHAUSTED)
    return (record.store_host + record.physical_offset.to_bytes(8, "big")).hex().upper()


@pytest.mark.proves("kinds.transactions.by-hand")
def test_an_operator_commits_and_rolls_back_by_hand() -> None:
    with cluster_with() as (cluster, asker), Producer(cluster) as producer:
        first, second = producer.half("k1"), producer.half("k2")
        asker.done(RequestCode.DECIDE_TRANSACTION, {"transactionId": "k1", "fate": "commit"})
        fields = {"msgId": second.fields["msgId"], "fate": "rollback"}
        asker.done(RequestCode.DECIDE_TRANSACTION, fields)
        assert producer.end(first, ROLLBACK).code == ResponseCode.ILLEGAL_OPERATION
        assert delivered(asker) == ["k1"]
        assert listed(asker) == []


def forged_half(queue_offset: int, physical_offset: int) -> bytes:
    """A sound record of the half topic, as the body of a message may hold it."""
    properties = {"UNIQ_KEY": "evil", "PGROUP": GROUP, "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    draft = MessageDraft(
        b"RMQ_SYS_TRANS_HALF_TOPIC", 0, b"forged", encode_properties(properties), born_host=bytes(8)
    )
    return b"".join(build_run([draft], [queue_offset], physical_offset, 1, bytes(8), False))


def place_of(answer: ReceivedResponse) -> int:
    return decode_offset_message_id(answer.fields["msgId"]).physical_offset


def test_a_half_record_in_the_body_of_a_message_decides_nobodys_transaction() -> None:
    with cluster_with() as (cluster, asker), Producer(cluster) as producer:
        asker.make_topic("anybody", read=1, write=1)
        victim = producer.half("k1")
        queue_offset = int(victim.fields["queueOffset"])
        # The body of a message begins behind 88 bytes of its record.
        filler = bytes(len(forged_half(queue_offset, 0)))
        first, second = (place_of(asker.send("anybody", filler)) for _ in range(2))
        place = 2 * second - first + 88
        sent = asker.send("anybody", forged_half(queue_offset, place))
        assert place_of(sent) + 88 == place
        fields = {**end_fields(victim, COMMIT), "commitLogOffset": str(place)}
        refused = asker.ask(RequestCode.END_TRANSACTION, fields)
        assert (refused.code, refused.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"no half message is stored at {place}",
        )
        host = decode_offset_message_id(victim.fields["msgId"]).store_host
        forged_id = {"msgId": encode_offset_message_id(host, place)}
        for code in (RequestCode.DECIDE_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE):
            refused = asker.ask(code, {**forged_id, "fate": "rollback"})
            assert refused.code == ResponseCode.SYSTEM_ERROR
        assert [one["transactionId"] for one in listed(asker)] == ["k1"]
        assert producer.end(victim, COMMIT).code == ResponseCode.SUCCESS
        assert delivered(asker) == ["k1"]


def test_under_sync_flush_questions_name_what_can_be_read() -> None:
    with (
        cluster_with(flushDiskType="SYNC_FLUSH") as (cluster, asker),
        Producer(cluster) as producer,
    ):
        half = producer.half("k1")
        assert producer.end(half, COMMIT).code == ResponseCode.SUCCESS
        producer.half("k2")
        advance_until_asked(cluster, asker, 1)

        def is_asked() -> bool:
            cluster.advance(ms=100)
            return producer.has_news()

        # The question is put once its copy is on the disk, whenever that is.
        eventually(is_asked, "the question")
        producer.answer(producer.question(), COMMIT)
        eventually(lambda: delivered(asker) == ["k1", "k2"], "both commits")


def test_a_restart_keeps_every_state() -> None:
    with cluster_with(transactionCheckMax="1") as (cluster, asker):
        with Producer(cluster) as producer:
            given_up = producer.half("given-up")
            advance_until_asked(cluster, asker, 1)

            def gone() -> bool:
                cluster.advance(ms=1000)
                return not listed(asker)

            eventually(gone, "it is given up")
            committed, back = producer.half("committed"), producer.half("back")
            producer.end(committed, COMMIT)
            producer.end(back, ROLLBACK)
            producer.half("asked")
            advance_until_asked(cluster, asker, 1)
            opened = producer.half("open")
        cluster.brokers[0].stop()
        cluster.brokers[0].start()
        assert [one["transactionId"] for one in listed(asker)] == ["asked", "open"]
        assert [one["checks"] for one in listed(asker)] == [1, 0]
        with Producer(cluster) as producer:
            for half, fate in ((committed, ROLLBACK), (back, COMMIT), (given_up, COMMIT)):
                assert producer.end(half, fate).code == ResponseCode.ILLEGAL_OPERATION
            assert producer.end(committed, COMMIT).code == ResponseCode.SUCCESS
            assert producer.end(opened, COMMIT).code == ResponseCode.SUCCESS
        assert delivered(asker) == ["committed", "open"]
        assert [one.body for one in asker.listed(EXHAUSTED)] == [b"given-up"]


@pytest.mark.proves("kinds.transactions.one-fate")
def test_kills_forget_no_transaction_and_commit_none_twice(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    with LocalCluster(in_children=True, clock=clock, folder=tmp_path / "cluster") as cluster:
        asker = Asker(cluster)
        asker.make_topic(TOPIC, read=1, write=1)
        committed: set[str] = set()
        for life in range(3):
            with Producer(cluster) as producer:
                for number in range(20):
                    key = f"{life}-{number}"
                    half = producer.half(key)
                    if number % 4 == 0:
                        assert producer.end(half, COMMIT).code == ResponseCode.SUCCESS
                        committed.add(key)
                    elif number % 4 == 1:
                        assert producer.end(half, ROLLBACK).code == ResponseCode.SUCCESS
                    elif number % 4 == 2:
                        # Nobody knows whether this one is read before the kill.
                        producer.end_one_way(half, COMMIT)
                        committed.add(key)
                if life == 1:
                    cluster.advance(ms=10_000)
                    producer.question()
            cluster.brokers[0].kill()
            cluster.brokers[0].start()
        with Producer(cluster) as producer:
            open_count = len(listed(asker))
            assert open_count >= 3 * 5
            cluster.advance(ms=31_000)
            for _ in range(open_count):
                question = producer.question()
                fate = COMMIT if question.fields["msgId"] in committed else ROLLBACK
                producer.answer(question, fate)
            eventually(lambda: not listed(asker), "all are decided")
        found = Counter(delivered(asker))
        assert set(found) == committed
        assert set(found.values()) == {1}
