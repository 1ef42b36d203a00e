"""Fast pulls over a store of paper, with one queue of short records."""

from __future__ import annotations

import json
import math
import struct
from types import SimpleNamespace
from typing import Any

from contrail.broker.fast.pull_answers import PullAnswers
from contrail.broker.fast.pull_forms import PullForms
from contrail.broker.fast.pulls import FastPulls
from contrail.broker.state.pull_plan import FLAG_COMMIT, FLAG_SUSPEND, PullPlan
from contrail.broker.state.stats import BrokerStats, GetTally
from contrail.broker.state.ways import Ways
from contrail.errors import RequestRejected
from contrail.protocol.command import Request
from contrail.protocol.frames import FrameDecoder, Frames, PullFrame, pull_request
from contrail.store import FAR, GetResult, GetStatus, Reach
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected, still

TOPIC, GROUP, QUEUE_ID = "orders", "billing", 0
PLAN = PullPlan(GROUP, TOPIC, TOPIC.encode(), QUEUE_ID, 0, 32, 0, None, None, 5, 6)


def pull_bytes(opaque: int, queue_offset: int = 5, *, code: int = 11, **changes: str) -> bytes:
    """A pull as a Java client writes it."""
    fields = {
        "queueId": str(QUEUE_ID),
        "maxMsgNums": "32",
        "queueOffset": str(queue_offset),
        "commitOffset": str(queue_offset),
        "suspendTimeoutMillis": "15000",
    }
    header = {"code": code, "extFields": fields | changes, "flag": 0, "language": "JAVA"}
    text = json.dumps(header | {"opaque": opaque}, separators=(",", ":")).encode()
    return struct.pack(">II", len(text) + 4, len(text)) + text


def pull(opaque: int, queue_offset: int = 5, *, code: int = 11, **changes: str) -> PullFrame:
    """A pull as the frame kernel takes it apart."""
    [frame] = FrameDecoder().feed(pull_bytes(opaque, queue_offset, code=code, **changes))
    assert isinstance(frame, PullFrame)
    return frame


class PaperRuns:
    """A queue of records of three bytes; those below ``near`` lie further back."""

    def __init__(self) -> None:
        self.end = 10
        self.near = 0
        self.reads: list[tuple[int, int, Reach]] = []

    def read(
        self, queue_offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int
    ) -> Any:
        self.reads.append((queue_offset, count_max, reach))
        if queue_offset < self.near and reach is Reach.NEAR:
            return FAR
        count = min(count_max, self.end - queue_offset)
        if count <= 0:
            return None
        numbers = range(queue_offset, queue_offset + count)
        views = [memoryview(b"%03d" % number) for number in numbers]
        physical_end = 700 if queue_offset < self.near else 0
        return views, 3 * count, count, queue_offset + count, 0, self.end, physical_end


class PaperParked:
    """Holds as many pulls as it is told."""

    def __init__(self) -> None:
        self.held: list[PullFrame] = []
        self.count_max = 3
        self.answer_fast: Any = None

    def park(
        self, request: Request, peer: Any, plan: PullPlan, hold_ms: int, *, fast: PullFrame
    ) -> bool:
        if len(self.held) >= self.count_max:
            return False
        self.held.append(fast)
        return True


class PullRoom:
    """Fast pulls, and everything they ask made of paper."""

    def __init__(self) -> None:
        self.runs = PaperRuns()
        self.ways = Ways()
        self.plan = PLAN._replace(sys_flag=FLAG_COMMIT | FLAG_SUSPEND)
        self.refusal: RequestRejected | None = None
        self.filtered = GetResult(
            GetStatus.FOUND, 8, 0, 10, [memoryview(b"007")], message_count=1, byte_count=3
        )
        # The queue, the offset that the pull carries (-1 for none), and where it goes on.
        self.read_on: list[tuple[int, int, int]] = []
        self.committed: list[int] = []
        self.given: list[PullPlan] = []
        self.served: list[Request] = []
        self.in_line: list[Any] = []
        self.told_ahead: list[Any] = []
        self.verdict: object = None
        self.offsets: Any = SimpleNamespace(
            pending_resets={},
            read_on=lambda key, *read: self.read_on.append(read),
        )
        self.stats = BrokerStats("cluster", started_ms=0)
        self.cold_reads: Any = SimpleNamespace(
            may_skip_line=True,
            told_epoch=0,
            note_direct=lambda byte_count: True,
            begin_turn=lambda turn: turn,
            read_ahead=lambda answered: self.told_ahead.append(answered) or True,
        )
        self._make()

    def _make(self) -> None:
        config = SimpleNamespace(
            transfer_count_in_memory_max=4, transfer_bytes_in_memory_max=1 << 20
        )
        settings: Any = SimpleNamespace(config=config)
        admission: Any = SimpleNamespace(
            watch=self._watch,
            verdict=lambda request: self.refusal or self.plan,
            remember_given=self.given.append,
        )
        self.store: Any = SimpleNamespace(
            underived_bytes=0,
            runs=lambda topic, queue_id: self.runs,
            queue_offset_max=lambda topic, queue_id: self.runs.end,
            is_near=lambda topic, queue_id, queue_offset: queue_offset >= self.runs.near,
            warm_end=lambda topic, queue_id, queue_offset, row_count: 700,
        )
        self.held = PaperParked()
        self.handler: Any = SimpleNamespace(
            held=self.held,
            cold_reads=self.cold_reads,
            log_fits_memory=True,
            sweep=lambda now_ms: None,
            wait_in_line=lambda waiting: self.in_line.append(waiting) or True,
            commit_carried=lambda plan, consumer_offset: self.committed.append(consumer_offset),
        )
        self.router: Any = SimpleNamespace(
            refused={},
            count_refused=self._count_refused,
            room_of=RequestRouter({}, in_flight_count_max=2).room_of,
        )
        self.deriving: Any = SimpleNamespace(is_behind=False)
        self.server = still(Server(EchoService(), limits=Limits(in_flight_count_max=2)))
        self.forms = PullForms(
            settings, admission, self.store, self.offsets, self.stats, lambda plan: self.filtered
        )
        self.answers = PullAnswers(admission, self.offsets, self.stats, self.cold_reads)
        self.pulls = FastPulls(
            self.handler,
            self.forms,
            self.answers,
            self.store,
            self.server,
            self.router,
            self.deriving,
            verdict=lambda peer, code: self.verdict,
            serve=lambda peer, request: self.served.append(request),
            ways=self.ways,
        )
        self.peer: Connection
        self.transport: FakeTransport
        self.peer, self.transport = connected(self.server)

    def _watch(self, forget: Any) -> None:
        self.table_changes = forget

    def _count_refused(self, counts: dict[tuple[int, int], int]) -> None:
        self.router.refused.update(counts)

    @property
    def tally(self) -> GetTally:
        return self.stats.tally_of((TOPIC, GROUP))

    @property
    def missed_count(self) -> int:
        return self.stats._miss.total

    def learn(self, frame: PullFrame) -> None:
        """A pull like this one went the general way."""
        self.forms.learn(frame, pull_request(frame))

    def taken(self, frames: Frames, until_s: float = math.inf) -> int:
        return self.pulls.take(self.peer, frames, 0, until_s)

    @property
    def general(self) -> list[int]:
        return [request.opaque for request in self.served]

    def told(self) -> list[tuple[int, int, bytes]]:
        """The number, code and records of the answers so far."""
        self.peer.flush()
        answers: list[Any] = self.transport.frames()
        return [(answer.opaque, answer.code, bytes(answer.body)) for answer in answers]
