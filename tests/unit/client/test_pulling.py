"""Pulls: what is asked, and what the answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.pulling import PullStatus, pull_once, read_answer
from contrail.client.state.routes import RouteTable
from contrail.errors import BrokerRefused, BrokerUnknown, CallTimedOut, ClientError
from contrail.model.properties import encode_properties
from contrail.model.subscription import SubscriptionData, parse_subscription
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse
from tests.unit.client.test_decoding import record

QUEUE = MessageQueue("orders", "broker-a", 3)
PLACES = {
    "nextBeginOffset": "80",
    "minOffset": "1",
    "maxOffset": "90",
    "suggestWhichBrokerId": "1",
}


def answer(
    code: int = 0, body: bytes = b"", fields: Mapping[str, str] = PLACES
) -> ReceivedResponse:
    return ReceivedResponse(code, 1, "why", dict(fields), body, 0, "JAVA")


def tagged(tag: str, **more: str) -> bytes:
    return record(properties=encode_properties({"TAGS": tag, **more}))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, PullStatus.FOUND),
        (ResponseCode.PULL_NOT_FOUND, PullStatus.NO_NEW_MSG),
        (ResponseCode.PULL_RETRY_IMMEDIATELY, PullStatus.NO_MATCHED_MSG),
        (ResponseCode.PULL_OFFSET_MOVED, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_four_codes_are_answers(code: int, status: PullStatus) -> None:
    result = read_answer(answer(code), QUEUE, SubscriptionData("orders"))
    assert (result.status, result.next_queue_offset) == (status, 80)
    assert (result.queue_offset_min, result.queue_offset_max) == (1, 90)
    assert result.suggested_broker_id == 1


def test_other_codes_are_refusals_that_name_the_queue() -> None:
    with pytest.raises(BrokerRefused, match="queue 3 of topic 'orders'") as caught:
        read_answer(answer(ResponseCode.SYSTEM_ERROR), QUEUE, SubscriptionData("orders"))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_an_answer_without_places_or_with_damaged_records_is_an_error() -> None:
    for bad in (answer(fields={}), answer(body=b"no record")):
        with pytest.raises(ClientError, match="cannot be read"):
            read_answer(bad, QUEUE, SubscriptionData("orders"))


def test_a_tag_with_the_same_hash_as_a_wanted_one_is_left_out() -> None:
    body = tagged("Aa") + tagged("BB") + record(properties=b"")
    result = read_answer(answer(body=body), QUEUE, parse_subscription("orders", "Aa || paid"))
    assert [message.tags for message in result.messages] == ["Aa"]
    assert len(read_answer(answer(body=body), QUEUE, SubscriptionData("orders")).messages) == 3


def test_a_retried_message_has_the_topic_it_had_at_first() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 0)
    body = tagged("x", RETRY_TOPIC="orders")
    (message,) = read_answer(answer(body=body), queue, SubscriptionData("%RETRY%g")).messages
    assert (message.topic, message.queue) == ("orders", queue)


def test_places_of_a_moved_queue_are_shifted() -> None:
    moved = answer(body=record(), fields={**PLACES, "offsetDelta": "1000"})
    (message,) = read_answer(moved, QUEUE, SubscriptionData("orders")).messages
    assert message.queue_offset == 1077


class FakeInstance:
    """A client that notes what it would ask."""

    def __init__(self, **addresses: dict[int, str]) -> None:
        self.routes = RouteTable(
            addresses={name.replace("_", "-"): by_id for name, by_id in addresses.items()}
        )
        self.asked: list[tuple[str, Mapping[str, str], int]] = []
        self.problem: Exception | None = None

    async def call(
        self, address: str, code: int, fields: Mapping[str, str], *, timeout_ms: int
    ) -> ReceivedResponse:
        self.asked.append((address, fields, timeout_ms))
        if self.problem is not None:
            raise self.problem
        return answer(ResponseCode.PULL_NOT_FOUND)


def pull(instance: FakeInstance, **changes: Any) -> Any:
    given = SimpleNamespace(
        group="g",
        queue=QUEUE,
        queue_offset=7,
        count_max=32,
        subscription=parse_subscription("orders", "a", sub_version=5),
    )
    return asyncio.run(pull_once(cast(ClientInstance, instance), **{**given.__dict__, **changes}))


def test_a_pull_that_may_wait_says_so_and_waits_longer() -> None:
    instance = FakeInstance(broker_a={0: "master:1"})
    pull(instance, suspend=True, commit_offset=6)
    pull(instance)
    (address, fields, timeout_ms), (_, plain, plain_timeout_ms) = instance.asked
    assert (address, timeout_ms, plain_timeout_ms) == ("master:1", 30_000, 10_000)
    assert (fields["sysFlag"], fields["commitOffset"], fields["queueOffset"]) == ("3", "6", "7")
    assert (plain["sysFlag"], "subscription" in plain) == ("0", False)


def test_a_pull_may_carry_its_subscription() -> None:
    instance = FakeInstance(broker_a={0: "master:1"})
    pull(instance, post_subscription=True)
    fields = instance.asked[0][1]
    assert (fields["sysFlag"], fields["subscription"], fields["subVersion"]) == ("4", "a", "5")


def test_a_replica_is_asked_when_suggested_and_never_told_the_progress() -> None:
    instance = FakeInstance(broker_a={0: "master:1", 1: "replica:1"})
    pull(instance, broker_id=1, commit_offset=6)
    pull(instance, broker_id=2, commit_offset=6)
    assert [(address, fields["sysFlag"]) for address, fields, _ in instance.asked] == [
        ("replica:1", "0"),
        ("master:1", "1"),
    ]


def test_a_broker_without_address_and_one_without_answer_are_named() -> None:
    with pytest.raises(BrokerUnknown, match="broker-a"):
        pull(FakeInstance())
    instance = FakeInstance(broker_a={0: "master:1"})
    instance.problem = CallTimedOut("no answer")
    with pytest.raises(ClientError, match="queue 3 of topic 'orders' from master:1"):
        pull(instance)
