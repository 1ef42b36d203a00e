"""Damaged heads of one to three adjacent records: an acknowledged message is read or reported.

Cases are generated: which bytes of which records, where in their queue, which rows are left, and
whether a broker or ``verify --repair`` meets the damage first. In every case

- no message is read at an offset that it was not acknowledged at,
- every acknowledged message is read at its own offset, or reported as damaged,
- ``verify`` does not report the store as repaired or sound while a lost message is not reported,
- ``--replace-damaged`` leaves a sound folder, with the other messages unchanged.

Two cases cannot be decided without rows: two records of different queues claim one queue offset
that either could have; or, beside a record that can no longer be decoded, another record claims an
offset of its neighbours. Then one message may be read at another's offset, and damage is reported.
"""

from __future__ import annotations

import logging
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from contrail.errors import StoreCorrupt
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from contrail.store.replace import replace_damaged
from contrail.store.verify import VerifyReport, verify_store
from tests.fault.store_setup import draft, small_config

SEED = 20_261_118
SLOTS = 40
# "ordess" is one bit from "orders", and both have neighbours one bit away in their queue ids.
ROUND = [("orders", 0), ("orders", 1), ("ordess", 0)]
ROUNDS = 8
BLOCK = ("parcels", 3)
QUEUES = [*ROUND, BLOCK]
# Head and topic of a record of ``draft`` with a topic of six letters, and the topic of the block.
HEAD_BYTES = [*range(88), *range(188, 195)]
PLACE_BYTES = [*range(12, 16), *range(20, 28), *range(189, 195)]
MASKS = (0x01, 0x04, 0x10, 0x40)
# Size, magic, checksum, physical offset and lengths: damaged there, the bytes are no record.
NOT_WHOLE_BYTES = {*range(12), *range(28, 36), *range(84, 88), 188}
# Makes a record look like the first half of a transaction, which gives no row.
ROWLESS_FLAG = (39, 0x04)
QUICK_CASES = 48


class Place(NamedTuple):
    topic: str
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return f"message {self.queue_offset} of queue {self.queue_id} of {self.topic}"


class Case(NamedTuple):
    """Flips by victim, which rows are lost, and whether a broker or ``verify`` comes first."""

    flips: tuple[tuple[Place, int, int], ...]
    lost_rows: str
    repair_first: bool


def generated(count: int, rng: random.Random) -> Iterator[Case]:
    for number in range(count):
        adjacent = number % 3 + 1
        lost_rows = ("none", "all", "victims")[number // 3 % 3]
        position = ("first", "middle", "last")[number // 9 % 3]
        victims = _victims(adjacent, position, rng)
        everywhere = number % 4 == 3
        at, mask = rng.choice(PLACE_BYTES), rng.choice(MASKS)
        flips = []
        for victim in victims:
            if number % 5:
                at = rng.choice(HEAD_BYTES if everywhere else PLACE_BYTES)
                mask = rng.choice(MASKS)
            flips.append((victim, at, mask))
        yield Case(tuple(flips), lost_rows, bool(number // 27 % 2))


def _victims(adjacent: int, position: str, rng: random.Random) -> list[Place]:
    if rng.random() < 0.2:
        # Adjacent records of several queues.
        at = {"first": 0, "middle": 10, "last": ROUNDS * len(ROUND) - adjacent}[position]
        numbers = range(at, at + adjacent)
        return [Place(*ROUND[n % len(ROUND)], n // len(ROUND)) for n in numbers]
    key = rng.choice([*ROUND, BLOCK])
    first = {"first": 0, "middle": ROUNDS // 2 - 1, "last": ROUNDS - adjacent}[position]
    return [Place(*key, first + n) for n in range(adjacent)]


# Cases that generation found: claims that continue a queue by chance, at both its ends.
FOUND = [
    Case(((Place("ordess", 0, 0), 27, 1), (Place("ordess", 0, 1), 27, 16)), "all", False),
    Case(((Place("orders", 0, 0), 27, 1), (Place("orders", 0, 1), 27, 1)), "victims", False),
    Case(((Place("orders", 0, 0), 27, 1), (Place("orders", 0, 1), 14, 64)), "victims", True),
    Case(((Place("orders", 0, 6), 20, 1), (Place("orders", 0, 7), 27, 1)), "all", False),
    Case(((Place("parcels", 3, 6), 25, 64), (Place("parcels", 3, 7), 30, 64)), "none", False),
]


def number_of(place: Place) -> int:
    return QUEUES.index(place[:2]) * 1000 + place.queue_offset


ALL = [Place(*key, queue_offset) for key in QUEUES for queue_offset in range(ROUNDS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three queues in turn, with the whole of a fourth in their middle; closed in order."""
    root = tmp_path_factory.mktemp("whole") / "store"
    with opened(root) as store:
        for queue_offset in range(ROUNDS):
            for key in ROUND:
                send(store, [Place(*key, queue_offset)])
            if queue_offset == ROUNDS // 2:
                send(store, [Place(*BLOCK, n) for n in range(ROUNDS)])
        store.dispatch()
    return root


def send(store: MessageStore, places: list[Place]) -> None:
    drafts = [draft(number_of(one), topic=one.topic, queue_id=one.queue_id) for one in places]
    appended = store.append(drafts)
    assert [one.queue_offset for one in places] == list(appended.queue_offsets)


def opened(root: Path) -> MessageStore:
    return MessageStore.open(small_config(root))


def flip(root: Path, physical_offset: int, mask: int) -> None:
    start = physical_offset - physical_offset % 8192
    path = root / "commitlog" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    data[physical_offset - start] ^= mask
    path.write_bytes(data)


class Judge:
    """Collects the reports of one case, and compares messages read with those acknowledged."""

    def __init__(self, root: Path, case: Case, caplog: pytest.LogCaptureFixture) -> None:
        self._root = root
        self._caplog = caplog
        self._victims = {victim for victim, _, _ in case.flips}
        self._ranges: dict[Place, tuple[int, int]] = {}
        self.doubtful = doubtful_places(root, case)
        reader = StoreReader.open(root, index_slot_count=SLOTS)
        for victim, at, mask in case.flips:
            queue = reader.queues[victim.topic.encode(), victim.queue_id]
            start, size = queue.place(victim.queue_offset)
            self._ranges[victim] = (start, start + size)
            flip(root, start + min(at, size - 1), mask)
        # Records without a row of their own are reported once, when the queue is derived anew.
        self.rowless = {victim for victim, at, mask in case.flips if (at, mask) == ROWLESS_FLAG}
        self.told = ""

    def hear(self, *words: object) -> None:
        self.told += "\n".join(map(str, words)) + "\n"

    def hear_report(self, report: VerifyReport) -> None:
        self.hear(*report.notes, *report.files)
        for one in report.log:
            self.hear(f"bytes {one.physical_start} to {one.physical_end}")
            self.hear(f"message {one.queue_offset} of queue {one.queue_id} of {one.topic}")

    def is_told(self, place: Place) -> bool:
        if str(place) in self.told or place not in self._ranges:
            return str(place) in self.told
        start, end = self._ranges[place]
        told = re.findall(r"bytes? (\d+) to (\d+)", self.told)
        return any(int(first) <= start and end <= int(last) for first, last in told)

    def read(self, store: MessageStore) -> set[Place]:
        """Every message that can be read is at its own offset; every other is reported."""
        found: set[Place] = set()
        assert {*store.queues()} <= {(topic.encode(), queue_id) for topic, queue_id in QUEUES}
        for place in ALL:
            key = (place.topic.encode(), place.queue_id)
            assert store.queue_offset_max(*key) <= ROUNDS
            result = store.get(*key, place.queue_offset, count_max=1)
            if not result.message_count:
                self.hear(f"{place} {result.problem}" if "damaged" in result.problem else "")
                continue
            (message,) = result.messages
            if int(message.body[:8]) == number_of(place):
                found.add(place)
            else:
                assert place in self.doubtful, f"{int(message.body[:8])} is read as {place}"
        self.hear(*store.recovery.problems, *store.damage.known(), self._caplog.text)
        lost = {*ALL} - found
        assert len(lost - self._victims) <= len(self.doubtful), lost - self._victims
        assert lost - self._victims <= self.doubtful, lost - self._victims
        untold = {one for one in lost - self.doubtful if not self.is_told(one)}
        assert not untold, f"not told of: {untold}"
        return found


def doubtful_places(root: Path, case: Case) -> set[Place]:
    """Addresses that two records claim, and the true addresses of both, if no row is left."""
    if case.lost_rows == "none":
        return set()
    doubtful: set[Place] = set()
    for victim, at, mask in case.flips:
        claimed = claimed_place(victim, at, mask)
        is_uncounted = any(byte in NOT_WHOLE_BYTES for _, byte, _ in case.flips)
        if claimed in ALL and claimed != victim and (claimed[:2] != victim[:2] or is_uncounted):
            doubtful |= {victim, claimed}
    return doubtful


def claimed_place(victim: Place, at: int, mask: int) -> Place:
    if 12 <= at < 16:
        return victim._replace(queue_id=victim.queue_id ^ mask << 8 * (15 - at))
    if 189 <= at < 189 + len(victim.topic):
        letters = bytearray(victim.topic.encode())
        letters[at - 189] ^= mask
        return victim._replace(topic=letters.decode("latin-1"))
    if 20 <= at < 28:
        return victim._replace(queue_offset=victim.queue_offset ^ mask << 8 * (27 - at))
    return victim


def tried(whole: Path, root: Path, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(whole, root)
    caplog.clear()
    judge = Judge(root, case, caplog)
    if case.lost_rows == "all":
        shutil.rmtree(root / "consumequeue")
    elif case.lost_rows == "victims":
        for topic, queue_id in {victim[:2] for victim, _, _ in case.flips}:
            shutil.rmtree(root / "consumequeue" / topic / str(queue_id))
    if case.repair_first:
        repaired(root, judge)
        met_by_a_broker(root, judge)
    else:
        met_by_a_broker(root, judge)
        repaired(root, judge)
    for _ in range(2):
        # A record that no row led to is identified once the queues are whole again.
        replaced = replace_damaged(root, index_slot_count=SLOTS)
        assert replaced.left == []
        judge.hear(*replaced.replaced)
        verify_store(root, repair=True, index_slot_count=SLOTS)
    assert verify_store(root, index_slot_count=SLOTS).is_sound
    with opened(root) as store:
        judge.read(store)


def met_by_a_broker(root: Path, judge: Judge) -> None:
    try:
        with opened(root) as store:
            while not store.scrubber.run_once(1 << 20).finished_pass:
                pass
            found = judge.read(store)
            while not store.scrubber.run_once(1 << 20).finished_pass:
                pass
            assert judge.read(store) == found
    except StoreCorrupt as error:
        judge.hear(error)


def repaired(root: Path, judge: Judge) -> None:
    report = verify_store(root, repair=True, index_slot_count=SLOTS)
    judge.hear_report(report)
    again = verify_store(root, repair=True, index_slot_count=SLOTS)
    assert again.queues == [] and again.index == []
    judge.hear_report(again)
    try:
        with opened(root) as store:
            found = judge.read(store)
    except StoreCorrupt:
        assert not report.is_sound and not again.is_sound
        return
    lost = {*ALL} - found - judge.doubtful - judge.rowless
    assert not lost or not (report.is_sound and not report.notes), f"sound without {lost}"


def try_all(whole: Path, folder: Path, cases: list[Case], caplog: pytest.LogCaptureFixture) -> None:
    for number, case in enumerate(cases):
        root = folder / f"store{number}"
        with caplog.at_level(logging.WARNING):
            try:
                tried(whole, root, case, caplog)
            except AssertionError as error:
                error.add_note(f"case {number}: {case}")
                raise
        shutil.rmtree(root)


@pytest.mark.proves("store.damage.first-record", "store.damage.several-adjacent-records")
def test_damaged_heads_of_adjacent_records_are_reported_and_harm_no_other_message(
    whole: Path, memory_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [*FOUND, *generated(QUICK_CASES, random.Random(SEED))]
    try_all(whole, memory_path, cases, caplog)


@pytest.mark.proves("store.damage.several-adjacent-records")
@pytest.mark.matrix
@pytest.mark.parametrize("part", range(8))
def test_damaged_heads_of_adjacent_records_at_any_byte_harm_no_other_message(
    whole: Path, memory_path: Path, part: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every byte of a head and a topic many times over."""
    try_all(whole, memory_path, [*generated(250, random.Random(SEED + 1 + part))], caplog)
