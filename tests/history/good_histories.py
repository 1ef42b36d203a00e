"""Histories as a broker without faults would write them, from a source of randomness.

A small model of a broker: queues, messages that wait, half messages, retries, kills, a clock that
is moved. It is written apart from the checker's rules, so that each tests the other.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from tests.history.events import (
    BrokerKilled,
    BrokerStarted,
    Checked,
    ClockMoved,
    ConsumerCrashed,
    Decision,
    Drained,
    Ended,
    EndInvoked,
    Event,
    Invocation,
    Kind,
    LeaderChanged,
    Outcome,
    Partitioned,
    Rebalanced,
    RecallInvoked,
    Received,
    ReplyInvoked,
    ReplyReceived,
    SendBackInvoked,
    SendInvoked,
    StillOpen,
)
from tests.history.violations import FAILOVER_REREAD_MS

GROUP = "readers"
TOPIC = "orders"
RETRY_TOPIC = f"%RETRY%{GROUP}"
DEAD_LETTERS = f"%DLQ%{GROUP}"
MEMBERS = ("n0", "n1", "n2")
RECONSUME_TIMES_MAX = 2
QUEUES = 3
CHECK_AFTER_MS = 6_000
_RETRY_DELAY_MS = (10_000, 30_000)
_DELAYS_MS = (1_000, 5_000, 60_000)


@dataclass(frozen=True)
class Stored:
    key: str
    body: str
    stored_ms: int
    reconsume_times: int = 0


@dataclass
class Waiting:
    """A message that is to be stored when its time has come."""

    due_ms: int
    topic: str
    queue_id: int
    key: str
    body: str
    reconsume_times: int = 0
    level: int = -1

    def put_back(self, now_ms: int) -> None:
        """The clock has been put back: the delay of a level passes once more at most."""
        if self.level > 0:
            self.due_ms = min(self.due_ms, now_ms + self.level)


@dataclass
class Half:
    send: SendInvoked
    due_ms: int
    decision: Decision
    checks: int = 0


@dataclass
class ModelBroker:
    """Writes ``events`` as its methods are called."""

    random: random.Random
    now_ms: int = 1_000_000_000
    events: list[Event] = field(default_factory=list)
    queues: dict[tuple[str, int], list[Stored]] = field(default_factory=lambda: defaultdict(list))
    waiting: list[Waiting] = field(default_factory=list)
    halves: dict[str, Half] = field(default_factory=dict)
    read: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    # The time of each queue's messages' last receipt by the group.
    read_ms: dict[tuple[str, int], dict[int, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    reader: str = "reader-1"
    leader: str = "n0"
    term: int = 1
    is_up: bool = True
    _op: int = 0
    _key: int = 0

    def __post_init__(self) -> None:
        self.events.append(BrokerStarted(self.now_ms))

    # Operations.

    def send_plain(self) -> None:
        sharding_key = self.random.choice(("", "red", "green"))
        queue_id = {"red": 0, "green": 1}.get(sharding_key, self.random.randrange(QUEUES))
        kind = Kind.ORDERED if sharding_key else Kind.NORMAL
        send = self._send(kind, queue_id, sharding_key=sharding_key)
        if not self._end_plain(send) and self.random.random() < 0.7:
            # A producer tries again with the same key: this may make a second copy.
            self._start()
            again = self._send(kind, queue_id, key=send.key, sharding_key=sharding_key)
            self._end_plain(again)

    def _end_plain(self, send: SendInvoked) -> bool:
        queue = self.queues[TOPIC, send.queue_id]
        happens, outcome = self._fate()
        if happens:
            queue.append(Stored(send.key, send.body, self.now_ms))
        return self._end(send, outcome, send.queue_id, len(queue) - 1)

    def send_delayed(self) -> None:
        delay_ms = self.random.choice(_DELAYS_MS)
        due_ms = self.now_ms + delay_ms
        send = self._send(Kind.DELAY, 0, not_before_ms=due_ms, delay_ms=delay_ms)
        self._wait(send, delay_ms)

    def send_timer(self) -> None:
        due_ms = self.now_ms + self.random.randrange(1, 100_000)
        send = self._send(Kind.TIMER, 1, not_before_ms=due_ms)
        self._wait(send, -1)
        if self.is_up and self.random.random() < 0.3:
            self._recall(send.key)

    def _wait(self, send: SendInvoked, level: int) -> None:
        happens, outcome = self._fate()
        if happens:
            self.waiting.append(
                Waiting(send.not_before_ms, TOPIC, send.queue_id, send.key, send.body, 0, level)
            )
        self._end(send, outcome, send.queue_id, send.op)

    def _recall(self, key: str) -> None:
        recall = RecallInvoked(self.now_ms, self._next_op(), key)
        self.events.append(recall)
        happens, outcome = self._fate()
        if happens:
            self.waiting = [each for each in self.waiting if each.key != key]
        self._end(recall, outcome)

    def send_half(self) -> None:
        send = self._send(Kind.TRANSACTION, 2)
        decision = self.random.choice(list(Decision))
        happens, outcome = self._fate()
        if happens:
            self.halves[send.key] = Half(send, self.now_ms + CHECK_AFTER_MS, decision)
        if self._end(send, outcome, 0, send.op) and decision is not Decision.UNKNOWN:
            self._end_half(send.key, decision)

    def _end_half(self, key: str, decision: Decision) -> None:
        end = EndInvoked(self.now_ms, self._next_op(), key, decision)
        self.events.append(end)
        happens, outcome = self._fate()
        if happens:
            half = self.halves.pop(key)
            if decision is Decision.COMMIT:
                stored = Stored(key, half.send.body, self.now_ms)
                self.queues[TOPIC, half.send.queue_id].append(stored)
        self._end(end, outcome)

    def reply(self) -> None:
        key = self._next_key()
        self._start()
        reply = ReplyInvoked(self.now_ms, self._next_op(), key, "asker", f"body of {key}")
        self.events.append(reply)
        happens, outcome = self._fate()
        if happens:
            self.events.append(ReplyReceived(self.now_ms, key, "asker", reply.body))
        self._end(reply, outcome)

    def work(self) -> None:
        """The broker's own work: deliver due messages, check open half messages."""
        if not self.is_up:
            return
        self._tick()
        self._deliver()
        for half in list(self.halves.values()):
            if self.is_up and half.due_ms <= self.now_ms and half.checks < 3:
                self._check(half)

    def _deliver(self) -> None:
        waiting, self.waiting = self.waiting, []
        blocked: set[int] = set()
        for each in waiting:
            # A level is a queue: no message overtakes.
            if each.level in blocked or each.due_ms > self.now_ms:
                self.waiting.append(each)
                blocked |= {each.level} - {-1}
                continue
            stored = Stored(each.key, each.body, self.now_ms, each.reconsume_times)
            self.queues[each.topic, each.queue_id].append(stored)

    def _check(self, half: Half) -> None:
        half.checks += 1
        half.due_ms = self.now_ms + 30_000
        self.events.append(Checked(self.now_ms, half.send.key, half.checks))
        if half.checks > 1 and half.decision is not Decision.UNKNOWN:
            self._end_half(half.send.key, half.decision)

    def consume(self) -> None:
        """A consumer reads on, and sends some messages back."""
        if not self.is_up:
            return
        for topic, queue_id in [*((TOPIC, n) for n in range(QUEUES)), (RETRY_TOPIC, 0)]:
            self._consume_queue(topic, queue_id)

    def _consume_queue(self, topic: str, queue_id: int) -> None:
        queue = self.queues[topic, queue_id]
        while self.read[topic, queue_id] < len(queue):
            at = self.read[topic, queue_id]
            self._receive(GROUP, self.reader, topic, queue_id, at)
            self.read_ms[topic, queue_id][at] = self.now_ms
            self.read[topic, queue_id] += 1
            if self.is_up and self.random.random() < 0.4:
                self._send_back(topic, queue[at])

    def _send_back(self, topic: str, stored: Stored) -> None:
        times = stored.reconsume_times
        delay_ms = -1 if self.random.random() < 0.1 else _RETRY_DELAY_MS[min(times, 1)]
        asked = SendBackInvoked(
            self.now_ms,
            self._next_op(),
            stored.key,
            GROUP,
            topic,
            times,
            RECONSUME_TIMES_MAX,
            delay_ms,
        )
        self.events.append(asked)
        happens, outcome = self._fate()
        if happens and asked.is_last:
            dead = Stored(stored.key, stored.body, self.now_ms, times + 1)
            self.queues[DEAD_LETTERS, 0].append(dead)
        elif happens:
            due_ms = self.now_ms + delay_ms
            self.waiting.append(
                Waiting(due_ms, RETRY_TOPIC, 0, stored.key, stored.body, times + 1, delay_ms)
            )
        self._end(asked, outcome)

    def crash_consumer(self) -> None:
        self.events.append(ConsumerCrashed(self.now_ms, GROUP))
        self._read_again()

    def rebalance(self) -> None:
        """Another reader takes over, from the last stored offset."""
        self.events.append(Rebalanced(self.now_ms, GROUP))
        self.reader = self.random.choice(("reader-1", "reader-2"))
        self._read_again()

    def _read_again(self, since_ms: int | None = None) -> None:
        """From any place, or from one behind all messages that were first read before a time."""
        for queue in list(self.read):
            end = self.read[queue]
            lowest = 0
            if since_ms is not None:
                times = self.read_ms[queue]
                lowest = next((at for at in range(end, 0, -1) if times[at - 1] < since_ms), 0)
            self.read[queue] = self.random.randint(lowest, end)

    def move_clock(self) -> None:
        before_ms = self.now_ms
        self.now_ms += self.random.choice((1_000, 7_000, 100_000, 3_600_000, -5_000, -3_600_000))
        self.events.append(ClockMoved(self.now_ms, before_ms))
        if self.now_ms < before_ms:
            for each in self.waiting:
                each.put_back(self.now_ms)

    def kill(self) -> None:
        if self.is_up:
            self.is_up = False
            self.events.append(BrokerKilled(self.now_ms))

    def fail_over(self) -> None:
        """The leader is lost or cut off, and another member leads; a group may read again a bit."""
        if not self.is_up:
            return
        rest = tuple(name for name in MEMBERS if name != self.leader)
        is_cut = self.random.random() < 0.5
        if is_cut:
            self.events.append(Partitioned(self.now_ms, ((self.leader,), rest)))
        lost_ms = self.now_ms
        self.events.append(LeaderChanged(self.now_ms, self.term, ""))
        self.now_ms += self.random.randint(1_000, 2_000)
        self.term += self.random.randint(1, 3)
        self.leader = self.random.choice(rest)
        self.events.append(LeaderChanged(self.now_ms, self.term, self.leader))
        if is_cut:
            self.events.append(Partitioned(self.now_ms))
        self._read_again(since_ms=lost_ms - FAILOVER_REREAD_MS)

    def finish(self) -> list[Event]:
        """Let all messages come due, and read all queues twice."""
        self._start()
        while self.waiting:
            latest_ms = max(each.due_ms for each in self.waiting)
            if latest_ms > self.now_ms:
                self.events.append(ClockMoved(latest_ms, self.now_ms))
                self.now_ms = latest_ms
            self.work()
        self.events += [StillOpen(self.now_ms, key) for key in self.halves]
        for (topic, queue_id), queue in sorted(self.queues.items()):
            for at in range(self.read[topic, queue_id], len(queue)):
                self._receive(GROUP, self.reader, topic, queue_id, at)
            for at in range(len(queue)):
                self._receive("auditors", "auditor-1", topic, queue_id, at)
            for group in (GROUP, "auditors"):
                self.events.append(Drained(self.now_ms, group, topic, queue_id, 0, len(queue)))
        return self.events

    # The parts of an operation.

    def _send(
        self,
        kind: Kind,
        queue_id: int,
        *,
        key: str = "",
        not_before_ms: int = 0,
        delay_ms: int = 0,
        sharding_key: str = "",
    ) -> SendInvoked:
        self._start()
        key = key or self._next_key()
        send = SendInvoked(
            self.now_ms,
            self._next_op(),
            key,
            kind,
            TOPIC,
            queue_id,
            f"body of {key}",
            not_before_ms,
            delay_ms,
            sharding_key,
        )
        self.events.append(send)
        return send

    def _fate(self) -> tuple[bool, Outcome]:
        """Whether an operation takes place, and the outcome that its caller sees."""
        self._tick()
        dice = self.random.random()
        if not self.is_up:
            return False, Outcome.UNKNOWN
        if dice < 0.05:
            return False, Outcome.FAILED
        if dice < 0.15:
            return self.random.random() < 0.5, Outcome.UNKNOWN
        return True, Outcome.OK

    def _end(
        self, event: Invocation, outcome: Outcome, queue_id: int = -1, queue_offset: int = -1
    ) -> bool:
        if outcome is Outcome.UNKNOWN and self.random.random() < 0.5:
            self.kill()
        if outcome is Outcome.OK:
            self.events.append(Ended(self.now_ms, event.op, outcome, queue_id, queue_offset))
        else:
            self.events.append(Ended(self.now_ms, event.op, outcome))
        return outcome is Outcome.OK

    def _start(self) -> None:
        if not self.is_up:
            self.is_up = True
            self.events.append(BrokerStarted(self.now_ms))

    def _tick(self) -> None:
        self.now_ms += self.random.randint(1, 50)

    def _next_op(self) -> int:
        self._op += 1
        return self._op

    def _next_key(self) -> str:
        self._key += 1
        return f"key-{self._key}"

    def _receive(self, group: str, reader: str, topic: str, queue_id: int, at: int) -> None:
        stored = self.queues[topic, queue_id][at]
        retried = topic in (RETRY_TOPIC, DEAD_LETTERS)
        self.events.append(
            Received(
                self.now_ms,
                group,
                reader,
                topic,
                queue_id,
                at,
                stored.key,
                stored.body,
                stored.stored_ms,
                stored.reconsume_times,
                {"RETRY_TOPIC": TOPIC} if retried else {},
            )
        )


_STEPS = (
    ModelBroker.send_plain,
    ModelBroker.send_plain,
    ModelBroker.send_plain,
    ModelBroker.send_delayed,
    ModelBroker.send_timer,
    ModelBroker.send_half,
    ModelBroker.reply,
    ModelBroker.consume,
    ModelBroker.crash_consumer,
    ModelBroker.rebalance,
    ModelBroker.move_clock,
    ModelBroker.kill,
    ModelBroker.fail_over,
)


def good_history(source: random.Random, step_count: int) -> list[Event]:
    """A history without faults."""
    broker = ModelBroker(source)
    for _ in range(step_count):
        source.choice(_STEPS)(broker)
        broker.work()
    return broker.finish()
