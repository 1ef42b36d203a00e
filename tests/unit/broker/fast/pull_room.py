"""Known pulls over a store of paper, with one queue of short records."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

from contrail.broker.fast.known_pulls import KnownPulls
from contrail.broker.state.pull_plan import FLAG_COMMIT, FLAG_SUSPEND, PullPlan
from contrail.broker.state.ways import Ways
from contrail.errors import RequestRejected
from contrail.kernels.frame_scan import Item, scan_frames
from contrail.protocol.command import Request
from contrail.protocol.frames import pull_request
from contrail.store.services.queue_runs import FAR, Reach
from contrail.store.services.reading import GetResult
from contrail.store.state.reading import GetStatus
from contrail.wire.connection import Connection
from contrail.wire.server import Server
from tests.fakes.transports import EchoService, FakeTransport, connected

TOPIC, GROUP, QUEUE_ID = "orders", "billing", 0


def pull(opaque: int, offset: int = 5, *, code: int = 11, **changes: str) -> Item:
    """A pull as the frame kernel takes it apart."""
    fields = {
        "queueId": str(QUEUE_ID),
        "maxMsgNums": "32",
        "queueOffset": str(offset),
        "commitOffset": str(offset),
        "suspendTimeoutMillis": "15000",
    }
    header = {"code": code, "extFields": fields | changes, "flag": 0, "language": "JAVA"}
    text = json.dumps(header | {"opaque": opaque}, separators=(",", ":")).encode()
    frame = struct.pack(">II", len(text) + 4, len(text)) + text
    return scan_frames(frame, 0, 1 << 24, 1 << 16, b"", b"")[0][0]


class PaperRuns:
    """A queue of records of three bytes; those below ``near`` lie further back."""

    def __init__(self) -> None:
        self.end = 10
        self.near = 0
        self.reads: list[tuple[int, int, Reach]] = []

    def read(self, offset: int, count_max: int, bytes_max: int, reach: Reach, now_ms: int) -> Any:
        self.reads.append((offset, count_max, reach))
        if offset < self.near and reach is Reach.NEAR:
            return FAR
        count = min(count_max, self.end - offset)
        if count <= 0:
            return None
        views = [memoryview(b"%03d" % number) for number in range(offset, offset + count)]
        far_end = 700 if offset < self.near else 0
        return views, 3 * count, count, 0, self.end, far_end


class PullRoom:
    """Known pulls, and everything they ask made of paper."""

    def __init__(self) -> None:
        self.runs = PaperRuns()
        self.ways = Ways()
        self.committed: list[tuple[str, str, int, int]] = []
        # The queue, the offset that the pull carries (-1 for none), and where it goes on.
        self.read_on: list[tuple[int, int, int]] = []
        self.given: list[PullPlan] = []
        self.pulled: list[tuple[int, int]] = []
        self.missed_count = 0
        self.sys_flag = FLAG_COMMIT | FLAG_SUSPEND
        self.tag_codes: frozenset[int] | None = None
        self.refusal: RequestRejected | None = None
        self.filtered = GetResult(GetStatus.FOUND, 8, 0, 10, message_count=1, byte_count=3)
        self.offsets: Any = SimpleNamespace(
            pending_resets={}, read_on=self._read_on, commit=self._commit
        )
        self.cold_reads: Any = SimpleNamespace(
            has_turn_at_once=True, note_at_once=lambda queue, offset, end, byte_count: True
        )
        config = SimpleNamespace(
            transfer_count_in_memory_max=4, transfer_bytes_in_memory_max=1 << 20
        )
        settings: Any = SimpleNamespace(config=config)
        admission: Any = SimpleNamespace(
            watch=self._watch, verdict=self._verdict, remember_given=self.given.append
        )
        self.store: Any = SimpleNamespace(
            runs=lambda topic, queue_id: self.runs,
            queue_offset_max=lambda topic, queue_id: self.runs.end,
            is_near=lambda topic, queue_id, offset: offset >= self.runs.near,
            warm_end=lambda topic, queue_id, offset, row_count: 700,
        )
        stats: Any = SimpleNamespace(
            unsettled_gets=[],
            tally_of=lambda names: None,
            pulled=lambda names, count, byte_count: self.pulled.append((count, byte_count)),
            pull_missed=self._miss,
        )
        self.known = KnownPulls(
            settings,
            admission,
            self.store,
            self.offsets,
            stats,
            self.cold_reads,
            lambda plan: (self.filtered, [memoryview(b"007")]),
            self.ways,
        )
        self.server = Server(EchoService())
        self.peer: Connection
        self.transport: FakeTransport
        self.peer, self.transport = connected(self.server)

    def _watch(self, forget: Any) -> None:
        self.table_changes = forget

    def _verdict(self, request: Request) -> PullPlan | RequestRejected:
        if self.refusal is not None:
            return self.refusal
        return PullPlan(
            GROUP,
            TOPIC,
            TOPIC.encode(),
            QUEUE_ID,
            0,
            32,
            self.sys_flag,
            self.tag_codes,
            None,
            topic_sys_flag=0,
            group_sys_flag=0,
        )

    def _read_on(self, key: str, queue_id: int, consumer_offset: int, next_offset: int) -> None:
        self.read_on.append((queue_id, consumer_offset, next_offset))

    def _commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.committed.append((group, topic, queue_id, offset))

    def _miss(self) -> None:
        self.missed_count += 1

    def remember(self, item: Item) -> None:
        """A pull like this one went the general way."""
        self.known.remember(item, pull_request(item))

    def told(self) -> list[tuple[int, int, bytes]]:
        """The number, code and records of the answers so far."""
        self.peer.flush()
        answers: list[Any] = self.transport.frames()
        return [(answer.opaque, answer.code, bytes(answer.body)) for answer in answers]
