"""Change lists of topic attributes."""

from __future__ import annotations

import pytest

from contrail.broker.state.attributes import TOPIC_ATTRIBUTES, alter_attributes, parse_changes
from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode


def test_a_change_list_is_read_with_its_signs() -> None:
    assert parse_changes("+a=1,-b,+c=x y,") == {"+a": "1", "-b": "", "+c": "x y"}
    assert parse_changes("") == {}


@pytest.mark.parametrize("text", ["a=1", "b", "+a=1,+a=2", "+a=1,,+b=2", "-b,-b"])
def test_a_malformed_change_list_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        parse_changes(text)
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.proves("broker.topics.attributes")
def test_attributes_are_added_changed_and_removed() -> None:
    current = {"message.type": "NORMAL", "queue.type": "SimpleCQ"}
    changed = alter_attributes(current, {"+message.type": "FIFO"}, TOPIC_ATTRIBUTES)
    assert changed == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert alter_attributes(changed, {"-message.type": ""}, TOPIC_ATTRIBUTES) == {
        "queue.type": "SimpleCQ"
    }
    assert current["message.type"] == "NORMAL"


def test_every_attribute_can_be_given_while_creating() -> None:
    changes = {
        "+queue.type": "BatchCQ",
        "+cleanup.policy": "COMPACTION",
        "+message.type": "DELAY",
        "+reserve.time": "-1",
    }
    created = alter_attributes(None, changes, TOPIC_ATTRIBUTES)
    assert created == {key[1:]: value for key, value in changes.items()}


@pytest.mark.proves("broker.topics.attributes")
@pytest.mark.parametrize(
    ("current", "changes"),
    [
        (None, {"-message.type": ""}),
        (None, {"message.type": "NORMAL"}),
        (None, {"+colour": "red"}),
        (None, {"+queue.type": "TripleCQ"}),
        (None, {"+reserve.time": "-2"}),
        (None, {"+reserve.time": "soon"}),
        (None, {"+reserve.time": "9223372036854775808"}),
        (None, {"+": "x"}),
        (None, {"+a-b": "x"}),
        ({}, {"+queue.type": "BatchCQ"}),
        ({"queue.type": "BatchCQ"}, {"-queue.type": ""}),
        ({}, {"-message.type": ""}),
        ({}, {"*message.type": "NORMAL"}),
        ({"message.type": "FIFO"}, {"+message.type": "FIFO", "-message.type": ""}),
    ],
)
def test_a_change_that_breaks_a_rule_is_refused(
    current: dict[str, str] | None, changes: dict[str, str]
) -> None:
    with pytest.raises(RequestRejected) as refusal:
        alter_attributes(current, changes, TOPIC_ATTRIBUTES)
    assert refusal.value.code == ResponseCode.SYSTEM_ERROR
