"""The queue that an argument leads to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.message import Message, MessageQueue
from contrail.client.selectors import (
    HashSelector,
    MachineRoomSelector,
    RandomSelector,
    java_hash_of,
)
from contrail.errors import MessageInvalid

MESSAGE = Message("t", b"x")


def queues(*names: str, count: int = 4) -> list[MessageQueue]:
    return [MessageQueue("t", name, at) for name in names for at in range(count)]


@pytest.mark.proves("client.producer.sharding-keys")
@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("", 0),
        ("order-1", -1207111310),
        ("订单", 1129459),
        (7, 7),
        (-7, -7),
        (True, 1231),
        (1 << 40, 256),
        (-(1 << 40), -256),
        # Java's Integer.MIN_VALUE, whose absolute value is itself there.
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_arguments_have_the_hash_java_gives_them(argument: object, expected: int) -> None:
    assert java_hash_of(argument) == expected


@given(argument=st.one_of(st.text(), st.integers(-(1 << 63), (1 << 63) - 1)))
def test_equal_arguments_lead_to_one_queue(argument: object) -> None:
    five = queues("a", count=5)
    chosen = HashSelector()(five, MESSAGE, argument)
    assert chosen == HashSelector()(five, MESSAGE, argument)
    # Java's remainder keeps the sign, and its absolute value is taken afterwards.
    assert chosen.queue_id == abs(java_hash_of(argument)) % 5


def test_an_argument_without_a_hash_of_java_is_refused() -> None:
    with pytest.raises(MessageInvalid, match="a str or an int"):
        HashSelector()(queues("a"), MESSAGE, object())


def test_the_random_selector_takes_any_argument() -> None:
    assert RandomSelector(lambda count: count - 1)(queues("a"), MESSAGE, None).queue_id == 3


def test_only_queues_of_the_given_rooms_are_taken() -> None:
    both = queues("hz@a", "sh@b", "plain", count=2)
    near = MachineRoomSelector({"sh"}, lambda count: count - 1)
    assert near(both, MESSAGE, None) == MessageQueue("t", "sh@b", 1)
    assert near(both, MESSAGE, 4) == MessageQueue("t", "sh@b", 0)


def test_no_queue_in_the_given_rooms_is_an_error_that_names_them() -> None:
    with pytest.raises(MessageInvalid, match=r"rooms bj.*hz@a, plain"):
        MachineRoomSelector({"bj"})(queues("hz@a", "plain"), MESSAGE, None)
