"""A start reads the log's deliveries without decoding what waited for nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.errors import OpeningAbandoned
from contrail.model.message import MessageDraft
from contrail.store.log import MessageStore
from contrail.store.state.record_marks import RecordMarks
from tests.fault.store_setup import small_config

MARKS = RecordMarks(frozenset((b"timers",)), b"TIMER_OUT_MS")
COUNT = 200


def draft(number: int) -> MessageDraft:
    """One of ten: of the topic, with the property, delivered, committed; the others plain."""
    kind = number % 10
    return MessageDraft(
        topic=b"timers" if kind == 1 else b"orders",
        queue_id=0,
        body=b"%d" % number * 20,
        properties=b"TIMER_OUT_MS\x0150\x02" if kind == 3 else b"KEYS\x01k\x02",
        sys_flag=8 if kind == 5 else 0,
        prepared_transaction_offset=-1 - number if kind == 7 else 0,
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with MessageStore.open(small_config(tmp_path)) as store:
        store.append([draft(number) for number in range(COUNT)])
    return tmp_path


def places(store: MessageStore, start: int = 0) -> list[int]:
    found = store.marked_between(start, store.visible_end, MARKS)
    return [message.physical_offset for message in found]


def test_the_same_records_are_found_as_by_decoding_all_of_them(root: Path) -> None:
    with MessageStore.open(small_config(root)) as store:
        everything = list(store.messages_between(0, store.visible_end))
        wanted = [
            one.physical_offset for at, one in enumerate(everything) if at % 10 in (1, 3, 5, 7)
        ]
        assert len(everything) == COUNT and store.visible_end > 2 * store.segment_bytes
        assert places(store) == wanted
        assert places(store, wanted[5]) == wanted[5:]


def test_damaged_records_are_passed_over_and_told_of(root: Path) -> None:
    with MessageStore.open(small_config(root)) as store:
        wanted = places(store)
        broken, cut = store.record(wanted[4]), store.record(wanted[9])
    for message, at, bytes_ in ((broken, 90, b"?"), (cut, 0, b"\x55" * cut.record_bytes)):
        segment, position = divmod(message.physical_offset, small_config(root).segment_bytes)
        path = root / "commitlog" / f"{segment * small_config(root).segment_bytes:020}"
        with path.open("r+b") as file:
            file.seek(position + at)
            file.write(bytes_)
    with MessageStore.open(small_config(root)) as store:
        assert places(store) == [*wanted[:4], *wanted[5:9], *wanted[10:]]
        assert len(store.damage.records) == 2


def test_a_stop_ends_the_reading(root: Path) -> None:
    asked = False
    with MessageStore.open(small_config(root), is_abandoned=lambda: asked) as store:
        walk = store.marked_between(0, store.visible_end, MARKS)
        next(walk)
        asked = True
        with pytest.raises(OpeningAbandoned):
            list(walk)
