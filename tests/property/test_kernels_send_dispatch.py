"""Rows of fast sends put into queues: compiled equals pure, and both equal the general way."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contrail.kernels.derive_rows import derive_rows
from contrail.kernels.send_places import QueuePlace
from contrail.kernels.send_records import are_admitted, build_sends
from contrail.kernels.send_scan import scan_sends
from tests.unit.kernels.frame_material import frame
from tests.unit.kernels.material import twins

KERNEL, PURE = twins("send_dispatch")

LIMIT = 16 << 20
STORED_MS = 1_760_000_000_123
# A physical offset where the log of these tests begins, and one that it never reaches.
LOG_START, BEHIND_ALL = 4096, 1 << 40
HOST = bytes(8)
TOPICS = ["orders", "TopicTest", "polygenelubricants", "t" * 127]

_values = st.sampled_from(["a", "TagA", "k1 k2", "  x  y ", "polygenelubricants", "grüße", "𝄞"])
_pairs = st.tuples(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "TAG", "KEY", "other"]), _values)


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    pairs = [("UNIQ_KEY", f"AC{draw(st.integers(0, 10**9))}"), *draw(st.lists(_pairs, max_size=4))]
    fields = {
        "a": "g", "b": draw(st.sampled_from(TOPICS)), "c": "TBW102", "d": "4",
        "e": str(draw(st.integers(0, 2))), "f": "0", "g": "1", "h": "0",
        "i": "".join(f"{name}\x01{value}\x02" for name, value in pairs),
    }  # fmt: skip
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 1}
    return frame(json.dumps(header, separators=(",", ":")).encode(), b"body")


def stored(run: list[list[bytes]]) -> tuple[list[Any], bytearray] | None:
    """The chunks of several connections once they have their places, and their records."""
    chunks: list[Any] = []
    places: dict[bytes, list[QueuePlace | None]] = {}
    counts = {topic.encode(): 3 for topic in TOPICS}
    for frames in run:
        data = b"".join(frames)
        found = scan_sends(data, LIMIT, LIMIT, b"CLUSTER\x01c\x02")
        if found is None:
            return None
        count, _, rows, texts, topics = found
        chunks.append((data, count, rows, texts, [HOST] * count, topics))
        assert are_admitted(chunks[-1], counts, places, -1, LIMIT)
    known = {(topic.encode(), queue): queue * 7 for topic in TOPICS for queue in range(3)}
    built = build_sends(chunks, known, [], LOG_START, LIMIT, STORED_MS, HOST)
    assert built is not None
    return chunks, built[0]


runs = (
    st.lists(st.lists(sends(), min_size=1, max_size=5), min_size=1, max_size=3)
    .map(stored)
    .filter(lambda found: found is not None)
)


class Queues:
    """Tails of a kernel's own kind, as the table of queues holds them."""

    def __init__(self, kernel: ModuleType) -> None:
        self.tails: dict[bytes, dict[int, Any]] = {
            topic.encode(): {queue: tail(kernel, queue * 7) for queue in range(3)}
            for topic in TOPICS
        }
        self.dirty: dict[Any, tuple[bytes, int]] = {}
        self.grown: dict[tuple[bytes, int], int] = {}
        self.full: list[Any] = []
        self._kernel = kernel

    def put(self, chunks: list[Any], **given: Any) -> bytearray | None:
        if not given.get("keeps_places"):
            # Each table of queues is met by places that know no other.
            for place in {place for chunk in chunks for place in chunk[5]}:
                place.tail = None
        tombstones, watched = given.get("tombstones", {}), given.get("watched")
        notes = (self.dirty, self.grown, self.full)
        answer: bytearray | None = self._kernel.put_sends(
            [(chunks, STORED_MS)],
            self.tails,
            tombstones,
            watched,
            *notes,
            given.get("indexed", True),
        )
        return answer

    def state(self) -> list[Any]:
        names = {tail: key for key, tail in self.named()}
        ends = [
            (key, tail.queue_offset_max, tail.physical_end, bytes(tail.tail), tail.tail_bytes_max)
            for key, tail in self.named()
        ]
        return [ends, list(self.dirty.values()), self.grown, [names[tail] for tail in self.full]]

    def named(self) -> list[tuple[tuple[bytes, int], Any]]:
        return [((topic, at), tail) for topic, by in self.tails.items() for at, tail in by.items()]


def tail(kernel: ModuleType, queue_offset: int) -> Any:
    made = kernel.RowTail()
    made.queue_offset_max, made.takes_fast_rows, made.tail_bytes_max = queue_offset, True, 60
    return made


@given(runs, st.booleans())
def test_rows_and_keys_are_those_of_the_general_way(
    found: tuple[list[Any], bytearray], indexed: bool
) -> None:
    chunks, records = found
    general, index_rows, _, _ = derive_rows(
        records, 0, len(records), 4096, [], frozenset(), False, indexed
    )
    states = []
    for kernel in (KERNEL, PURE):
        queues = Queues(kernel)
        assert queues.put(chunks, indexed=indexed) == index_rows
        grown = {}
        for topic, by_queue in general.items():
            for queue_id, (run,) in by_queue.items():
                end = queues.tails[topic][queue_id]
                assert (end.tail, end.queue_offset_max) == (run[2], run[0] + run[1])
                assert end.physical_end == run[3]
                grown[topic, queue_id] = run[0]
        assert queues.grown == grown
        assert set(queues.dirty.values()) == set(grown)
        states.append(queues.state())
    assert states[0] == states[1]


@given(runs, st.data())
def test_a_send_to_an_odd_queue_leaves_the_rows_before_it(
    found: tuple[list[Any], bytearray], data: st.DataObject
) -> None:
    """For any odd queue, and any position of its send in the run."""
    chunks, _ = found
    topic = data.draw(st.sampled_from(TOPICS)).encode()
    oddity = data.draw(st.sampled_from(["gone", "no queue", "kind", "offset", "place", "deleted"]))
    states = []
    for kernel in (KERNEL, PURE):
        queues = Queues(kernel)
        make_odd(queues, topic, oddity)
        tombstones = {topic: BEHIND_ALL} if oddity == "deleted" else {}
        given_up = queues.put(chunks, tombstones=tombstones) is None
        met = any(topic == place.topic for chunk in chunks for place in chunk[5])
        assert given_up == met
        states.append(queues.state())
    assert states[0] == states[1]


@given(runs)
def test_a_topic_that_was_deleted_before_all_of_them_gets_its_rows(
    found: tuple[list[Any], bytearray],
) -> None:
    chunks, _ = found
    tombstones = {topic.encode(): LOG_START for topic in TOPICS}
    for kernel in (KERNEL, PURE):
        plain, again = Queues(kernel), Queues(kernel)
        plain.put(chunks)
        assert again.put(chunks, tombstones=tombstones) is not None
        assert again.state() == plain.state()


@given(runs)
def test_a_queue_whose_topic_was_deleted_gets_no_more_rows(
    found: tuple[list[Any], bytearray],
) -> None:
    """Its topic may be there again, with a queue of the same name."""
    chunks, _ = found
    for kernel in (KERNEL, PURE):
        deleted, again = Queues(kernel), Queues(kernel)
        deleted.put(chunks)
        for _, end in deleted.named():
            end.takes_fast_rows = False
        before = deleted.state()
        assert again.put(chunks, keeps_places=True) is not None
        assert deleted.state() == before
        assert again.state() == before


def make_odd(queues: Queues, topic: bytes, oddity: str) -> None:
    if oddity == "gone":
        del queues.tails[topic]
    elif oddity == "no queue":
        queues.tails[topic] = {}
    for end in queues.tails.get(topic, {}).values():
        if oddity == "kind":
            end.takes_fast_rows = False
        elif oddity == "offset":
            end.queue_offset_max += 1
        elif oddity == "place":
            end.physical_end = 1 << 40


@given(runs, st.sets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 2))))
def test_only_arrivals_in_watched_queues_are_announced(
    found: tuple[list[Any], bytearray], names: set[tuple[str, int]]
) -> None:
    watched = {(topic.encode(), queue_id): None for topic, queue_id in names}
    for kernel in (KERNEL, PURE):
        everywhere, some = Queues(kernel), Queues(kernel)
        everywhere.put(found[0])
        some.put(found[0], watched=watched)
        wanted = {key: before for key, before in everywhere.grown.items() if key in watched}
        assert some.grown == wanted
        assert some.state()[0] == everywhere.state()[0]
