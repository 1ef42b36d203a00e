"""The stored messages that the broker traces itself."""

from __future__ import annotations

import pytest

from contrail.broker.state.silent_producers import (
    FORGET_MS,
    HOLD_MS,
    SilentProducers,
    StoredSend,
)

HOST = b"\x7f\x00\x00\x01\x00\x00\x10\x01"
OTHER_PORT = b"\x7f\x00\x00\x01\x00\x00\x20\x02"
OTHER_HOST = b"\x0a\x00\x00\x01\x00\x00\x10\x01"


def stored(number: int, stored_ms: int, group: bytes = b"shop", host: bytes = HOST) -> StoredSend:
    return StoredSend(group, b"orders", b"", 5, host, number, stored_ms)


def numbers(sends: list[StoredSend]) -> list[int]:
    return [send.physical_offset for send in sends]


def test_messages_of_a_new_producer_are_held_then_go_out_as_they_come() -> None:
    silent = SilentProducers()
    silent.stored(stored(1, 1000))
    assert silent.take(1000 + HOLD_MS - 1, 10) == []
    assert numbers(silent.take(1000 + HOLD_MS, 10)) == [1]
    silent.stored(stored(2, 1001 + HOLD_MS))
    assert numbers(silent.take(1001 + HOLD_MS, 10)) == [2]


@pytest.mark.parametrize("name", [b"shop-PRODUCER-1", b"shop-PRODUCER-17", b"shop-PRODUCER"])
def test_messages_of_a_producer_that_traces_are_left_to_it(name: bytes) -> None:
    silent = SilentProducers()
    silent.stored(stored(1, 1000))
    silent.traces_arrived(b"_INNER_TRACE_PRODUCER-" + name, OTHER_PORT, 2000)
    silent.stored(stored(2, 2001))
    silent.stored(stored(3, 2002, group=b"other"))
    silent.stored(stored(4, 2003, host=OTHER_HOST))
    assert numbers(silent.take(2003 + HOLD_MS, 10)) == [3, 4]
    assert len(silent) == 0


def test_the_traces_of_a_consumer_say_nothing_about_a_producer() -> None:
    silent = SilentProducers()
    silent.stored(stored(1, 1000))
    silent.traces_arrived(b"_INNER_TRACE_PRODUCER-shop-CONSUMER-1", HOST, 2000)
    silent.traces_arrived(b"_INNER_TRACE_PRODUCER", HOST, 2000)
    assert numbers(silent.take(1000 + HOLD_MS, 10)) == [1]


def test_a_producer_that_has_not_traced_for_long_is_traced_again() -> None:
    silent = SilentProducers()
    silent.traces_arrived(b"_INNER_TRACE_PRODUCER-shop-PRODUCER-1", HOST, 1000)
    silent.stored(stored(1, 1000 + FORGET_MS))
    silent.stored(stored(2, 1001 + FORGET_MS))
    assert numbers(silent.take(1001 + FORGET_MS, 10)) == [2]


def test_quiet_producers_are_forgotten_and_held_anew() -> None:
    silent = SilentProducers(producers_max=1)
    silent.stored(stored(1, 1000))
    silent.take(1000 + HOLD_MS, 10)
    silent.expire(1001 + FORGET_MS)
    silent.stored(stored(2, 1001 + FORGET_MS, group=b"other"))
    assert silent.take(1001 + FORGET_MS, 10) == []
    assert (len(silent), silent.dropped_count) == (1, 0)


def test_traces_without_room_are_dropped_and_counted() -> None:
    silent = SilentProducers(waiting_max=2, producers_max=1)
    for number in range(3):
        silent.stored(stored(number, 1000))
    silent.stored(stored(3, 1000, group=b"other"))
    assert silent.dropped_count == 2
    assert numbers(silent.take(1000 + HOLD_MS, 10)) == [0, 1]


def test_one_call_takes_a_bounded_number_and_the_last_one_holds_no_message_back() -> None:
    silent = SilentProducers()
    for number in range(5):
        silent.stored(stored(number, 1000))
    assert numbers(silent.take(1000 + HOLD_MS, 2)) == [0, 1]
    silent.stored(stored(5, 1000, group=b"new"))
    assert numbers(silent.take(1001, 10, is_last=True)) == [2, 3, 4, 5]
