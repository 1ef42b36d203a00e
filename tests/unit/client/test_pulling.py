"""Pulls: the requests, and what the answers mean."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.pulling import Asked, PullResult, PullStatus, pull_once, pulled, read_answer
from contrail.client.state.routes import RouteTable
from contrail.errors import BrokerRefused, BrokerUnknown, CallTimedOut, ClientError
from contrail.model.properties import encode_properties
from contrail.model.subscription import SubscriptionData, parse_subscription
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse
from tests.unit.client.test_decoding import overwritten, record

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


def read(
    given: ReceivedResponse, queue: MessageQueue = QUEUE, wanted: SubscriptionData | None = None
) -> PullResult:
    subscription = wanted or SubscriptionData(queue.topic)
    result = read_answer(given, Asked(queue, 60, 32, subscription))
    assert result is not None
    return result


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
def test_four_codes_are_results(code: int, status: PullStatus) -> None:
    result = read(answer(code))
    assert (result.status, result.next_queue_offset) == (status, 80)
    assert (result.queue_offset_min, result.queue_offset_max) == (1, 90)
    assert result.suggested_broker_id == 1


def test_other_codes_are_refusals_that_name_the_queue() -> None:
    with pytest.raises(BrokerRefused, match="queue 3 of topic 'orders'") as caught:
        read(answer(ResponseCode.SYSTEM_ERROR))
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_an_answer_without_offsets_is_an_error() -> None:
    for fields in ({}, {**PLACES, "nextBeginOffset": "soon"}):
        with pytest.raises(ClientError, match="cannot be read"):
            read(answer(fields=fields))


def test_a_tag_with_the_same_hash_as_a_wanted_one_is_left_out() -> None:
    body = tagged("Aa") + tagged("BB") + record(properties=b"")
    result = read(answer(body=body), wanted=parse_subscription("orders", "Aa || paid"))
    assert [message.tags for message in result.messages] == ["Aa"]
    assert len(read(answer(body=body)).messages) == 3


def test_a_retried_message_has_its_original_topic() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 0)
    body = tagged("x", RETRY_TOPIC="orders")
    (message,) = read(answer(body=body), queue).messages
    assert (message.topic, message.queue) == ("orders", queue)


def test_offsets_of_a_moved_queue_are_shifted() -> None:
    moved = answer(body=record(), fields={**PLACES, "offsetDelta": "1000"})
    (message,) = read(moved).messages
    assert message.queue_offset == 1077


class FakeInstance:
    """A client that notes the requests it would send."""

    def __init__(self, **addresses: dict[int, str]) -> None:
        self.routes = RouteTable(
            addresses={name.replace("_", "-"): by_id for name, by_id in addresses.items()}
        )
        self.asked: list[tuple[str, Mapping[str, str], int]] = []
        self.problem: Exception | None = None
        self.code = ResponseCode.PULL_NOT_FOUND

    async def call(
        self, address: str, code: int, fields: Mapping[str, str], *, timeout_ms: int
    ) -> ReceivedResponse:
        self.asked.append((address, fields, timeout_ms))
        if self.problem is not None:
            raise self.problem
        return answer(self.code)


def pull(instance: FakeInstance, **changes: Any) -> Any:
    given = SimpleNamespace(
        group="g",
        queue=QUEUE,
        queue_offset=7,
        count_max=32,
        subscription=parse_subscription("orders", "a", sub_version=5),
    )
    return asyncio.run(pull_once(cast(ClientInstance, instance), **{**given.__dict__, **changes}))


def test_a_pull_that_may_wait_has_the_flag_and_a_longer_timeout() -> None:
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


def test_a_replica_is_asked_when_suggested_and_never_gets_the_commit_offset() -> None:
    instance = FakeInstance(broker_a={0: "master:1", 1: "replica:1"})
    pull(instance, broker_id=1, commit_offset=6)
    pull(instance, broker_id=2, commit_offset=6)
    assert [(address, fields["sysFlag"]) for address, fields, _ in instance.asked] == [
        ("replica:1", "0"),
        ("master:1", "1"),
    ]


@pytest.mark.proves("replication.failover.client")
def test_a_replica_that_is_behind_a_lost_master_moves_no_reader_back() -> None:
    instance = FakeInstance(broker_a={1: "replica:1"})
    instance.code = ResponseCode.PULL_OFFSET_MOVED
    queue_offset_max = int(PLACES["maxOffset"])
    with pytest.raises(ClientError, match="behind a master"):
        pull(instance, queue_offset=queue_offset_max + 1)
    # Below its beginning it knows better.
    assert pull(instance, queue_offset=0).status is PullStatus.OFFSET_ILLEGAL
    led = FakeInstance(broker_a={0: "master:1", 1: "replica:1"})
    led.code = ResponseCode.PULL_OFFSET_MOVED
    moved = pull(led, queue_offset=queue_offset_max + 1)
    assert moved.status is PullStatus.OFFSET_ILLEGAL


def test_a_broker_without_address_and_one_without_answer_are_named() -> None:
    with pytest.raises(BrokerUnknown, match="broker-a"):
        pull(FakeInstance())
    instance = FakeInstance(broker_a={0: "master:1"})
    instance.problem = CallTimedOut("no answer")
    with pytest.raises(ClientError, match="queue 3 of topic 'orders' from master:1"):
        pull(instance)


# Messages that cannot be decoded.


def numbered(queue_offset: int, body: bytes = b"sound") -> bytes:
    return record(body, queue_offset=queue_offset)


def spoiled(queue_offset: int, kind: str) -> bytes:
    whole = numbered(queue_offset)
    if kind == "body":
        return record(b"no zlib", sys_flag=0x301, queue_offset=queue_offset)
    if kind == "checksum":
        return overwritten(whole, 8, b"\0\0\0\0")
    if kind == "size":
        return overwritten(whole, 0, b"\x7f\xff\xff\xff")
    if kind == "size too small":
        return overwritten(whole, 0, struct.pack(">i", 95))
    if kind == "magic and place":
        return overwritten(overwritten(whole, 4, b"what"), 20, struct.pack(">q", 1 << 60))
    assert kind == "all of it"
    return bytes(len(whole))


SPOILS = ["body", "checksum", "size", "size too small", "magic and place", "all of it"]


class FakeQueue:
    """A queue as a broker hands it out: records by queue offset, some of them damaged."""

    def __init__(self, records: Mapping[int, bytes]) -> None:
        self.records = records
        self.end = max(records) + 1
        self.ask_count = 0

    async def answer(self, queue_offset: int, count: int) -> ReceivedResponse:
        self.ask_count += 1
        places = sorted(place for place in self.records if place >= queue_offset)[:count]
        body = b"".join(self.records[place] for place in places)
        behind = places[-1] + 1 if places else self.end
        code = ResponseCode.SUCCESS if places else ResponseCode.PULL_NOT_FOUND
        places_told = {"minOffset": "0", "maxOffset": str(self.end)}
        return answer(code, body, {"nextBeginOffset": str(behind), **places_told})


async def read_all(queue: FakeQueue, count_max: int) -> list[Any]:
    """Pull as a consumer does: each pull begins at the last answer's next offset, further on."""
    messages: list[Any] = []
    position = min(queue.records)
    while position < queue.end:
        begun = position

        async def ask(count: int, begun: int = begun) -> ReceivedResponse:
            return await queue.answer(begun, count)

        asked = Asked(QUEUE, begun, count_max, SubscriptionData("orders"))
        result = await pulled(ask, asked)
        position = result.next_queue_offset
        assert position > begun, "a pull that gets nowhere is repeated for ever"
        messages += result.messages
    return messages


# An offset may be missing: the broker's filter has left it out.
QUEUES = st.dictionaries(
    st.integers(50, 75), st.sampled_from(["", "", "", *SPOILS]), min_size=1, max_size=12
)


@pytest.mark.proves("client.undecodable.delivered")
@given(QUEUES, st.integers(1, 8))
def test_all_sound_messages_arrive_once_and_in_order_beside_damaged_ones(
    kinds: dict[int, str], count_max: int
) -> None:
    places = sorted(kinds)
    records = {p: spoiled(p, kinds[p]) if kinds[p] else numbered(p) for p in places}
    queue = FakeQueue(records)
    messages = asyncio.run(read_all(queue, count_max))
    sound = [one.queue_offset for one in messages if one.decode_error is None]
    assert sound == [place for place in places if not kinds[place]]
    unreadable = [one for one in messages if one.decode_error is not None]
    assert len(unreadable) == sum(1 for kind in kinds.values() if kind)
    seen = [one.queue_offset for one in messages]
    assert seen == sorted(set(seen)), "progress is the lowest place that is not settled"
    assert queue.ask_count <= 3 * len(places) + 2


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4),
    st.integers(1, 8),
)
def test_decoding_changed_bytes_ends_and_raises_nothing(
    count: int, flips: list[tuple[int, int]], count_max: int
) -> None:
    records = {place: bytearray(numbered(place)) for place in range(60, 60 + count)}
    for at, change in flips:
        changed = records[60 + at % count]
        changed[at % len(changed)] ^= change
    asyncio.run(read_all(FakeQueue({p: bytes(one) for p, one in records.items()}), count_max))


def test_an_undecodable_message_stays_marked_when_it_is_retried() -> None:
    queue = MessageQueue("%RETRY%g", "broker-a", 0)
    body = tagged("x", RETRY_TOPIC="orders", CONTRAIL_UNREADABLE="it was damaged")
    (message,) = read(answer(body=body), queue).messages
    assert str(message.decode_error) == "it was damaged"
    (message,) = read(answer(body=body), QUEUE).messages
    assert message.decode_error is None


def test_a_damaged_record_passes_a_filter_by_tags() -> None:
    asked = Asked(QUEUE, 60, 1, parse_subscription("orders", "paid"))
    for bad in (overwritten(tagged("free"), 4, b"what"), overwritten(tagged("free"), 8, b"what")):
        result = read_answer(answer(body=bad), asked)
        assert result is not None
        assert len(result.messages) == 1
