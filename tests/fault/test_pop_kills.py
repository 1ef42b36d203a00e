"""A broker is killed at a write of a pop, an ack, a changed time or a delivery: nothing is lost.

After the next start every message that was not acknowledged comes, and none that was. Messages
whose acknowledgement got no answer may come or not. Each comes once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contrail.errors import ContrailError
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalCluster
from tests.e2e.pop_asking import GROUP, TOPIC, Popped, popped, receipt_fields
from tests.e2e.raw_client import send_fields
from tests.interop.differential.raw import Answer, RawConnection

INVISIBLE_MS = 1000
COUNT = 12
# Everything that is in flight at the kill is due within this time.
SETTLED_S = 4.5
# A busy machine may take longer.
LATEST_S = 40.0
SETTINGS = {"contrailPopGraceMs": "0", "flushConsumerOffsetInterval": "300"}
QUICK = ("pop.written:3", "pop.redelivered:1")
POINTS = (
    "pop.before_write", "pop.written", "pop.committed", "pop.before_redelivery", "pop.redelivered",
    "pop.cursor_kept", "append.before_write", "append.after_write", "queue.rows_written",
    "state_file.tmp_created", "state_file.tmp_written", "state_file.tmp_synced",
    "state_file.backup_made", "state_file.renamed", "state_file.folder_synced",
    "timer_log.written", "timer_log.synced", "timer_wheel.written", "timer_check.written",
)  # fmt: skip
HITS = (1, 2, 3, 5, 8, 13)


class Died(Exception):
    """The broker was killed at its crash point."""


@dataclass
class Consumer:
    """Sends, pops and acknowledges, and notes what the broker promised."""

    address: str
    stored: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    # Acknowledged without an answer.
    unsure: set[bytes] = field(default_factory=set)
    came: Counter[bytes] = field(default_factory=Counter)

    def connect(self) -> None:
        self._connection = RawConnection(self.address, timeout_s=20)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Answer:
        try:
            return self._connection.ask(code, fields, body)
        except (OSError, ConnectionError) as error:
            raise Died from error

    def send(self, body: bytes) -> None:
        answer = self._ask(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), body)
        assert answer.code == ResponseCode.SUCCESS
        self.stored.add(body)

    def pop(self, count: int = 32, invisible_ms: int = INVISIBLE_MS) -> list[Popped]:
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": str(count),
            "invisibleTime": str(invisible_ms), "pollTime": "0",
            "bornTime": str(int(time.time() * 1000)), "initMode": "0",
        }  # fmt: skip
        answer = self._ask(RequestCode.POP_MESSAGE, fields)
        found = popped(
            ReceivedResponse(answer.code, 0, answer.remark, answer.fields, answer.body, 0, "JAVA")
        )
        self.came.update(one.body for one in found)
        return found

    def ack(self, one: Popped) -> None:
        self.unsure.add(one.body)
        answer = self._ask(RequestCode.ACK_MESSAGE, receipt_fields(one))
        assert answer.code == ResponseCode.SUCCESS
        self.unsure.discard(one.body)
        self.acked.add(one.body)

    def prolong(self, one: Popped, invisible_ms: int) -> None:
        fields = {**receipt_fields(one), "invisibleTime": str(invisible_ms)}
        answer = self._ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        assert answer.code == ResponseCode.SUCCESS

    def work(self) -> None:
        """Some of everything, until deliveries come again and after."""
        for number in range(COUNT):
            self.send(b"%d" % number)
        first = self.pop(4)
        self.ack(first[0])
        self.prolong(first[1], 2 * INVISIBLE_MS)
        second = self.pop(4)
        for one in second[:3]:
            self.ack(one)
        self.pop(2, 4 * INVISIBLE_MS)
        until_s = time.monotonic() + 3 * INVISIBLE_MS / 1000
        while time.monotonic() < until_s:
            for one in self.pop(2)[:1]:
                self.ack(one)
            time.sleep(0.1)


@pytest.mark.proves("kinds.pop.kills")
@pytest.mark.parametrize(
    "at",
    [
        *QUICK,
        *(
            pytest.param(f"{point}:{hit}", marks=pytest.mark.matrix)
            for point in POINTS
            for hit in HITS
            if f"{point}:{hit}" not in QUICK
        ),
    ],
)
def test_a_kill_at_any_write_loses_nothing_and_brings_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    with LocalCluster(folder=tmp_path, in_children=True, properties=SETTINGS) as cluster:
        (broker,) = cluster.brokers
        with RawConnection(broker.address) as connection:
            make(connection)
        broker.stop()
        monkeypatch.setenv("CONTRAIL_CRASH_AT", at)
        consumer = Consumer(broker.address)
        was_killed = died(lambda: live(broker.start, consumer))
        monkeypatch.delenv("CONTRAIL_CRASH_AT")
        if at in QUICK:
            assert was_killed, "the story passes this point"
        broker.kill()
        broker.start()
        judge(consumer)


def live(start: Callable[[], None], consumer: Consumer) -> None:
    start()
    consumer.connect()
    try:
        consumer.work()
    finally:
        consumer.close()


def died(life: Callable[[], None]) -> bool:
    try:
        life()
    except (Died, ContrailError, OSError):
        return True
    return False


def judge(consumer: Consumer) -> None:
    """Take everything that comes in the second life."""
    again: Counter[bytes] = Counter()
    consumer.connect()
    acked, unsure = set(consumer.acked), set(consumer.unsure)
    began_s = time.monotonic()

    def goes_on() -> bool:
        passed_s = time.monotonic() - began_s
        is_missing = not consumer.stored - acked - unsure <= again.keys()
        return passed_s < SETTLED_S or (is_missing and passed_s < LATEST_S)

    try:
        while goes_on():
            found = consumer.pop(invisible_ms=60_000)
            again.update(one.body for one in found)
            for one in found:
                consumer.ack(one)
            time.sleep(0.1)
    finally:
        consumer.close()
    assert not acked & again.keys(), "what was acknowledged never returns"
    assert consumer.stored - acked - unsure <= again.keys(), "everything else comes"
    assert set(again.values()) <= {1}, f"once: {again}"


def make(connection: RawConnection) -> None:
    topic = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert connection.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    body = b'{"groupName":"%s"}' % GROUP.encode()
    assert connection.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body).code == 0
