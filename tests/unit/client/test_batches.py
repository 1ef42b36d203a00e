"""The messages that go together, and where a long list is cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.batches import common_sharding_key, cut, listed, prepare_batch
from contrail.client.message import Message, MessageQueue
from contrail.client.outgoing import Outgoing
from contrail.errors import MessageInvalid
from contrail.model.batch import decode_batch
from contrail.model.properties import decode_properties
from contrail.protocol.codes import RequestCode


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"ID{next(numbers)}"


def batched(*messages: Message, bytes_max: int = 4 << 20) -> Outgoing:
    return prepare_batch(messages, take_id=ids(), bytes_max=bytes_max)


def test_each_message_has_its_own_id_and_the_batch_another() -> None:
    outgoing = batched(Message("t", b"one", tags="a"), Message("t", b"two", flag=7))
    first, second = decode_batch(outgoing.body)
    assert (first.body, second.body, second.flag) == (b"one", b"two", 7)
    assert decode_properties(first.properties) == {"TAGS": "a", "UNIQ_KEY": "ID1"}
    assert decode_properties(second.properties) == {"UNIQ_KEY": "ID2"}
    assert outgoing.unique_id == "ID1,ID2"
    assert outgoing.properties == {"UNIQ_KEY": "ID3"}
    assert outgoing.is_batch
    assert outgoing.code is RequestCode.SEND_BATCH_MESSAGE


@pytest.mark.proves("client.producer.batch")
def test_a_batch_is_never_compressed() -> None:
    outgoing = batched(*(Message("t", b"a" * 5_000) for _ in range(3)))
    assert outgoing.sys_flag == 0
    assert len(outgoing.body) > 15_000


def test_a_batch_without_wait_store_ok_carries_the_flag() -> None:
    outgoing = batched(Message("t", b"x", wait_store_ok=False))
    assert outgoing.properties["WAIT"] == "false"


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({"topic": "u"}, "'t' and 'u'"),
        ({"wait_store_ok": False}, "wait_store_ok"),
        ({"delay_level": 1}, "cannot be in a batch"),
        ({"delay": 1}, "cannot be in a batch"),
        ({"deliver_at": 1}, "cannot be in a batch"),
        ({"body": b""}, "empty body"),
        ({"properties": {"TAGS": "a"}}, "tags="),
        ({"properties": {"p": "v" * 40_000}}, "32767"),
    ],
)
def test_messages_that_may_not_go_together_are_refused(second: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageInvalid, match=told):
        batched(Message("t", b"x"), Message(**{"topic": "t", "body": b"x", **second}))


def test_a_retry_topic_takes_no_batch() -> None:
    with pytest.raises(MessageInvalid, match="retry topic"):
        batched(Message("%RETRY%g", b"x"))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(MessageInvalid, match="no message"):
        batched()


@pytest.mark.proves("client.producer.batch")
def test_a_batch_above_four_mib_names_its_size_and_the_fix() -> None:
    with pytest.raises(MessageInvalid, match=r"5 messages.*5000\d\d\d bytes.*send_many"):
        batched(*(Message("t", bytes(1_000_000)) for _ in range(5)))


@given(
    sizes=st.lists(st.integers(1, 400), max_size=40),
    topics=st.lists(st.sampled_from("ab"), min_size=40, max_size=40),
)
def test_a_list_is_cut_into_batches_that_fit_and_keep_the_order(
    sizes: list[int], topics: list[str]
) -> None:
    messages = [Message(topics[at], bytes(size)) for at, size in enumerate(sizes)]
    batches = cut(messages, 1_000)
    for topic in "ab":
        kept = [message for batch in batches for message in batch if message.topic == topic]
        assert [id(message) for message in kept] == [id(m) for m in messages if m.topic == topic]
    for batch in batches:
        assert len({message.topic for message in batch}) == 1
        outgoing = batched(*batch)
        assert len(batch) == 1 or len(outgoing.body) <= 1_000


def test_a_message_longer_than_a_batch_is_alone() -> None:
    long = Message("t", bytes(2_000))
    batches = cut([Message("t", b"a"), long, Message("t", b"b")], 1_000)
    assert [len(batch) for batch in batches] == [1, 1, 1]


def test_as_few_batches_as_possible_are_made() -> None:
    assert [len(batch) for batch in cut([Message("t", b"a")] * 100)] == [100]
    assert cut([]) == []


def test_a_batch_has_no_more_messages_than_an_answer_has_ids() -> None:
    assert [len(batch) for batch in cut([Message("t", b"a")] * 2_500)] == [1_000, 1_000, 500]
    with pytest.raises(MessageInvalid, match=r"65537 messages.*send_many"):
        batched(*[Message("t", b"a")] * 65_537)


def test_delayed_messages_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(MessageInvalid, match="send it by itself"):
        cut([Message("t", b"a"), Message("t", b"a", delay=3)])


@given(
    parts=st.lists(st.tuples(st.sampled_from(["", "a", "b", "c"]), st.booleans()), max_size=40),
    sizes=st.lists(st.integers(1, 400), min_size=40, max_size=40),
)
def test_messages_for_one_queue_are_batched_together_and_in_order(
    parts: list[tuple[str, bool]], sizes: list[int]
) -> None:
    messages = [
        Message("t", bytes(size), sharding_key=key, wait_store_ok=waits)
        for (key, waits), size in zip(parts, sizes, strict=False)
    ]
    places = {"": None, "a": 0, "b": 1, "c": 1}

    def place_of(message: Message) -> MessageQueue | None:
        place = places[message.sharding_key or ""]
        return None if place is None else MessageQueue("t", "broker", place)

    batches = cut(messages, 1_000, place_of=place_of)
    for batch in batches:
        assert len({place_of(message) for message in batch}) == 1
        assert len({message.wait_store_ok for message in batch}) == 1
    for place in (0, 1):
        kept = [m for batch in batches for m in batch if places[m.sharding_key or ""] == place]
        given = [m for m in messages if places[m.sharding_key or ""] == place]
        assert [id(message) for message in kept] == [id(message) for message in given]


def test_a_batch_has_one_sharding_key_or_none() -> None:
    plain, keyed = Message("t", b"x"), Message("t", b"x", sharding_key="k")
    assert common_sharding_key([plain]) is None
    assert common_sharding_key([keyed, plain, keyed]) == "k"
    with pytest.raises(MessageInvalid, match=r"'k' and 'l': use send_many\(\)"):
        common_sharding_key([keyed, Message("t", b"x", sharding_key="l")])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Message("t", b"x"), r"give \[message\]"),
        (None, "got None: give a list"),
        ([Message("t", b"x"), b"y"], "b'y' at place 1"),
    ],
)
def test_anything_but_a_list_of_messages_is_refused(wrong: Any, told: str) -> None:
    with pytest.raises(MessageInvalid, match=told):
        listed(wrong, "send_batch()")


def test_any_iterable_of_messages_is_a_list_of_them() -> None:
    message = Message("t", b"x")
    assert listed((one for one in [message, message]), "send_many()") == [message, message]
