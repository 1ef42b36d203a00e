"""Dead letters: where they came from, and why a group gave them up."""

from __future__ import annotations

import pytest

from contrail.client.dead_letters import origin_id, origin_topic, reason_of


@pytest.mark.proves("house.folded.dead-letter-replays")
@pytest.mark.parametrize(
    ("retries", "asked", "reason"),
    [
        (17, None, "exhausted"),
        (16, None, "given-up"),
        (4, "3", "exhausted"),
        (17, "20", "given-up"),
        (17, "-1", "exhausted"),
        (17, "9" * 40, "exhausted"),
    ],
)
def test_the_requested_limit_counts_before_the_groups_limit(
    retries: int, asked: str | None, reason: str
) -> None:
    properties = {} if asked is None else {"MAX_RECONSUME_TIMES": asked}
    assert reason_of(properties, retries, 16) == reason


@pytest.mark.proves("house.folded.dead-letter-replays")
def test_the_proxys_note_of_the_topic_counts_before_the_brokers() -> None:
    by_broker = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "AB"}
    by_proxy = {"DLQ_ORIGIN_TOPIC": "bills", "DLQ_ORIGIN_MESSAGE_ID": "CD"}
    assert (origin_topic(by_broker), origin_id(by_broker, "EF")) == ("orders", "AB")
    assert (origin_topic(by_broker | by_proxy), origin_id(by_broker | by_proxy, "EF")) == (
        "bills",
        "CD",
    )
    assert (origin_topic({}), origin_id({}, "EF")) == (None, "EF")
