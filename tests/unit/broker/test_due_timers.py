"""Messages whose slot is near: by the millisecond, deletions included."""

from __future__ import annotations

from contrail.broker.state.due_timers import DueTimer, DueTimers, key_of_one
from contrail.model.message import MessageDraft


def due(deliver_ms: int, place: int, *, slot_ms: int = 0, byte_count: int = 100) -> DueTimer:
    draft = MessageDraft(b"orders", 0, b"")
    key = b"orders+%d" % place
    return DueTimer(deliver_ms, place, slot_ms, slot_ms, 0, b"orders", key, draft, byte_count)


def test_they_come_by_time_and_then_by_place() -> None:
    timers = DueTimers()
    for timer in (due(30, 1), due(10, 9), due(10, 2), due(20, 5)):
        timers.add(timer)
    assert timers.deliver_ms_min == 10
    taken = timers.take_due(20, 10, 1 << 20)
    assert [timer.physical_offset for timer in taken] == [2, 9, 5]
    assert timers.take_due(29, 10, 1 << 20) == []


def test_one_step_is_bounded_by_count_and_by_bytes_but_never_empty() -> None:
    timers = DueTimers()
    for place in range(5):
        timers.add(due(1, place, byte_count=1000))
    assert len(timers.take_due(1, 2, 1 << 20)) == 2
    assert len(timers.take_due(1, 10, 1500)) == 1
    assert len(timers.take_due(1, 10, 1)) == 1


def test_a_message_put_back_is_next_again() -> None:
    timers = DueTimers()
    timers.add(due(1, 1))
    timers.add(due(1, 2))
    timers.put_back(timers.take_due(1, 1, 1 << 20))
    assert [timer.physical_offset for timer in timers.take_due(1, 9, 1 << 20)] == [1, 2]


def test_a_slot_is_open_until_all_of_it_is_finished() -> None:
    timers = DueTimers()
    timers.add(due(1, 1, slot_ms=1000))
    timers.add(due(1, 2, slot_ms=1000))
    timers.add(due(1, 3, slot_ms=2000))
    first, second, third = timers.take_due(1, 9, 1 << 20)
    timers.finish(first)
    assert timers.slot_ms_min == 1000
    timers.finish(second)
    assert timers.slot_ms_min == 2000
    timers.finish(third)
    assert timers.slot_ms_min is None and timers.bytes_held == 0


def test_a_deletion_counts_in_its_slot_only_and_is_missed_where_nothing_was() -> None:
    timers = DueTimers()
    here, elsewhere = due(1, 1, slot_ms=1000), due(1, 1, slot_ms=2000)
    timers.delete(1000, here.key, b"orders")
    timers.delete(1000, b"anything+77", b"invoices")
    assert timers.take_deletion(here) and not timers.take_deletion(elsewhere)
    assert timers.forget_deletions(1000) == []
    assert timers.forget_deletions(1001) == [b"invoices"], (
        "the deletion's own topic, not what it names"
    )
    assert not timers.take_deletion(here)


def test_a_deletion_with_a_nonce_is_for_one_of_several_messages_with_a_key() -> None:
    timers = DueTimers()
    plain = due(1, 1)
    one, other = plain._replace(nonce=b"n1"), plain._replace(nonce=b"n2")
    timers.delete(0, key_of_one(plain.key, b"n1"), b"orders")
    assert [timers.take_deletion(timer) for timer in (plain, other, one)] == [False, False, True]
    # Without a nonce it is for all of them, as one of Apache's is.
    timers.delete(0, plain.key, b"orders")
    assert all(timers.take_deletion(timer) for timer in (plain, other, one))
