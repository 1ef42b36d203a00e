"""Frame decoder, parked pulls and acknowledgements, compared with simple models."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.state.parked_pulls import DEADLINE_GRAIN_MS, ParkedPull, ParkedPulls
from contrail.broker.state.pull_plan import PullPlan
from contrail.clock import ManualClock
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, encode_binary_request, encode_request
from contrail.protocol.frames import FrameDecoder
from tests.fakes.peers import FakePeer
from tests.unit.kernels.frame_material import frame, requests


class FrameDecoderMachine(RuleBasedStateMachine):
    """Bytes are written to one end and fed to the decoder in pieces, as a network does it."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = FrameDecoder(frame_bytes_max=4096)
        self.on_the_way = b""
        self.expected: list[Any] = []
        self.found: list[Any] = []
        self.broken_at: int | None = None

    @rule(request=requests, is_binary=st.booleans())
    def write_a_request(self, request: Request, is_binary: bool) -> None:
        plain = request._replace(
            code=abs(request.code) % 300,
            fields={k: v for k, v in request.fields.items() if k and v and k != "$ref"},
            remark=request.remark or None,
        )
        self.on_the_way += encode_binary_request(plain) if is_binary else encode_request(plain)
        if self.broken_at is None:
            self.expected.append(plain)

    @rule(
        garbage=st.sampled_from(
            [b"\x00\x00\x00\x01xxxx", b"\xff\xff\xff\xff", b"\x00\x00\x00\x04\x00\xff\xff\xff"]
        )
        | st.binary(max_size=10).map(lambda header: frame(header, b"", 7))
    )
    def write_no_frame(self, garbage: bytes) -> None:
        # A length alone is judged with the first byte of its header.
        self.on_the_way += garbage.ljust(8, b"\x00")
        if self.broken_at is None:
            self.broken_at = len(self.expected)

    @rule(data=st.data())
    def let_some_through(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.on_the_way)))
        self._deliver(count)

    @rule()
    def let_all_through(self) -> None:
        self._deliver(len(self.on_the_way))
        assert self.found == self.expected
        assert (self.decoder.failure is not None) == (self.broken_at is not None)
        if self.broken_at is None:
            assert self.decoder.pending_bytes == 0

    def _deliver(self, count: int) -> None:
        piece, self.on_the_way = self.on_the_way[:count], self.on_the_way[count:]
        if piece and self.decoder.failure is None:
            self.found += self.decoder.feed(piece)

    @invariant()
    def nothing_is_invented_and_no_more_is_held_than_a_frame(self) -> None:
        assert self.found == self.expected[: len(self.found)]
        assert self.decoder.pending_bytes <= 4096


class ParkedPullsMachine(RuleBasedStateMachine):
    """The model is one list of pulls in the order of their arrival."""

    pulls = Bundle("pulls")

    @initialize(count_max=st.integers(0, 6))
    def open(self, count_max: int) -> None:
        self.parked = ParkedPulls()
        self.model: list[ParkedPull] = []
        self.told: list[ParkedPull] = []
        self.count_max = count_max

    @rule(
        target=pulls,
        topic=st.sampled_from([b"a", b"b"]),
        queue_id=st.integers(0, 1),
        deadline_ms=st.integers(0, 60),
    )
    def park(self, topic: bytes, queue_id: int, deadline_ms: int) -> ParkedPull:
        plan = PullPlan(
            group="g",
            topic_name=topic.decode(),
            topic=topic,
            queue_id=queue_id,
            queue_offset=0,
            count_max=1,
            sys_flag=0,
            tag_codes=None,
            property_filter=None,
            topic_sys_flag=0,
            group_sys_flag=0,
        )
        pull = ParkedPull(Request(11, 1, {}), FakePeer(), plan, 0, deadline_ms)
        is_held = self.parked.park(pull, count_max=self.count_max)
        assert is_held == (len(self.model) < self.count_max)
        if is_held:
            self.model.append(pull)
        return pull

    @rule(pull=pulls)
    def answer(self, pull: ParkedPull) -> None:
        """End a pull, which may have been answered before."""
        assert self.parked.take(pull) == (pull in self.model)
        self.model = [one for one in self.model if one is not pull]

    @rule(now_ms=st.integers(0, 80), takes=st.booleans())
    def expire(self, now_ms: int, takes: bool) -> None:
        """Every pull expires once, when its time is over, and no sooner."""
        overdue = self.parked.expire(now_ms)
        untold = [pull for pull in self.model if pull not in self.told]
        assert all(pull.deadline_ms <= now_ms for pull in overdue)
        due = [one for one in untold if one.deadline_ms + DEADLINE_GRAIN_MS <= now_ms]
        assert set(due) <= set(overdue) <= set(untold)
        self.told += overdue
        if takes:
            for pull in overdue:
                self.answer(pull)

    @invariant()
    def every_view_agrees_with_the_model(self) -> None:
        if not hasattr(self, "parked"):
            return
        assert len(self.parked) == len(self.model) == len(list(self.parked))
        ends_ms = [pull.deadline_ms for pull in self.model if pull not in self.told]
        if not ends_ms:
            assert self.parked.next_end_ms is None
        else:
            assert self.parked.next_end_ms is not None
            assert 0 <= self.parked.next_end_ms - min(ends_ms) < DEADLINE_GRAIN_MS
        held_queues = {(pull.plan.topic, pull.plan.queue_id) for pull in self.model}
        assert set(self.parked.by_queue) == held_queues
        for topic in (b"a", b"b"):
            for queue_id in (0, 1):
                held = [
                    p for p in self.model if (p.plan.topic, p.plan.queue_id) == (topic, queue_id)
                ]
                assert list(self.parked.waiting_at(topic, queue_id)) == held


class AcknowledgementsMachine(RuleBasedStateMachine):
    """The model is a list of waiting answers; each must be released once, and in order."""

    TIMEOUT_MS = 100

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.waiting = Acknowledgements(self.clock, waits=True, disk_timeout_ms=self.TIMEOUT_MS)
        self.model: list[tuple[int, int, int]] = []
        self.released: list[tuple[int, ResponseCode]] = []
        self.expected: list[tuple[int, ResponseCode]] = []
        self.now_ms = 0
        self.written = self.durable = self.number = 0

    @rule(byte_count=st.integers(1, 50))
    def park(self, byte_count: int) -> None:
        self.written += byte_count
        self.number += 1
        number = self.number
        self.model.append((number, self.written, self.now_ms))
        self.waiting.hold(self.written, [], lambda code: self.released.append((number, code)))

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        self.durable = data.draw(st.integers(self.durable, self.written))
        self._expect(ResponseCode.SUCCESS, lambda entry: entry[1] <= self.durable)
        self.waiting.reached(self.durable)

    @rule(passed_ms=st.integers(0, 150))
    def time_passes(self, passed_ms: int) -> None:
        self.clock.advance(ms=passed_ms)
        self.now_ms += passed_ms
        oldest = self.now_ms - self.model[0][2] if self.model else 0
        assert self.waiting.oldest_age_ms() == oldest
        self._expect(
            ResponseCode.FLUSH_DISK_TIMEOUT,
            lambda entry: self.now_ms - entry[2] > self.TIMEOUT_MS,
        )
        self.waiting.expire()

    @rule()
    def fail(self) -> None:
        self._expect(ResponseCode.SERVICE_NOT_AVAILABLE, lambda entry: True)
        self.waiting.fail()

    def _expect(self, code: ResponseCode, is_due: Any) -> None:
        self.expected += [(entry[0], code) for entry in self.model if is_due(entry)]
        self.model = [entry for entry in self.model if not is_due(entry)]

    @invariant()
    def each_is_answered_once_with_the_right_code(self) -> None:
        assert self.released == self.expected
        assert len(self.waiting) == len(self.model)


TestFrameDecoder = FrameDecoderMachine.TestCase
TestParkedPulls = ParkedPullsMachine.TestCase
TestAcknowledgements = AcknowledgementsMachine.TestCase
