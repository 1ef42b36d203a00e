"""Fast sends over a store of paper that notes what is appended, and how."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from contrail.broker.fast.row_answers import RowAnswers
from contrail.broker.fast.rows import SendRows, rows_of
from contrail.broker.fast.sends import FastSends
from contrail.broker.guards import Guards
from contrail.broker.handlers.send import SendHandler
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.state.ways import Ways
from contrail.clock import ManualClock
from contrail.kernels import send_rows
from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.message import MessageDraft
from contrail.protocol.command import FLAG_ONE_WAY, Request, encode_request
from contrail.protocol.frames import FrameDecoder, SendRequest
from contrail.store.services.append import AppendedChunks, AppendedRun
from contrail.wire.connection import Connection
from contrail.wire.limits import Limits
from contrail.wire.router import RequestRouter
from contrail.wire.server import Server
from tests.e2e.raw_client import send_fields
from tests.fakes.transports import EchoService, FakeTransport, connected, still

TOPIC = b"orders"
LIMITS = Limits(in_flight_count_max=100)
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 0, 9])


def send(opaque: int, *, one_way: bool = False, code: int = 310, **changes: str) -> bytes:
    fields = send_fields("orders", i=f"UNIQ_KEY\x01AC{opaque:04}\x02", **changes)
    flag = FLAG_ONE_WAY if one_way else 0
    return encode_request(Request(code, opaque, fields, b"%d" % opaque, flag))


def sends(first: int, last: int) -> bytes:
    return b"".join(map(send, range(first, last)))


def rows(first: int, last: int) -> SendRows:
    found = rows_of(sends(first, last), STORE_HOST, LIMITS, b"")
    assert found is not None
    return found


def batch(opaque: int, *bodies: bytes, properties: bytes = b"") -> bytes:
    fields = send_fields("orders", i=f"UNIQ_KEY\x01AC{opaque:04}\x02", m="true")
    units = encode_batch([BatchUnit(body, properties) for body in bodies])
    return encode_request(Request(320, opaque, fields, units))


def decoded(data: bytes) -> list[SendRequest]:
    frames = FrameDecoder(born_host=STORE_HOST).feed(data)
    return [frame for frame in frames if isinstance(frame, SendRequest)]


class PaperStore:
    """Notes appends in order: how, and the bodies."""

    body_bytes_max = 1 << 20
    poisoned = None
    acknowledged_end = 0

    def __init__(self) -> None:
        self.appended: list[tuple[str, list[bytes]]] = []
        self.end = 0
        # The failure of an append of rows; without one it may leave them to the run.
        self.failure: Exception | None = None
        self.leaves_rows = False

    def _note(self, how: str, bodies: list[bytes]) -> tuple[int, int]:
        self.appended.append((how, bodies))
        start, self.end = self.end, self.end + 100 * len(bodies)
        return start, self.end

    def append_chunks(self, chunks: list[Any]) -> AppendedChunks | None:
        if self.failure is not None:
            raise self.failure
        if self.leaves_rows:
            return None
        found: list[bytes] = []
        for data, count, rows, *_ in chunks:
            for at in range(0, count * send_rows.ROW_NUMBERS, send_rows.ROW_NUMBERS):
                found.append(data[rows[at + send_rows.BODY_AT] : rows[at + send_rows.BODY_END]])
                rows[at + send_rows.PHYSICAL_OFFSET] = self.end + 100 * (len(found) - 1)
        return AppendedChunks(*self._note("rows", found), 0)

    def append(self, drafts: list[MessageDraft]) -> AppendedRun:
        start, end = self._note("run", [draft[2] for draft in drafts])
        return AppendedRun([*range(len(drafts))], [*range(start, end, 100)], 0, end)


class SendRoom:
    """Fast sends, the handler behind them, and connections."""

    def __init__(self, *, waits: bool = False, is_watched: bool = False) -> None:
        self.store = PaperStore()
        self.ways = Ways()
        self.clock = ManualClock()
        config = SimpleNamespace(send_wait_ms_max=200, fast_failure=True, region="R", trace_on=True)
        self.settings: Any = SimpleNamespace(config=config, epoch=1)
        self.checked: list[int] = []
        self.admission: Any = SimpleNamespace(
            fast_topics={TOPIC: 4},
            fast_places={},
            split_topics={TOPIC: 4},
            property_suffix=b"",
            admit=self._admit,
        )
        self.stats: Any = SimpleNamespace(
            stored_sends=lambda chunks, byte_count: None,
            stored=lambda drafts, offsets, end: None,
            put_failed=lambda count: None,
        )
        self.acknowledgements = Acknowledgements(self.clock, waits=waits, disk_timeout_ms=5000)
        store: Any = self.store
        self.handler = SendHandler(
            self.settings,
            self.admission,
            store,
            self.acknowledgements,
            self.stats,
            self.clock,
            store_host=STORE_HOST,
            ways=self.ways,
        )
        self.answers = RowAnswers(
            self.handler.answers,
            self.settings,
            self.acknowledgements,
        )
        self.router = RequestRouter({}, in_flight_count_max=LIMITS.in_flight_count_max)
        self.guards = Guards(self.router)
        self.sends = FastSends(
            self.handler,
            self.admission,
            store,
            self.stats,
            LIMITS,
            self.answers,
            self.guards,
            is_watched=is_watched,
            ways=self.ways,
        )
        self.server = still(Server(EchoService(), limits=LIMITS))

    def _admit(self, send: Any, address: str, *, is_unit: bool) -> Any:
        self.checked.append(send.opaque)
        return SimpleNamespace(
            draft=send.draft,
            unique_key="AC",
            batch=None,
            claim=None,
            queue_id=0,
            waits=True,
            recall_handle=None,
        )

    def connected(self, port: int = 50_001) -> tuple[Connection, FakeTransport]:
        return connected(self.server, port=port)

    def stored(self) -> list[tuple[str, list[bytes]]]:
        """The appended messages, once all collected sends are appended."""
        self.sends.append_run()
        return self.store.appended


def told(connection: Connection, transport: FakeTransport) -> list[tuple[int, int]]:
    """The numbers and codes of the answers so far."""
    connection.flush()
    return [(answer.opaque, answer.code) for answer in transport.frames()]


def bodies(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]
