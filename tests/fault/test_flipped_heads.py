"""A flipped bit in a record harms that record alone, whichever of its bytes it is in.

The record's checksum covers its body only. Whichever other byte is damaged, every other message is
read before and after scrubbing, ``verify --repair``, a restart and ``--replace-damaged``; and the
damage is reported, counted and replaced, unless it is in a field that decides nothing.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contrail.broker.services.stored_records import record_at
from contrail.errors import RecordDamaged
from contrail.store.log import MessageStore
from contrail.store.reader import StoreReader
from contrail.store.replace import LOST_FOLDER, replace_damaged
from contrail.store.state.reading import GetStatus
from contrail.store.verify import verify_store
from tests.fault.store_setup import draft, numbers_of, small_config

SLOTS = 40
ROUNDS = 20
# Queues in the order of the log; each gets one message a round. "ordess" is one bit from "orders".
QUEUES = [("orders", 0), ("orders", 1), ("ordess", 0), ("parcels", 3)]
VICTIM_ROUND = 7

# Positions in a record of the first version; the body is that of ``draft``.
FIELDS = {
    "size": (0, 4),
    "magic": (4, 8),
    "body crc": (8, 12),
    "queue id": (12, 16),
    "flag": (16, 20),
    "queue offset": (20, 28),
    "physical offset": (28, 36),
    "sys flag": (36, 40),
    "born timestamp": (40, 48),
    "born host": (48, 56),
    "store timestamp": (56, 64),
    "store host": (64, 72),
    "reconsume times": (72, 76),
    "prepared transaction offset": (76, 84),
    "body length": (84, 88),
    "body": (88, 188),
    "topic length": (188, 189),
    "topic": (189, 195),
    "properties length": (195, 197),
    "properties": (197, 231),
}
# No check covers these fields, and no other message depends on them: the message is delivered.
HARMLESS = {
    "flag": "RocketMQ's applications set it; the store only hands it on",
    "sys flag": "but for two bits it says how the body is to be read; a row stays that leads to a "
    "record whose transaction type would give none",
    "born timestamp": "only handed on",
    "born host": "only handed on",
    "store timestamp": "searches by time compare it with others; reads do not",
    "store host": "only handed on",
    "reconsume times": "only handed on",
    "prepared transaction offset": "means something in records of other transaction types only",
    "properties": "keys, tags and what applications wrote; rows and index keep what was derived",
}
# The two bits: either host longer than it is, so that no length adds up.
TELLING_FLAGS = {(39, 0x10), (39, 0x20)}
# Such a record gives no row: the message is delivered by the row that it has, and with that lost.
ROWLESS_FLAG = (39, 0x04)
EVERY_BIT = ("queue id", "queue offset", "topic")
ENDS_ONLY = ("body", "properties")


class Flip(NamedTuple):
    """A bit of the victim's record."""

    field: str
    byte: int
    mask: int

    @property
    def is_harmless(self) -> bool:
        return self.field in HARMLESS and (self.byte, self.mask) not in TELLING_FLAGS


def flips_of(field: str) -> Iterator[Flip]:
    first, end = FIELDS[field]
    places = range(first, end) if field not in ENDS_ONLY else [first, first + 20, end - 1]
    for byte in places:
        every = field in EVERY_BIT or byte == 39
        for mask in [1 << bit for bit in range(8)] if every else [0x01, 0x10]:
            yield Flip(field, byte, mask)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four queues of twenty messages each, one after the other; closed in order."""
    root = tmp_path_factory.mktemp("whole") / "store"
    with opened(root) as store:
        number = 0
        for _ in range(ROUNDS):
            for topic, queue_id in QUEUES:
                store.append([draft(number, topic=topic, queue_id=queue_id)])
                number += 1
        store.dispatch()
    return root


def opened(root: Path, **changes: Any) -> MessageStore:
    return MessageStore.open(small_config(root, **changes))


def all_numbers(store: MessageStore) -> dict[tuple[str, int], list[int]]:
    return {key: numbers_of(store, *key) for key in QUEUES}


def expected(lost: set[int]) -> dict[tuple[str, int], list[int]]:
    return {
        key: [n for n in range(at, ROUNDS * len(QUEUES), len(QUEUES)) if n not in lost]
        for at, key in enumerate(QUEUES)
    }


def scrubbed(store: MessageStore) -> None:
    while not store.scrubber.run_once(1 << 20).finished_pass:
        pass


def turn(root: Path, physical_offset: int, mask: int) -> None:
    start = physical_offset - physical_offset % 8192
    path = root / "commitlog" / f"{start:020d}"
    with path.open("r+b") as file:
        file.seek(physical_offset - start)
        byte = file.read(1)[0]
        file.seek(physical_offset - start)
        file.write(bytes([byte ^ mask]))


def victim_place(root: Path, queue: int, number: int) -> tuple[int, int]:
    topic, queue_id = QUEUES[queue]
    reader = StoreReader.open(root, index_slot_count=SLOTS)
    return reader.queues[topic.encode(), queue_id].place(number)


def only_queues_that_were_made(store: MessageStore) -> None:
    made = sorted((topic.decode(), queue_id) for topic, queue_id in store.queues())
    assert made == sorted(QUEUES)


def told_of(store: MessageStore) -> list[tuple[Any, ...]]:
    return [(*one[:2], *one[3:]) for one in store.damage.known()]


@pytest.mark.proves(
    "store.repairs.neighbours",
    "store.damage.told",
    "store.damage.replaced",
    "store.damage.flipped-head",
)
@pytest.mark.parametrize("field", [pytest.param(one, id=one.replace(" ", "-")) for one in FIELDS])
def test_a_flipped_bit_harms_its_own_record_alone(
    whole: Path, memory_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue, number = 1, VICTIM_ROUND
    start, size = victim_place(whole, queue, number)
    assert size == FIELDS["properties"][1]
    for flip in flips_of(field):
        root = memory_path / "store"
        shutil.copytree(whole, root)
        turn(root, start + flip.byte, flip.mask)
        lost = set() if flip.is_harmless else {number * len(QUEUES) + queue}
        caplog.clear()
        damage = (start, start + size, *QUEUES[queue], number)
        try:
            live(root, flip, lost, damage, caplog)
            stopped(root, flip, lost, damage)
        except AssertionError as error:
            error.add_note(f"{flip}")
            raise
        shutil.rmtree(root)


def live(
    root: Path,
    flip: Flip,
    lost: set[int],
    damage: tuple[Any, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker meets the damage: by reads first, and by the scrubber first."""
    told = [damage] if lost else []
    for scrub_first in (False, True):
        caplog.clear()
        with opened(root) as store, caplog.at_level(logging.ERROR):
            if scrub_first:
                scrubbed(store)
            for _ in range(2):
                assert all_numbers(store) == expected(lost)
                scrubbed(store)
            assert told_of(store) == told
            assert store.damage.records.found_count == len(told)
            errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
            assert len(errors) == len(told), errors
            assert store.scrubber.counters.repaired_rows == (0 if lost else rows_changed(flip))
            only_queues_that_were_made(store)
            if lost:
                asked_for(store, damage, "is damaged: message")
                assert f"contrail store recover {root} --replace-damaged" in errors[0]


def rows_changed(flip: Flip) -> Any:
    """A changed tag gives another row: its tags code."""
    return AnyCount() if flip.field == "properties" else 0


class AnyCount:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = None  # type: ignore[assignment]


def asked_for(store: MessageStore, damage: tuple[Any, ...], words: str) -> None:
    """Read by queue offset, by physical offset and by key."""
    start, _, topic, queue_id, number = damage
    result = store.get(topic.encode(), queue_id, number, count_max=1)
    assert words in result.problem and result.message_count == 0
    key = f"ID{number * len(QUEUES) + QUEUES.index((topic, queue_id)):06d}".encode()
    with pytest.raises(RecordDamaged, match=words):
        store.query(topic.encode(), key)
    with pytest.raises(RecordDamaged, match=words):
        record_at(store, start)


def stopped(root: Path, flip: Flip, lost: set[int], damage: tuple[Any, ...]) -> None:
    """An operator meets the damage: verify, repair, restart, replace, restart, without queues."""
    named = [(*damage[:2],)] if lost else []
    report = verify_store(root, repair=True, index_slot_count=SLOTS)
    assert [(one.physical_start, one.physical_end) for one in report.log] == named
    again = verify_store(root, repair=True, index_slot_count=SLOTS)
    assert again.queues == [] and again.index == []
    with opened(root) as store:
        assert all_numbers(store) == expected(lost)
        only_queues_that_were_made(store)
    replaced = replace_damaged(root, index_slot_count=SLOTS)
    places = [
        (*one_range(one), one.topic, one.queue_id, one.queue_offset) for one in replaced.replaced
    ]
    assert places == ([damage] if lost else []) and replaced.left == []
    assert (root / LOST_FOLDER).exists() == bool(lost)
    assert verify_store(root, repair=True, index_slot_count=SLOTS).is_sound
    after = verify_store(root, index_slot_count=SLOTS)
    assert after.is_sound and after.queues == []
    for folder in (None, "consumequeue"):
        if folder is not None:
            shutil.rmtree(root / folder)
            if (flip.byte, flip.mask) == ROWLESS_FLAG:
                lost = {damage[-1] * len(QUEUES) + QUEUES.index(damage[2:4])}
        with opened(root) as store:
            assert all_numbers(store) == expected(lost)
            scrubbed(store)
            assert all_numbers(store) == expected(lost)
            only_queues_that_were_made(store)
            if replaced.replaced:
                status = store.get(damage[2].encode(), damage[3], damage[4], count_max=1).status
                assert status is GetStatus.MESSAGE_REPLACED


def one_range(one: Any) -> tuple[int, int]:
    return one.physical_start, one.physical_end


@pytest.mark.proves("store.repairs.neighbours", "store.damage.flipped-head")
@pytest.mark.parametrize("with_note", [True, False], ids=["with-note", "without-note"])
@pytest.mark.parametrize("field", ["queue-id", "queue-offset", "topic"])
def test_queues_that_are_derived_from_the_log_alone_lose_that_message_alone(
    whole: Path, memory_path: Path, field: str, with_note: bool
) -> None:
    """No row is left; ``contrail.queues``, which notes where queues ended, may be."""
    queue, number = 1, VICTIM_ROUND
    start, size = victim_place(whole, queue, number)
    lost = {number * len(QUEUES) + queue}
    for flip in flips_of(field.replace("-", " ")):
        root = memory_path / "store"
        shutil.copytree(whole, root)
        turn(root, start + flip.byte, flip.mask)
        shutil.rmtree(root / "consumequeue")
        if not with_note:
            for name in root.glob("contrail.queues*"):
                name.unlink()
        try:
            with opened(root) as store:
                assert all_numbers(store) == expected(lost)
                scrubbed(store)
                assert all_numbers(store) == expected(lost)
                only_queues_that_were_made(store)
                assert told_of(store) == [(start, start + size, *QUEUES[queue], number)]
            (one,) = replace_damaged(root, index_slot_count=SLOTS).replaced
            assert (one.topic, one.queue_id, one.queue_offset) == (*QUEUES[queue], number)
            assert verify_store(root, repair=True, index_slot_count=SLOTS).is_sound
        except AssertionError as error:
            error.add_note(f"{flip}")
            raise
        shutil.rmtree(root)


@pytest.mark.proves("store.repairs.neighbours", "store.damage.first-record")
@pytest.mark.parametrize("victim", [(0, 0), (3, ROUNDS - 1), (1, ROUNDS - 1)])
@pytest.mark.parametrize("byte", [12, 15, 20, 27, 189, 194])
def test_a_damaged_first_or_last_record_harms_no_other_message_without_rows(
    whole: Path, memory_path: Path, victim: tuple[int, int], byte: int
) -> None:
    queue, number = victim
    start, size = victim_place(whole, queue, number)
    root = memory_path / "store"
    shutil.copytree(whole, root)
    turn(root, start + byte, 0x10)
    shutil.rmtree(root / "consumequeue")
    lost = {number * len(QUEUES) + queue}
    with opened(root) as store:
        assert all_numbers(store) == expected(lost)
        scrubbed(store)
        assert all_numbers(store) == expected(lost)
        only_queues_that_were_made(store)
        assert told_of(store) == [(start, start + size, *QUEUES[queue], number)]
        assert store.queue_offset_min(QUEUES[queue][0].encode(), QUEUES[queue][1]) == 0


@pytest.mark.proves("store.damage.damaged-notes")
def test_a_lone_record_whose_queue_was_never_noted_comes_back(tmp_path: Path) -> None:
    """Its folder was lost in a store without notes, as another broker leaves it."""
    root = tmp_path / "store"
    with opened(root) as store:
        store.append([draft(0, topic="bills"), draft(1), draft(2)])
        store.dispatch()
    for path in root.glob("contrail.*"):
        path.unlink()
    shutil.rmtree(root / "consumequeue" / "bills")
    opened(root).close()
    assert verify_store(root, repair=True, index_slot_count=SLOTS).is_sound
    with opened(root) as store:
        assert numbers_of(store, "bills") == [0]


@pytest.mark.proves("store.repairs.neighbours")
def test_of_two_records_that_claim_one_offset_one_is_lost_without_rows(
    whole: Path, memory_path: Path
) -> None:
    """Both lie where either could belong: which of the two was damaged cannot be decided."""
    start, _ = victim_place(whole, 0, VICTIM_ROUND)
    root = memory_path / "store"
    shutil.copytree(whole, root)
    turn(root, start + 15, 0x01)
    shutil.rmtree(root / "consumequeue")
    with opened(root) as store:
        found = all_numbers(store)
        everything = expected(set())
        assert {*everything["orders", 0]} - {*found["orders", 0]} == {VICTIM_ROUND * len(QUEUES)}
        assert len(found["orders", 1]) == ROUNDS
        only_queues_that_were_made(store)
        scrubbed(store)
        assert all_numbers(store) == found and len(told_of(store)) == 1


@pytest.mark.parametrize("byte", [15, 27, 22])
def test_a_batch_with_a_damaged_head_stops_no_reader(tmp_path: Path, byte: int) -> None:
    """Its row is derived from its properties, and reads compare it with its head."""
    root, topics = tmp_path / "store", frozenset({b"batches"})

    def opened_batches() -> MessageStore:
        return MessageStore.open(small_config(root), batch_topics=topics)

    with opened_batches() as store:
        for number in range(4):
            one = draft(number, topic="batches", INNER_NUM="5")
            store.append_inner_batch(one._replace(sys_flag=0x80))
        store.dispatch()
        (row,) = store.rows(b"batches", 0, 5, 1)
    turn(root, row.physical_offset + byte, 0x01)
    damage = (row.physical_offset, row.physical_offset + row.byte_count)
    for scrub_first in (False, True):
        with opened_batches() as store:
            if scrub_first:
                scrubbed(store)
            found = store.get(b"batches", 0, 5)
            assert (found.status, found.next_queue_offset) == (GetStatus.MESSAGE_DAMAGED, 10)
            assert store.get(b"batches", 0, 10).message_count == 2
            assert [one[:2] for one in store.damage.known()] == [damage]
            assert store.queues() == [(b"batches", 0)]
    assert [one[:2] for one in map(named, verify_store(root).log)] == [damage]
    (one,) = replace_damaged(root, index_slot_count=SLOTS).replaced
    assert (*one_range(one), one.queue_offset) == (*damage, 5)
    with opened_batches() as store:
        assert store.get(b"batches", 0, 5).status is GetStatus.MESSAGE_REPLACED


def named(finding: Any) -> tuple[int, int]:
    return finding.physical_start, finding.physical_end


@pytest.mark.parametrize("byte", [15, 27, 189])
def test_the_offline_reader_reports_the_damage_too(
    whole: Path, memory_path: Path, byte: int
) -> None:
    start, size = victim_place(whole, 1, VICTIM_ROUND)
    root = memory_path / "store"
    shutil.copytree(whole, root)
    turn(root, start + byte, 0x01)
    reader = StoreReader.open(root, index_slot_count=SLOTS)
    found = [int(one.body[:8]) for one in reader.messages(topic="orders", queue_id=1)]
    assert found == expected({VICTIM_ROUND * len(QUEUES) + 1})["orders", 1]
    assert [one[:2] for one in reader.damaged] == [(start, start + size)]


@pytest.mark.parametrize("was_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("queues_gone", [True, False], ids=["without-rows", "with-rows"])
def test_contrail_queues_is_ignored_where_another_broker_wrote_last(
    tmp_path: Path, was_closed: bool, queues_gone: bool
) -> None:
    """Without ``contrail.checkpoint`` the age of ``contrail.queues`` is unknown."""
    root = tmp_path / "store"
    with opened(root) as store:
        for number, topic in enumerate(("orders", "parcels", "bills")):
            store.append([draft(number, topic=topic)])
            store.dispatch()
    for path in root.glob("contrail.checkpoint*"):
        path.unlink()
    if queues_gone:
        shutil.rmtree(root / "consumequeue")
    if not was_closed:
        (root / "abort").write_bytes(b"")
    with opened(root) as store:
        found = [numbers_of(store, topic) for topic in ("orders", "parcels", "bills")]
        assert found == [[0], [1], [2]]


@pytest.mark.proves("store.damage.damaged-topic-name")
def test_a_lone_record_behind_kept_rows_is_trusted(tmp_path: Path) -> None:
    """Its queue kept its rows up to the last checkpoint; another queue has lost all of its own."""
    root, killed = tmp_path / "store", tmp_path / "killed"
    with opened(root) as store:
        store.append([draft(number) for number in range(3)])
        store.append([draft(100, topic="parcels")])
        store.dispatch()
        store.checkpoint()
        # Behind the checkpoint: two in the first segment, a lone one in the third.
        store.append([draft(number) for number in (3, 4)])
        store.append([draft(number, topic="parcels") for number in range(101, 180)])
        store.append([draft(5)])
        store.dispatch()
        shutil.copytree(root, killed)
    shutil.rmtree(killed / "consumequeue" / "parcels")
    with opened(killed) as store:
        assert numbers_of(store) == list(range(6))
        assert numbers_of(store, "parcels") == list(range(100, 180))
