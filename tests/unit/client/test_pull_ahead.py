"""The planner of pulls sent ahead: no message is lost or repeated, whatever the answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.state.pull_ahead import Ask, PullAhead

Payload = list[int]


def asks_of(ahead: PullAhead[Payload]) -> list[Ask]:
    """All pulls to send now."""
    found = []
    while (ask := ahead.next_ask()) is not None:
        found.append(ask)
    return found


def answer(ahead: PullAhead[Payload], ask: Ask, count: int) -> None:
    """The broker answers a pull with ``count`` messages."""
    end = ask.queue_offset + count
    ahead.answered(ask, end, list(range(ask.queue_offset, end)), 1_000 * count)


def taken(ahead: PullAhead[Payload]) -> list[int]:
    """The offsets that can be handed on, cut to the range of each answer."""
    return [
        queue_offset
        for start, end, payload in ahead.take()
        for queue_offset in payload
        if start <= queue_offset < end
    ]


def test_pulls_are_sent_ahead_of_answers() -> None:
    ahead: PullAhead[Payload] = PullAhead(10, 100, count_max=32, asks_max=16)
    assert asks_of(ahead) == [Ask(10, 42, 32), Ask(42, 74, 32), Ask(74, 100, 26)]
    assert ahead.next_ask() is None


def test_an_answer_that_comes_early_waits_for_those_before_it() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 64)
    first, second = asks_of(ahead)
    answer(ahead, second, 32)
    assert taken(ahead) == []
    answer(ahead, first, 32)
    assert taken(ahead) == list(range(64))
    assert ahead.is_done


def test_messages_missing_from_a_short_answer_are_pulled_next() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 1_000, asks_max=2)
    first, second = asks_of(ahead)
    answer(ahead, second, 32)
    answer(ahead, first, 15)
    gap, *_ = asks_of(ahead)
    assert gap == Ask(15, 32, 17)
    assert taken(ahead) == list(range(15))


def test_short_answers_make_the_next_pulls_shorter_and_whole_ones_longer_again() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 100_000, asks_max=1)
    (ask,) = asks_of(ahead)
    answer(ahead, ask, 8)
    lengths = []
    for _ in range(900):
        taken(ahead)
        (ask,) = asks_of(ahead)
        lengths.append(ask.count_max)
        answer(ahead, ask, ask.count_max)
    assert lengths[0] == 8
    assert lengths[-1] == 32


def test_a_limit_of_the_broker_is_tried_less_and_less() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 1_000_000, count_max=512, asks_max=1)
    tries = 0
    for _ in range(5_000):
        taken(ahead)
        (ask,) = asks_of(ahead)
        tries += ask.count_max > 32
        answer(ahead, ask, min(ask.count_max, 32))
    assert 3 <= tries <= 40


def test_gaps_are_filled_within_the_bytes_that_may_be_outstanding() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 10_000, count_max=512, asks_max=32, bytes_max=4 << 20)
    first = ahead.next_ask()
    assert first is not None
    ahead.answered(first, 16, list(range(16)), 1 << 20)
    assert len(asks_of(ahead)) == 4


def test_large_answers_lower_the_number_of_outstanding_pulls() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 10_000, asks_max=16, bytes_max=8 << 20)
    ask = ahead.next_ask()
    assert ask is not None
    ahead.answered(ask, 32, list(range(32)), 4 << 20)
    taken(ahead)
    assert len(asks_of(ahead)) == 2


def test_through_a_filter_one_pull_is_outstanding_and_reaches_to_the_end() -> None:
    ahead: PullAhead[Payload] = PullAhead(5, 5_000, in_order=True)
    assert asks_of(ahead) == [Ask(5, 5_000, 32)]
    ahead.answered(Ask(5, 5_000, 32), 805, [7, 9])
    assert taken(ahead) == [7, 9]
    assert asks_of(ahead) == [Ask(805, 5_000, 32)]


def test_missing_messages_are_skipped_and_earlier_ones_kept() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 10_000, asks_max=4)
    asks = asks_of(ahead)
    answer(ahead, asks[1], 32)
    ahead.missing(asks[0], 9_990)
    ahead.missing(asks[2], 9_990)
    ahead.missing(asks[3], 9_990)
    assert taken(ahead) == list(range(32, 64))
    (rest,) = asks_of(ahead)
    assert rest == Ask(9_990, 10_000, 10)
    answer(ahead, rest, 10)
    assert taken(ahead) == list(range(9_990, 10_000))
    assert ahead.is_done


def test_an_answer_that_covers_nothing_is_refused() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 10)
    (ask,) = asks_of(ahead)
    with pytest.raises(ValueError, match="ask again"):
        ahead.answered(ask, 0, [])


def test_an_empty_range_is_done_at_once() -> None:
    ahead: PullAhead[Payload] = PullAhead(7, 7)
    assert ahead.is_done
    assert ahead.next_ask() is None


def test_after_abandon_no_pull_is_planned() -> None:
    ahead: PullAhead[Payload] = PullAhead(0, 100)
    ahead.next_ask()
    ahead.abandon()
    assert ahead.is_done
    assert ahead.next_ask() is None


@given(
    st.integers(0, 50),
    st.integers(0, 400),
    st.integers(1, 40),
    st.integers(1, 20),
    st.booleans(),
    st.data(),
)
def test_every_message_comes_once_and_in_order(
    start: int, length: int, count_max: int, asks_max: int, in_order: bool, data: st.DataObject
) -> None:
    """Answers are short, early, late, too long or lost; the first messages may be deleted."""
    end = start + length
    first = start + data.draw(st.integers(0, length), label="the oldest that is left")
    first = first if data.draw(st.booleans(), label="retention") else start
    ahead: PullAhead[Payload] = PullAhead(
        start, end, count_max=count_max, asks_max=asks_max, bytes_max=200_000, in_order=in_order
    )
    waiting: list[Ask] = []
    found: list[int] = []

    def lost() -> None:
        ahead.lost()
        waiting.clear()

    def again() -> None:
        ahead.again(waiting.pop(data.draw(st.integers(0, len(waiting) - 1))))

    def answered() -> None:
        ask = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        if ask.queue_offset < first:
            ahead.missing(ask, min(first, end))
        else:
            answer(ahead, ask, data.draw(st.integers(1, ask.count_max + 3)))

    events: list[Callable[[], None]] = [answered, answered, answered, answered, again, lost]
    rounds = 0
    while not ahead.is_done:
        waiting += asks_of(ahead)
        assert waiting, "nothing is on its way, and nothing is to be asked"
        assert len(waiting) <= asks_max
        event = data.draw(st.sampled_from(events)) if rounds < 100 else answered
        rounds += 1
        event()
        found += taken(ahead)
    assert found == list(range(first, end))
