"""Receipts for the messages of a pop's answer, as brokers of either make name them."""

from __future__ import annotations

import pytest

from contrail.client.message import MessageQueue
from contrail.client.pop_settings import PopSettings, split_pop_settings
from contrail.client.popping import PoppedMessage, give_receipts
from contrail.errors import ConfigError
from contrail.protocol.pop_info import PopTextInvalid, Receipt

FIELDS = {"popTime": "1000", "invisibleTime": "60000", "reviveQid": "3"}


def message(topic: str, queue_id: int, offset: int, **properties: str) -> PoppedMessage:
    queue = MessageQueue(topic, "b", queue_id)
    return PoppedMessage(topic, b"", queue, offset, "", "", dict(properties), 0, 0, 0, 0, 0, 0)


def test_a_mixed_answer_names_each_message_by_flag_and_queue() -> None:
    found = [
        message("t", 2, 7),
        message("t", 2, 8),
        message("t", 0, 5, POP_CK="5 900 60000 3 1 b 0 5"),
        message("%RETRY%g_t", 0, 9),
    ]
    fields = {
        **FIELDS,
        "startOffsetInfo": "0 2 100;1 0 9",
        "msgOffsetInfo": "0 2 101,103;1 0 9",
    }
    give_receipts(found, fields, "b")
    assert [one.receipt for one in found] == [
        Receipt(100, 1000, 60000, 3, "0", "b", 2, 101),
        Receipt(100, 1000, 60000, 3, "0", "b", 2, 103),
        Receipt(5, 900, 60000, 3, "1", "b", 0, 5),
        Receipt(9, 1000, 60000, 3, "1", "b", 0, 9),
    ]
    assert (found[0].visible_ms, found[0].attempt) == (61_000, 1)


def test_without_lists_a_message_names_itself() -> None:
    found = [message("t", 2, 7)]
    give_receipts(found, FIELDS, "b")
    assert found[0].receipt == Receipt(7, 1000, 60000, 3, "0", "b", 2, 7)


@pytest.mark.parametrize("fields", [{}, {**FIELDS, "msgOffsetInfo": "0 2"}])
def test_an_answer_that_names_nothing_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises((KeyError, PopTextInvalid)):
        give_receipts([message("t", 2, 7)], fields, "b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"pop_batch_nums": 33},
        {"pop_invisible_time_ms": 0},
        {"consume_from_where": "timestamp"},
        {"consume_from_where": "middle"},
        {"pop_batch": 1},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        split_pop_settings(wrong)


def test_settings_of_the_consumer_and_of_its_instance_are_told_apart() -> None:
    own, shared = split_pop_settings({"pop_batch_nums": 8, "instance_name": "one"})
    assert own == PopSettings(pop_batch_nums=8) and shared == {"instance_name": "one"}
