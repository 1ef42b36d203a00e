"""Kills a real broker again and again under a workload, and records the history.

One thread does everything, so the history has one order. Many requests are under way when the
broker is killed; its answers until then count, the other outcomes are unknown. The seed decides the
sends and the moment of the kill; the machine decides how far the broker got.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from contrail.clock import SharedClock
from contrail.model.properties import UNIQ_KEY, encode_properties
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request
from contrail.protocol.failover_fields import IN_DOUBT_FIELD
from contrail.testing import LocalCluster
from tests.e2e.raw_client import send_fields
from tests.history.checker import check_history
from tests.history.events import (
    BrokerKilled,
    BrokerStarted,
    ClockMoved,
    Ended,
    Event,
    Invocation,
    Kind,
    Outcome,
    SendInvoked,
    write_history,
)
from tests.history.violations import Bounds, Rule, Violation
from tests.history.wire_client import PATIENCE_S, WireClient

# A campaign takes half a minute; on a machine that is busy with other things, many times that.
TIMEOUT_S = 1200

# Small files roll often; the config files are written often, so that kills hit those writes too.
_PROPERTIES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 500),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "maxMessageSize": str(1 << 16),
    # A clock that jumps by days must not make the log delete messages that the checker reads.
    "fileReservedTime": str(20 * 365 * 24),
}

OnRequest = Callable[[Request], None]
OnDone = Callable[[ReceivedResponse], None]


def _nothing(answer: ReceivedResponse) -> None:
    """A ``then`` for requests whose answer is needed in the history only."""


def kills_asked_for(usual: int = 20) -> int:
    """``CONTRAIL_KILLS`` makes a campaign longer, or shorter."""
    return int(os.environ.get("CONTRAIL_KILLS", usual))


class Campaign:
    """A broker that is killed again and again, its clock, and its history."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        properties: Mapping[str, str] | None = None,
        *,
        slaves: int = 0,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self.clock = SharedClock(folder / "clock")
        self._history_path = folder / "history.jsonl"
        self.cluster = LocalCluster(
            in_children=True,
            folder=folder,
            clock=self.clock,
            slaves=slaves,
            properties={**_PROPERTIES, **(properties or {})},
        )
        self.broker = self.cluster.brokers[0]
        self.kill_count = 0
        self.handle_request: OnRequest = lambda request: None
        self.after_start: Callable[[], None] = lambda: None
        self._client: WireClient | None = None
        self._op = 0
        self._key = 0
        self._bodies: dict[str, bytes] = {}
        self.acknowledged: dict[str, SendInvoked] = {}
        # How many sends were answered with each response code; None is no answer.
        self.send_codes: Counter[int | None] = Counter()

    def __enter__(self) -> Self:
        print(f"CONTRAIL_SEED={self.seed}")
        self.cluster.__enter__()
        self._connect()
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
        self.cluster.__exit__()

    @property
    def client(self) -> WireClient:
        assert self._client is not None, "the broker is down"
        return self._client

    @property
    def kills_to_repeat(self) -> int:
        """How many kills to ask for to have this campaign again."""
        return self.kill_count

    # The broker's life.

    def _connect(self) -> None:
        self._client = WireClient(self.broker.port, lambda request: self.handle_request(request))
        self.events.append(BrokerStarted(self.clock.now_ms()))
        self.after_start()

    def kill(self) -> None:
        """End the broker with signal 9, and read the answers it had sent."""
        self.events.append(BrokerKilled(self.clock.now_ms()))
        self.broker.kill()
        self.client.read_to_the_end()
        self._client = None
        self.kill_count += 1

    def restart(self) -> None:
        self.broker.start()
        self._connect()

    def kill_while_busy(self) -> None:
        """Kill now, after some of the answers under way, or some milliseconds from now."""
        self.let_some_moment_pass()
        self.kill()

    def let_some_moment_pass(self) -> None:
        """Nothing, or until some of the answers under way came, or some milliseconds."""
        way = self.random.randrange(3)
        if way == 1:
            left = self.random.randint(0, self.client.waiting_count)
            self.client.read_until(lambda: self.client.waiting_count <= left, PATIENCE_S)
        elif way == 2:
            self.client.read_for(self.random.uniform(0, 0.15))

    def settle(self) -> None:
        """Wait for all answers."""
        client = self.client
        client.read_until(lambda: client.waiting_count == 0, PATIENCE_S)
        assert client.waiting_count == 0, "the broker does not answer"

    def advance(self, *, ms: int) -> None:
        before_ms = self.clock.now_ms()
        self.cluster.advance(ms=ms)
        self.events.append(ClockMoved(self.clock.now_ms(), before_ms))

    def jump_clock(self, jumps_ms: Sequence[int], likelihood: float = 0.7) -> None:
        """Move the clock, or not; back only when no delayed send is under way."""
        if self.random.random() >= likelihood:
            return
        jump_ms = self.random.choice(jumps_ms)
        if jump_ms < 0 and self._client is not None:
            self.settle()
        self.advance(ms=jump_ms)

    # Operations.

    def next_op(self) -> int:
        self._op += 1
        return self._op

    def next_key(self) -> str:
        self._key += 1
        return f"7F000001{self.seed & 0xFFFFFFFF:08X}{self._key:016X}"

    def invoke(
        self,
        event: Invocation,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        then: OnDone = _nothing,
    ) -> None:
        """Send a request and note it; its end is noted when the answer comes.

        ``then`` gets the answer if it is a success.
        """
        self.events.append(event)
        on_answer = partial(self._ended, event, then)
        self.client.ask(code, fields, body, on_answer)

    def _ended(self, event: Invocation, then: OnDone, answer: ReceivedResponse | None) -> None:
        now_ms = self.clock.now_ms()
        outcome = outcome_of(answer)
        if isinstance(event, SendInvoked):
            self.send_codes[answer.code if answer is not None else None] += 1
        if answer is None or outcome is not Outcome.OK:
            self.events.append(Ended(now_ms, event.op, outcome))
            return
        place = (int(answer.fields.get(name, -1)) for name in ("queueId", "queueOffset"))
        self.events.append(Ended(now_ms, event.op, outcome, *place))
        if isinstance(event, SendInvoked):
            self.acknowledged[event.key] = event
        then(answer)

    def send(
        self,
        kind: Kind,
        topic: str,
        queue_id: int,
        *,
        properties: Mapping[str, str] | None = None,
        not_before_ms: int = 0,
        delay_ms: int = 0,
        sharding_key: str = "",
        key: str = "",
        again: SendInvoked | None = None,
        then: OnDone = _nothing,
        **changes: str,
    ) -> SendInvoked:
        """Send a message, or one ``again`` under the key it had; ``changes`` by letter."""
        key = again.key if again is not None else key or self.next_key()
        body = self.body_of(key)
        event = SendInvoked(
            self.clock.now_ms(),
            self.next_op(),
            key,
            kind,
            topic,
            queue_id,
            digest(body),
            not_before_ms,
            delay_ms,
            sharding_key,
        )
        text = encode_properties({UNIQ_KEY: key, **(properties or {})}).decode()
        fields = send_fields(topic, e=str(queue_id), i=text, **changes)
        self.invoke(event, RequestCode.SEND_MESSAGE_V2, fields, body, then)
        return event

    def body_of(self, key: str) -> bytes:
        """A body of its own for each key; some are large."""
        if key not in self._bodies:
            size = self.random.choice((10, 100, 100, 1000, 8000))
            self._bodies[key] = f"{key} ".encode() + self.random.randbytes(size)
        return self._bodies[key]

    def unknown_sends(self, since: int) -> list[SendInvoked]:
        """Sends invoked from that event on whose outcome will never be known."""
        events = self.events[since:]
        unknown = {
            event.op
            for event in events
            if isinstance(event, Ended) and event.outcome is Outcome.UNKNOWN
        }
        return [event for event in events if isinstance(event, SendInvoked) and event.op in unknown]

    # Waiting and judging.

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until a condition of the broker holds; on a timeout the history is written."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                self._give_up(what)
            self.client.read_for(0.02)

    def _give_up(self, what: str) -> None:
        found = check_history(self.events)
        # No queue was read to its end yet.
        listed = [str(each) for each in found if each.rule is not Rule.UNREAD]
        raise AssertionError("\n".join([f"{self._label()}: waited in vain: {what}", *listed[:20]]))

    def judge(self, bounds: Bounds | None = None) -> None:
        """Fail if a promise was broken."""
        violations = self.violations(bounds)
        listed = "\n".join(str(each) for each in violations[:20])
        assert not violations, f"{self._label()}: {len(violations)} violations\n{listed}"

    def violations(self, bounds: Bounds | None = None) -> list[Violation]:
        """The broken promises of a campaign that has come to its end."""
        counts = Counter(type(event).__name__ for event in self.events)
        print(f"seed {self.seed}: {dict(counts)}")
        return check_history(self.events, bounds)

    def _label(self) -> str:
        write_history(self._history_path, self.events)
        again = f"CONTRAIL_SEED={self.seed} CONTRAIL_KILLS={self.kills_to_repeat}"
        return f"{again}, history in {self._history_path}"


def outcome_of(answer: ReceivedResponse | None) -> Outcome:
    if answer is None:
        return Outcome.UNKNOWN
    if answer.code == ResponseCode.SUCCESS:
        return Outcome.OK
    # Stored, but not yet as durable as configured.
    stored = (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
    if answer.fields.get(IN_DOUBT_FIELD) == "true":
        return Outcome.UNKNOWN
    # A message that was sent back is answered with an error that names the status.
    is_stored = answer.code in stored or answer.remark in [code.name for code in stored]
    return Outcome.UNKNOWN if is_stored else Outcome.FAILED


def digest(body: bytes) -> str:
    return hashlib.blake2s(body, digest_size=8).hexdigest()
