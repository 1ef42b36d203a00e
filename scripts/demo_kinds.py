"""The part of the demo about delayed, retried, transactional and ordered messages.

Hours pass here in a moment: the broker's clock is the demo's, and it is moved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from contrail.clock import SharedClock
from contrail.model.message import StoredMessage
from contrail.model.properties import encode_properties
from contrail.model.record import split_record_run
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.testing import LocalCluster

TOPIC = "reminders"
GROUP = "demo-readers"
COMMIT, ROLLBACK = "8", "12"
PATIENCE_S = 30.0
Row = tuple[str, str, bool]


class Desk:
    """A client that sends to one broker and reads its messages."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.address = cluster.brokers[0].address
        self._sent = 0

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> ReceivedResponse:
        return self.cluster.caller.call(self.address, code, fields, body)

    def send(self, body: str, **properties: str) -> ReceivedResponse:
        self._sent += 1
        text = encode_properties({"UNIQ_KEY": f"7F000002{self._sent:024X}", **properties}).decode()
        header = {"a": "demo-producers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0"}
        header |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": text}
        return self.ask(RequestCode.SEND_MESSAGE_V2, header, body.encode())

    def read(self, topic: str = TOPIC) -> list[StoredMessage]:
        """All messages in the only used queue of a topic."""
        header = {"consumerGroup": GROUP, "topic": topic, "queueId": "0", "queueOffset": "0"}
        header |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subscription": "*"}
        header |= {"suspendTimeoutMillis": "0", "subVersion": "0"}
        return list(split_record_run(self.ask(RequestCode.PULL_MESSAGE, header).body))

    def bodies(self, topic: str = TOPIC) -> list[str]:
        return [message.body.decode() for message in self.read(topic)]

    def wait_for(self, is_so: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so() and time.monotonic() < deadline:
            time.sleep(0.02)
        return is_so()

    def end(self, half: ReceivedResponse, fate: str) -> None:
        """Say what becomes of a half message."""
        message_id = half.fields["msgId"]
        fields = {"producerGroup": "demo-producers", "commitOrRollback": fate}
        fields |= {"tranStateTableOffset": half.fields["queueOffset"], "msgId": message_id}
        fields |= {"commitLogOffset": str(int(message_id[-16:], 16))}
        fields |= {"fromTransactionCheck": "false", "transactionId": half.fields["transactionId"]}
        self.ask(RequestCode.END_TRANSACTION, fields)

    def send_back(self, message: StoredMessage) -> int:
        """Say that a message could not be consumed; two retries are enough."""
        fields = {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": "0"}
        fields |= {"originTopic": TOPIC, "unitMode": "false", "maxReconsumeTimes": "2"}
        return self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code


def show_kinds(folder: Path, properties: dict[str, str]) -> Iterable[Row]:
    """Delayed, timed, transactional and failing messages, over a kill -9 of the broker."""
    clock = SharedClock(folder / "clock")
    cluster = LocalCluster(
        folder=folder / "kinds", in_children=True, clock=clock, properties=properties
    )
    with cluster:
        desk = Desk(cluster)
        yield transactions(desk)
        yield from waiting(desk)
        yield failing(desk)


def transactions(desk: Desk) -> Row:
    paid = desk.send("paid", TRAN_MSG="true", PGROUP="demo-producers")
    cancelled = desk.send("cancelled", TRAN_MSG="true", PGROUP="demo-producers")
    hidden = desk.bodies() == []
    desk.end(paid, COMMIT)
    desk.end(cancelled, ROLLBACK)
    # The first fate stands.
    desk.end(cancelled, COMMIT)
    holds = desk.wait_for(lambda: desk.bodies() == ["paid"]) and hidden
    return "two transactions: one committed, one rolled back", "1 message", holds


def waiting(desk: Desk) -> Iterable[Row]:
    desk.send("in ten seconds", DELAY="3")
    desk.send("in an hour", TIMER_DELAY_SEC="3600")
    regretted = desk.send("never", TIMER_DELAY_SEC="3600")
    handle = regretted.fields["recallHandle"]
    fields = {"topic": TOPIC, "recallHandle": handle, "producerGroup": "demo-producers"}
    recalled = desk.ask(RequestCode.RECALL_MESSAGE, fields | {"bname": "broker-a"}).code
    desk.cluster.brokers[0].kill()
    desk.cluster.brokers[0].start()
    early = desk.bodies() != ["paid"]
    desk.cluster.advance(ms=10_000)
    arrived = desk.wait_for(lambda: desk.bodies()[1:] == ["in ten seconds"])
    yield "delay level 3, over a kill -9", "delivered once, not early", arrived and not early
    desk.cluster.advance(hours=1)
    wanted = ["in ten seconds", "in an hour"]
    arrived = desk.wait_for(lambda: desk.bodies()[1:] == wanted) and recalled == 0
    yield "two timers of an hour, one of them recalled", "1 message", arrived


def failing(desk: Desk) -> Row:
    """The first message always fails: two retries, then the dead letters."""
    codes = [desk.send_back(desk.read()[0])]
    for retry in range(2):
        desk.cluster.advance(ms=60_000)
        desk.wait_for(lambda count=retry: len(desk.read(f"%RETRY%{GROUP}")) > count)  # type: ignore[misc]
        codes.append(desk.send_back(desk.read(f"%RETRY%{GROUP}")[retry]))
    dead = f"%DLQ%{GROUP}"
    holds = desk.wait_for(lambda: desk.bodies(dead) == ["paid"]) and codes == [0, 0, 0]
    return "a message that always fails: two retries", "then 1 dead letter", holds
