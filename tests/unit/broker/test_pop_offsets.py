"""Where pops go on: ahead of committed offsets, which follow the disk."""

from __future__ import annotations

import pytest

from contrail.broker.state.pop_offsets import Commit, PopOffsets

QUEUE = ("g", "t", 0)
OTHER = ("g", "t", 1)


@pytest.mark.proves("kinds.pop.durable-offsets")
def test_an_offset_is_committed_once_its_checkpoint_is_durable() -> None:
    offsets = PopOffsets()
    offsets.advance(QUEUE, 5)
    offsets.note(QUEUE, 5, 100, 50)
    offsets.advance(QUEUE, 9)
    offsets.advance(OTHER, 3)
    offsets.note(QUEUE, 9, 200, 100)
    offsets.note(OTHER, 3, 200, 100)
    assert (offsets.next_of(QUEUE), offsets.next_of(OTHER)) == (9, 3)
    assert offsets.waiting_from == 50
    assert offsets.settle(99) == []
    assert offsets.settle(100) == [Commit(QUEUE, 5)]
    assert (offsets.next_of(QUEUE), offsets.waiting_from) == (9, 100)
    assert offsets.settle(200) == [Commit(QUEUE, 9), Commit(OTHER, 3)]
    assert offsets.next_of(QUEUE) is None and offsets.waiting_from is None and not offsets


def test_messages_that_could_not_be_given_out_are_taken_back() -> None:
    offsets = PopOffsets()
    offsets.advance(QUEUE, 5)
    offsets.note(QUEUE, 5, 100, 50)
    offsets.advance(QUEUE, 9)
    offsets.take_back(QUEUE, 5)
    assert offsets.next_of(QUEUE) == 5
    assert offsets.settle(100) == [Commit(QUEUE, 5)]
    assert offsets.next_of(QUEUE) is None


def test_a_reset_makes_earlier_advances_void() -> None:
    offsets = PopOffsets()
    offsets.advance(QUEUE, 5)
    offsets.note(QUEUE, 5, 100, 50)
    offsets.advance(OTHER, 3)
    offsets.note(OTHER, 3, 100, 50)
    offsets.reset(QUEUE)
    assert offsets.next_of(QUEUE) is None
    assert offsets.settle(100) == [Commit(OTHER, 3)]
