"""The heartbeat's body, as Java, C++ and Go clients write it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RequestRejected
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import (
    SUBSCRIPTIONS_MAX,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    decode_heartbeat,
    encode_heartbeat,
)

JAVA = b"""{"clientID":"10.0.0.9@4711#12345678","consumerDataSet":[{
 "consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g1",
 "messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919],
 "expressionType":"TAG","subString":"TagA","subVersion":1700000000123,"tagsSet":["TagA"],
 "topic":"orders"}],"unitMode":false}],"heartbeatFingerprint":-77,
 "producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"},{"groupName":"p1"}],"withoutSub":true}"""

CPP = b"""{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":0,
 "groupName":"g1","messageModel":0,"subscriptionDataSet":[{"codeSet":["1"],"subString":"*",
 "subVersion":"5","tagsSet":[],"topic":"orders"}]}],"producerDataSet":[]}"""


def test_a_java_heartbeat_is_read() -> None:
    heartbeat = decode_heartbeat(JAVA, now_ms=1)
    assert heartbeat.client_id == "10.0.0.9@4711#12345678"
    assert heartbeat.producer_groups == ("CLIENT_INNER_PRODUCER", "p1")
    assert (heartbeat.fingerprint, heartbeat.without_sub) == (-77, True)
    (consumer,) = heartbeat.consumers
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.subscriptions[0].tags == {"TagA"}


@pytest.mark.proves("wire.frames.numeric-enums")
def test_enums_are_read_by_number_as_the_cpp_client_writes_them() -> None:
    (consumer,) = decode_heartbeat(CPP, now_ms=1).consumers
    assert consumer.consume_type is ConsumeType.CONSUME_ACTIVELY
    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.subscriptions == (
        SubscriptionData("orders", "*", codes=frozenset({1}), sub_version=5),
    )


def test_unknown_enum_names_of_newer_clients_become_the_default() -> None:
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"LITE"}]}'
    (consumer,) = decode_heartbeat(body, now_ms=1).consumers
    assert consumer == ConsumerData("g")


def test_a_subscription_without_a_version_gets_the_current_time() -> None:
    body = b'{"consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"t"}]}]}'
    (consumer,) = decode_heartbeat(body, now_ms=123).consumers
    assert consumer.subscriptions[0].sub_version == 123


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "body is empty"),
        (b"[]", "must be an object"),
        (b'{"consumerDataSet":[5]}', "consumerDataSet must be an object"),
        (b'{"consumerDataSet":[{"messageModel":7}]}', "messageModel must be a number below 2"),
        (b'{"clientID":5}', "clientID must be text"),
    ],
)
def test_a_malformed_heartbeat_is_refused_by_name(body: bytes, problem: str) -> None:
    with pytest.raises(RequestRejected, match=problem):
        decode_heartbeat(body, now_ms=1)


_CONSUMERS = st.builds(
    ConsumerData,
    group=st.text(),
    consume_type=st.sampled_from(ConsumeType),
    message_model=st.sampled_from(MessageModel),
    consume_from_where=st.sampled_from(ConsumeFromWhere),
    subscriptions=st.tuples(st.builds(SubscriptionData, topic=st.text(), sub_string=st.text())),
    unit_mode=st.booleans(),
)
_INTS = st.integers(-(2**31), 2**31 - 1)


@given(
    st.builds(
        Heartbeat,
        client_id=st.text(),
        producer_groups=st.lists(st.text()).map(tuple),
        consumers=st.lists(_CONSUMERS, max_size=3).map(tuple),
        fingerprint=_INTS,
        without_sub=st.booleans(),
    )
)
def test_a_heartbeat_is_decoded_as_encoded(heartbeat: Heartbeat) -> None:
    assert decode_heartbeat(encode_heartbeat(heartbeat), now_ms=1) == heartbeat


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["clientID", "consumerDataSet", "groupName", "subscriptionDataSet", "codeSet"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(RequestRejected):
        heartbeat = decode_heartbeat(json.dumps(document).encode(), now_ms=1)
        assert isinstance(heartbeat, Heartbeat)


def test_a_heartbeat_with_too_many_subscriptions_is_refused_before_they_are_read() -> None:
    entries = [{"topic": 5}] * (SUBSCRIPTIONS_MAX // 2 + 1)
    consumers = [{"groupName": name, "subscriptionDataSet": entries} for name in "ab"]
    body = json.dumps({"clientID": "c", "consumerDataSet": consumers}).encode()
    with pytest.raises(RequestRejected, match="5002 entries of subscriptionDataSet, at most 5000"):
        decode_heartbeat(body, now_ms=1)
