"""A seeded stream of messages that covers all contents of a store folder.

The same seed always yields the same runs, so a failure replays from the seed it printed. A run is
the messages of one append: single messages of any queues, or one batch. Runs go to our store as
they are, and to Apache's through ``encode_runs``, the file that ``StoreCarrier append`` reads:

    kind u8 (0 single, 1 split batch, 2 inner batch)
    topic, queueId i32, body, properties, flag i32, sysFlag i32, bornTimestamp i64, bornHost,
    reconsumeTimes i32, preparedTransactionOffset i64, storeHost
    where bytes are an i32 length and the bytes; a host is its IP and its port as i32
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from contrail.model.message import MessageDraft

IPV4_STORE_HOST = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
IPV6_STORE_HOST = bytes.fromhex("20010db8000000000000000000000001") + struct.pack(">i", 10911)

SCHEDULE_TOPIC = b"SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = b"RMQ_SYS_TRANS_HALF_TOPIC"
LONG_RETRY_TOPIC = b"%RETRY%" + b"a-group-whose-name-nobody-shortened-" * 5
BATCH_QUEUE_TOPIC = b"carried-inner-batches"

MULTI_TAGS, PREPARED, COMMIT, ROLLBACK = 0x2, 0x4, 0x8, 0xC
COMPRESSED_ZSTD = 0x1 | 0x200
INNER_BATCH_FLAGS = 0x40 | 0x80

_BODY_BYTES_MAX = 400
_TAGS = ("TagA", "TagB", "a", "paid||shipped", "größe", "標籤", "tag-🚀", "Aa", "BB", "")
_TOPICS = (b"carried", b"orders", b"carried_with-all_the_legal-1", b"%DLQ%workers", b"t", b"Big")
_QUEUES_PER_TOPIC = 4
_BORN_MS = 1_700_000_000_000


class Kind(IntEnum):
    """How a run is appended."""

    SINGLE = 0
    SPLIT_BATCH = 1
    INNER_BATCH = 2


@dataclass(frozen=True, slots=True)
class Run:
    """The messages of one append. An inner batch is one draft whose body holds its messages."""

    kind: Kind
    drafts: list[MessageDraft]


class Generator:
    """Yields runs from a seed. ``long_topics`` needs a peer that knows record version 2."""

    def __init__(self, seed: int, *, long_topics: bool, inner_batches: bool) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        self._serial = 0
        self._long_topics = long_topics
        self._inner_batches = inner_batches

    def runs(self, message_count_min: int) -> list[Run]:
        """The next runs, together of at least that many records."""
        runs: list[Run] = []
        record_count = 0
        while record_count < message_count_min:
            run = self._run()
            runs.append(run)
            record_count += len(run.drafts)
        return runs

    def _run(self) -> Run:
        choice = self._random.random()
        if self._inner_batches and choice < 0.03:
            return Run(Kind.INNER_BATCH, [self._inner_batch()])
        if choice < 0.15:
            return Run(Kind.SPLIT_BATCH, self._batch(self._random.randint(1, 40)))
        count = self._random.choice((1, 1, 2, 8, 64))
        return Run(Kind.SINGLE, [self._single() for _ in range(count)])

    def _single(self) -> MessageDraft:
        choice = self._random.random()
        if choice < 0.05:
            return self._delayed()
        if choice < 0.08:
            return self._half()
        if choice < 0.12:
            return self._transactional()
        return self._ordinary()

    def _ordinary(self) -> MessageDraft:
        topic, queue_id = self._queue()
        sys_flag = self._random.choice((0, 0, 0, MULTI_TAGS, COMPRESSED_ZSTD))
        return self._draft(topic, queue_id, self._properties(), sys_flag=sys_flag)

    def _delayed(self) -> MessageDraft:
        level = self._random.choice((1, 2, 3, 9, 18, 25))
        topic, queue_id = self._queue()
        pairs = self._pairs()
        pairs += [
            ("DELAY", str(level)),
            ("REAL_TOPIC", topic.decode()),
            ("REAL_QID", str(queue_id)),
        ]
        return self._draft(SCHEDULE_TOPIC, min(level, 18) - 1, _encoded(pairs))

    def _half(self) -> MessageDraft:
        topic, queue_id = self._queue()
        pairs = self._pairs()
        pairs += [("TRAN_MSG", "true"), ("PGROUP", "carriers")]
        pairs += [("REAL_TOPIC", topic.decode()), ("REAL_QID", str(queue_id))]
        return self._draft(HALF_TOPIC, 0, _encoded(pairs))

    def _transactional(self) -> MessageDraft:
        """Prepared and rollback records take no queue offset; a commit names its half message."""
        topic, queue_id = self._queue()
        sys_flag = self._random.choice((PREPARED, COMMIT, COMMIT, ROLLBACK))
        prepared = self._random.randrange(1 << 40) if sys_flag == COMMIT else 0
        return self._draft(
            topic, queue_id, self._properties(), sys_flag=sys_flag, prepared_offset=prepared
        )

    def _batch(self, count: int) -> list[MessageDraft]:
        """Messages of one queue that share sender, flags and birth, as a producer sends them."""
        first = self._ordinary()
        units = [first]
        for _ in range(count - 1):
            flag = self._random.getrandbits(8)
            units.append(
                first._replace(body=self._body(), properties=self._properties(), flag=flag)
            )
        return units

    def _inner_batch(self) -> MessageDraft:
        count = self._random.randint(1, 12)
        units = [self._draft(b"", 0, self._properties()) for _ in range(count)]
        # The store writes these properties anew, and pairs without a value do not survive that.
        pairs = [pair for pair in self._pairs() if pair[1]] + [("INNER_NUM", str(count))]
        queue_id = self._random.randrange(2)
        draft = self._draft(BATCH_QUEUE_TOPIC, queue_id, _encoded(pairs))
        return draft._replace(body=encode_units(units), sys_flag=INNER_BATCH_FLAGS)

    def _draft(
        self,
        topic: bytes,
        queue_id: int,
        properties: bytes,
        *,
        sys_flag: int = 0,
        prepared_offset: int = 0,
    ) -> MessageDraft:
        return MessageDraft(
            topic=topic,
            queue_id=queue_id,
            body=self._body(),
            properties=properties,
            flag=self._random.choice((0, 0, 1, -1, 0x7FFFFFFF)),
            sys_flag=sys_flag,
            born_timestamp_ms=_BORN_MS + self._random.randrange(1 << 30),
            born_host=self._host(),
            reconsume_times=self._random.choice((0, 0, 0, 1, 16)),
            prepared_transaction_offset=prepared_offset,
        )

    def _queue(self) -> tuple[bytes, int]:
        if self._long_topics and self._random.random() < 0.08:
            return LONG_RETRY_TOPIC, 0
        return self._random.choice(_TOPICS), self._random.randrange(_QUEUES_PER_TOPIC)

    def _body(self) -> bytes:
        return self._random.randbytes(self._random.randrange(_BODY_BYTES_MAX + 1))

    def _host(self) -> bytes:
        port = struct.pack(">i", self._random.randrange(1, 65536))
        if self._random.random() < 0.3:
            return bytes.fromhex("20010db8") + self._random.randbytes(12) + port
        return bytes([10]) + self._random.randbytes(3) + port

    def _properties(self) -> bytes:
        text = _encoded(self._pairs())
        # Some clients leave out the last separator; readers accept both.
        return text[:-1] if text and self._random.random() < 0.1 else text

    def _pairs(self) -> list[tuple[str, str]]:
        self._serial += 1
        pairs: list[tuple[str, str]] = []
        if self._random.random() < 0.7:
            pairs.append(("TAGS", self._random.choice(_TAGS)))
        if self._random.random() < 0.4:
            pairs.append(("KEYS", self._keys()))
        if self._random.random() < 0.8:
            pairs.append(("UNIQ_KEY", f"7F0000010D8F{self.seed & 0xFFFF:04X}{self._serial:016X}"))
        if self._random.random() < 0.2:
            pairs.append(("WAIT", self._random.choice(("true", "false"))))
        if self._random.random() < 0.2:
            pairs.append(("note", f"größe {self._serial} 標籤"))
        return pairs

    def _keys(self) -> str:
        keys = [f"order-{self._serial}", f"k{self._random.randrange(20_000)}", "clé-é", "🚀"]
        picked = keys[: self._random.choice((1, 1, 2))]
        if self._serial % 200 == 0:
            picked.append(f"{self._random.choice(keys[2:])}{self._serial // 4000}")
        return self._random.choice((" ", "  ")).join(picked)


def encode_runs(runs: Iterable[Run], store_host: bytes) -> Iterator[bytes]:
    """The messages file of ``StoreCarrier append``, piece by piece."""
    for run in runs:
        if run.kind is Kind.SPLIT_BATCH:
            units = encode_units(run.drafts)
            whole = run.drafts[0]._replace(body=units, properties=b"", flag=0)
            yield _encode_draft(run.kind, whole, store_host)
        else:
            for draft in run.drafts:
                yield _encode_draft(run.kind, draft, store_host)


def encode_units(drafts: Iterable[MessageDraft]) -> bytes:
    """A batch body as producers send it: per message its flag, body and properties."""
    parts: list[bytes] = []
    for draft in drafts:
        total = 22 + len(draft.body) + len(draft.properties)
        parts.append(struct.pack(">iiiii", total, 0, 0, draft.flag, len(draft.body)))
        parts += [draft.body, struct.pack(">h", len(draft.properties)), draft.properties]
    return b"".join(parts)


def _encode_draft(kind: Kind, draft: MessageDraft, store_host: bytes) -> bytes:
    return b"".join(
        (
            bytes([kind]),
            _sized(draft.topic),
            struct.pack(">i", draft.queue_id),
            _sized(draft.body),
            _sized(draft.properties),
            struct.pack(">iiq", draft.flag, draft.sys_flag, draft.born_timestamp_ms),
            _sized(draft.born_host),
            struct.pack(">iq", draft.reconsume_times, draft.prepared_transaction_offset),
            _sized(store_host),
        )
    )


def _sized(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def _encoded(pairs: list[tuple[str, str]]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
