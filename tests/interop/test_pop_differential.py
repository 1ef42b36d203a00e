"""The same pops sent to Apache's broker and to Contrail: the same answers.

Each story is told to both. Its answers are compared without what differs by nature: times, and
which of the eight revive queues a pop got.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Thread

import pytest

from contrail.protocol.bodies.pop import BatchAck, BatchAcks, encode_batch_acks
from contrail.protocol.codes import RequestCode
from contrail.protocol.pop_info import read_order_counts
from contrail.testing import LocalCluster, eventually
from tests.e2e.asking import messages
from tests.e2e.pop_asking import Popped, popped, receipt_fields
from tests.e2e.raw_client import send_fields
from tests.interop.apache_cluster import ApacheCluster
from tests.interop.differential.raw import Answer, RawConnection
from tests.interop.test_pop import SETTINGS, as_received

GROUP = "billing"
INVISIBLE_MS = 3000
# Apache delivers again up to 6 s late.
TIMEOUT_S = 40.0


@dataclass
class Side:
    """One broker, as a story asks it; ``told`` are the answers to compare."""

    address: str
    told: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = RawConnection(self.address)

    def ask(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> Answer:
        return self.connection.ask(code, fields, body)

    def tell(self, *what: object) -> None:
        self.told.append(what)

    def make(self, topic: str, group: str = GROUP, queues: int = 1) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues),
            "writeQueueNums": str(queues), "perm": "6", "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
        body = json.dumps({"groupName": group}).encode()
        assert self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0

    def store(self, topic: str, *bodies: bytes, **changes: str) -> None:
        for body in bodies:
            assert (
                self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, **changes), body).code == 0
            )

    def change(self, **settings: str) -> None:
        text = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        assert self.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, text).code == 0

    def fields(self, topic: str, **changes: str) -> dict[str, str]:
        return {
            "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": "32",
            "invisibleTime": "60000", "pollTime": "0", "bornTime": str(int(time.time() * 1000)),
            "initMode": "0", **changes,
        }  # fmt: skip

    def pop(self, topic: str, **changes: str) -> list[Popped]:
        """Pop, and tell of the answer."""
        answer = self.ask(RequestCode.POP_MESSAGE, self.fields(topic, **changes))
        names = ("invisibleTime", "restNum", "startOffsetInfo", "msgOffsetInfo")
        in_order = answer.fields.get("reviveQid") == "999"
        counts = read_order_counts(answer.fields.get("orderCountInfo", ""))
        found = popped(as_received(answer))
        self.tell(
            answer.code, [answer.fields.get(name) for name in names], in_order, counts,
            [(one.body, one.message.reconsume_times, one.receipt.retry_flag) for one in found],
        )  # fmt: skip
        return found

    def refused(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        """Ask, and tell of the code."""
        self.tell(code, self.ask(code, fields, body).code)

    def ack(self, one: Popped, of: str, **changes: str) -> None:
        fields = {**receipt_fields(one, GROUP, of), **changes}
        self.refused(RequestCode.ACK_MESSAGE, fields)

    def prolong(self, one: Popped, of: str, invisible_ms: int, **changes: str) -> Popped:
        fields = {**receipt_fields(one, GROUP, of), "invisibleTime": str(invisible_ms), **changes}
        answer = self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        same_time = answer.fields.get("popTime") == str(one.receipt.pop_time_ms)
        self.tell(answer.code, same_time, "" if answer.code else sorted(answer.fields))
        if answer.code or not answer.fields:
            return one
        receipt = one.receipt._replace(
            start_offset=one.receipt.queue_offset,
            pop_time_ms=int(answer.fields["popTime"]),
            invisible_ms=int(answer.fields["invisibleTime"]),
        )
        return one._replace(receipt=receipt)

    def again(self, topic: str, count: int) -> list[Popped]:
        """Pop until that many came again."""
        found: list[Popped] = []

        def took() -> bool:
            fields = self.fields(topic)
            found.extend(popped(as_received(self.ask(RequestCode.POP_MESSAGE, fields))))
            return len(found) >= count

        eventually(took, lambda: f"{found} of {count}", timeout_s=TIMEOUT_S, pause_s=0.2)
        return sorted(found, key=lambda one: one.body)

    def offset(self, topic: str) -> str | None:
        fields = {"consumerGroup": GROUP, "topic": topic, "queueId": "0"}
        return self.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields).fields.get("offset")

    def tell_offset(self, topic: str, wanted: str) -> None:
        """The group's offset, once both brokers had time to commit it."""
        eventually(lambda: self.offset(topic) == wanted, lambda: f"{self.offset(topic)}")
        self.tell("offset", wanted)


@pytest.fixture(scope="module")
def sides() -> Iterator[tuple[str, str]]:
    with ExitStack() as stack:
        apache = stack.enter_context(ApacheCluster(brokers=1, properties=SETTINGS))
        ours = stack.enter_context(LocalCluster(in_children=True, properties=SETTINGS))
        yield apache.brokers[0].address, ours.brokers[0].address


def compare(sides: tuple[str, str], story: Callable[[Side], None]) -> None:
    apache, ours = (Side(address) for address in sides)
    with apache.connection, ours.connection:
        story(apache)
        story(ours)
    assert ours.told == apache.told
    assert apache.told, "the story tells something"


def starts(side: Side) -> None:
    """Points 1, 2 and 3: strings, where a group begins, filters that move offsets."""
    side.make("starts", queues=3)
    side.store("starts", b"0", b"1", b"2", e="2")
    side.pop("starts", queueId="2", maxMsgNums="2")
    side.pop("starts", queueId="2")
    side.pop("starts", queueId="2")
    side.make("begin", "memory")
    side.store("begin", b"0", b"1", b"2")
    side.pop("begin", consumerGroup="memory", initMode="1")
    side.change(initPopOffsetByCheckMsgInMem="false")
    side.make("begin", "last")
    side.pop("begin", consumerGroup="last", initMode="1")
    side.change(initPopOffsetByCheckMsgInMem="true")
    side.make("filtered")
    for number in range(6):
        tag = "even" if number % 2 == 0 else "odd"
        properties = f"TAGS\x01{tag}\x02n\x01{number}\x02UNIQ_KEY\x01{number:032d}\x02"
        side.store("filtered", b"%d" % number, i=properties)
    side.pop("filtered", exp="even", maxMsgNums="2")
    side.pop("filtered", exp="n > 3 AND n <> 4", expType="SQL92")
    side.tell_offset("filtered", "6")
    side.store("filtered", b"6", i="TAGS\x01odd\x02UNIQ_KEY\x01" + "9" * 32 + "\x02")
    side.pop("filtered", exp="even")
    side.tell_offset("filtered", "7")


def refusals(side: Side) -> None:
    """Points 4 and 7: each refusal and their order, acks of places that are not there."""
    side.make("refusals")
    side.store("refusals", b"0", b"1")
    pop = RequestCode.POP_MESSAGE
    for changes in (
        {"bornTime": "1", "maxMsgNums": "33"},
        {"maxMsgNums": "33", "topic": "none"},
        {"topic": "none", "queueId": "9"},
        {"queueId": "9", "consumerGroup": "none"},
        {"exp": "a >", "expType": "SQL92"},
    ):
        side.refused(pop, {**side.fields("refusals"), **changes})
    (one, two) = side.pop("refusals")
    side.ack(one, "refusals", topic="none")
    side.ack(one, "refusals", queueId="4")
    side.ack(one, "refusals", offset="3")
    side.ack(one, "refusals", offset="2")
    side.ack(one, "refusals")
    side.ack(one, "refusals")
    side.ack(two, "refusals", consumerGroup="another")
    side.prolong(two, "refusals", 1000, offset="2")
    side.prolong(two, "refusals", 1000, topic="none")
    side.refused(RequestCode.BATCH_ACK_MESSAGE, {})
    gone = BatchAck(GROUP, "none", "0", 0, 0, 0, 1, 2, (0,))
    side.refused(RequestCode.BATCH_ACK_MESSAGE, {}, encode_batch_acks(BatchAcks("b", [gone])))
    for code in (RequestCode.NOTIFICATION, RequestCode.PEEK_MESSAGE):
        side.refused(code, {**side.fields("refusals"), "topic": "none"})
        side.refused(code, {**side.fields("refusals"), "queueId": "9"})


def redelivery(side: Side) -> None:
    """Points 5, 6, 7 and 8: one delivery more of what is not acknowledged, and of nothing else."""
    topic = "redelivery"
    side.make(topic)
    packed = zlib.compress(b"coffee" * 100)
    side.store(topic, b"0", b"1", b"2", b"3", b"4")
    side.store(topic, packed, f="1", h="7", g="1234")
    invisible = {"invisibleTime": str(INVISIBLE_MS)}
    first = side.pop(topic, **invisible, maxMsgNums="5")
    receipt = first[0].receipt
    acks = BatchAck(
        GROUP, topic, "0", 0, 0, receipt.revive_queue, receipt.pop_time_ms, INVISIBLE_MS, (0, 3, 40)
    )
    body = encode_batch_acks(BatchAcks(receipt.broker_name, [acks]))
    side.refused(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    side.ack(first[2]._replace(receipt=first[2].receipt._replace(broker_name="other")), topic)
    longer = side.prolong(first[4], topic, 20_000)
    side.pop(topic, **invisible)
    found = side.again(topic, 3)
    for one in found:
        message = one.message
        side.tell(
            one.body, message.topic, message.reconsume_times, message.flag, message.sys_flag & 1,
            sorted(set(message.properties) - {"POP_CK"}), one.receipt.retry_flag,
            message.properties["ORIGIN_GROUP"], one.receipt.queue_offset >= 0,
        )  # fmt: skip
        side.ack(one, topic)
    assert any(one.message.born_timestamp_ms == 1234 for one in found)
    side.ack(longer, topic)
    side.tell([one.body for one in side.pop(topic)])


def ordered(side: Side) -> None:
    """Point 9: a batch blocks, is acknowledged out of order, expires, is repeated."""
    topic, order = "ordered", {"order": "true", "queueId": "0"}
    side.make(topic)
    side.store(topic, b"0", b"1", b"2", b"3")
    first = side.pop(topic, **order, attemptId="a", maxMsgNums="2")
    side.pop(topic, **order, attemptId="b")
    side.pop(topic, **order)
    side.pop(topic, **order, attemptId="a", maxMsgNums="3")
    side.ack(first[0], topic)
    side.tell(side.offset(topic))
    first = side.pop(topic, **order, attemptId="a", maxMsgNums="2")
    side.ack(first[1], topic, offset="3")
    side.ack(first[1], topic)
    side.tell(side.offset(topic))
    side.pop(topic, **order, attemptId="c")
    side.ack(first[0], topic)
    side.tell(side.offset(topic))
    side.ack(first[0], topic)
    again = side.pop(topic, **order, maxMsgNums="1", invisibleTime="1")
    time.sleep(0.05)
    side.pop(topic, **order, maxMsgNums="2", attemptId="d")
    side.prolong(again[0], topic, 1000)
    last = side.pop(topic, **order, maxMsgNums="2", attemptId="d")
    moved = side.prolong(last[0], topic, 1)
    side.tell(moved.receipt.pop_time_ms == last[0].receipt.pop_time_ms)
    side.pop(topic, **order, attemptId="e")
    side.prolong(last[1], topic, 1)
    time.sleep(0.05)
    last = side.pop(topic, **order, attemptId="e")
    receipt = last[0].receipt
    acks = BatchAck(GROUP, topic, "0", 2, 0, 999, receipt.pop_time_ms, 60_000, (2, 3))
    body = encode_batch_acks(BatchAcks(receipt.broker_name, [acks]))
    side.refused(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    side.tell(side.offset(topic))
    side.prolong(last[0], topic, 1000)
    side.pop(topic, **order)


def looks(side: Side) -> None:
    """Points 11 and 12: notifications, peeks, polls and their limits."""
    topic = "looks"
    side.make(topic)

    def notified(**changes: str) -> None:
        answer = side.ask(RequestCode.NOTIFICATION, side.fields(topic, **changes))
        side.tell(answer.code, sorted(answer.fields.items()))

    def peeked(**changes: str) -> None:
        answer = side.ask(RequestCode.PEEK_MESSAGE, side.fields(topic, **changes))
        bodies = [one.body for one in messages(as_received(answer))] if answer.body else []
        side.tell(answer.code, sorted(answer.fields.items()), bodies)

    notified()
    peeked()
    notified(pollTime="200")
    side.store(topic, b"0", b"1", b"2")
    notified()
    peeked(maxMsgNums="2")
    peeked(maxMsgNums="2")
    (one,) = side.pop(topic, order="true", queueId="0", attemptId="a", maxMsgNums="1")
    notified(order="true", attemptId="a")
    notified(order="true", attemptId="b")
    side.ack(one, topic)
    notified(order="true", attemptId="b")
    side.pop(topic)
    notified()
    peeked()
    answers: list[Answer] = []

    def wait() -> None:
        with RawConnection(side.address) as other:
            answers.append(other.ask(RequestCode.POP_MESSAGE, side.fields(topic, pollTime="9000")))

    waiting = Thread(target=wait)
    waiting.start()
    info = side.fields(topic)
    eventually(
        lambda: side.ask(RequestCode.POLLING_INFO, info).fields["pollingNum"] == "1", "one waits"
    )
    side.change(popPollingSize="0")
    side.refused(RequestCode.POP_MESSAGE, side.fields(topic, pollTime="3000"))
    side.change(popPollingSize="1024")
    begun_s = time.monotonic()
    side.store(topic, b"3")
    waiting.join()
    assert time.monotonic() - begun_s < 2, "it is woken"
    (woken,) = answers
    side.tell(woken.code, [one.body for one in messages(as_received(woken))])


STORIES = (starts, refusals, redelivery, ordered, looks)


@pytest.mark.matrix
@pytest.mark.proves("kinds.pop.differential")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_both_brokers_answer_alike(sides: tuple[str, str], story: Callable[[Side], None]) -> None:
    compare(sides, story)
