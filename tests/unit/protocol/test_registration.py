"""Registrations in both forms, and the bounds of the compressed one."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.topic import TopicConfig
from contrail.protocol.bodies import registration
from contrail.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from contrail.protocol.bodies.routes import TopicQueueMapping

BODY = RegisterBrokerBody(
    topics={
        "orders": TopicConfig("orders", 8, 4, 6, attributes={"message.type": "NORMAL"}),
        "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 4, "MULTI_TAG"),
    },
    data_version=DataVersion(1, 3, 1_700_000_000_000),
    filter_servers=("10.0.0.1:30000",),
    mappings={
        "static": TopicQueueMapping("static", "broker-a", 8, 5, current_ids={0: 0, 3: 1}),
    },
)


def test_the_plain_form_is_the_json_that_brokers_send() -> None:
    body = RegisterBrokerBody(
        topics={"t": TopicConfig("t", 8, 8, 6)}, data_version=DataVersion(0, 3, 17)
    )
    assert body.encode() == (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{'
        b'"dataVersion":{"counter":3,"stateVersion":0,"timestamp":17},'
        b'"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
        b'"topicConfigTable":{"t":{"attributes":{},"order":false,"perm":6,"readQueueNums":8,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"t","topicSysFlag":0,"writeQueueNums":8}},'
        b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
    )


@pytest.mark.proves("nameserver.routes.body-forms")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_is_decoded_as_encoded_in_either_form(compressed: bool) -> None:
    encoded = BODY.encode(compressed=compressed)
    assert RegisterBrokerBody.decode(encoded, compressed=compressed) == BODY


def test_only_the_plain_form_carries_a_topics_flag_and_order_mark() -> None:
    topic = TopicConfig("t", sys_flag=2, order=True)
    body = RegisterBrokerBody(topics={"t": topic})
    assert RegisterBrokerBody.decode(body.encode()).topics["t"] == topic
    squeezed = RegisterBrokerBody.decode(body.encode(compressed=True), compressed=True).topics["t"]
    assert (squeezed.sys_flag, squeezed.order) == (0, False)


def test_a_compressed_body_of_a_broker_before_version_5_ends_without_mappings() -> None:
    inflated = zlib.decompress(RegisterBrokerBody().encode(compressed=True))
    old = zlib.compress(inflated[:-4])
    assert RegisterBrokerBody.decode(old, compressed=True, version=409) == RegisterBrokerBody()
    with pytest.raises(RequestRejected, match="cut short"):
        RegisterBrokerBody.decode(old, compressed=True, version=413)


def test_a_broker_of_version_3_0_10_sends_its_topics_alone() -> None:
    body = b'{"dataVersion":{"counter":2},"topicConfigTable":{"t":{"readQueueNums":3}}}'
    found = RegisterBrokerBody.decode(body, version=36)
    assert found.topics["t"].read_queue_count == 3
    assert found.data_version.counter == 2


def test_a_request_without_a_body_registers_no_topics() -> None:
    assert RegisterBrokerBody.decode(b"", compressed=True) == RegisterBrokerBody()


def test_attributes_with_a_space_survive_compression() -> None:
    body = RegisterBrokerBody(topics={"t": TopicConfig("t", attributes={"k": "a b"})})
    found = RegisterBrokerBody.decode(body.encode(compressed=True), compressed=True)
    assert found.topics["t"].attributes == {"k": "a b"}


def test_the_checksum_has_31_bits() -> None:
    assert body_crc32(b"") == 0
    # CRC-32 of this text is 0xCBF43926: its highest bit is lost.
    assert body_crc32(b"123456789") == 0x4BF43926


@pytest.mark.proves("wire.server.inflated-bodies")
def test_a_body_that_inflates_too_far_is_refused_before_it_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = zlib.compress(bytes(4 << 20), level=9)
    with pytest.raises(RequestRejected, match="inflates to over"):
        RegisterBrokerBody.decode(bomb, compressed=True)
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 10)
    with pytest.raises(RequestRejected, match="inflates to over 10"):
        RegisterBrokerBody.decode(BODY.encode(compressed=True), compressed=True)


def section(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


VERSION = section(b'{"counter":1}')


@pytest.mark.parametrize(
    "inflated",
    [
        b"",
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        section(b"[]"),
        section(b"{"),
        VERSION,
        VERSION + struct.pack(">i", 1),
        VERSION + struct.pack(">i", 1) + section(b"t 1 2 6"),
        VERSION + struct.pack(">i", 1) + section(b"t x 2 6 SINGLE_TAG {}"),
        VERSION + struct.pack(">i", 1) + section(b"t 1 2 6 SINGLE_TAG []"),
        VERSION + struct.pack(">i", 0) + section(b"[") + struct.pack(">i", 0),
        VERSION + struct.pack(">i", 0) + section(b"[]") + struct.pack(">i", 1) + section(b"1"),
    ],
)
def test_a_damaged_compressed_body_is_refused(inflated: bytes) -> None:
    with pytest.raises(RequestRejected, match="RegisterBrokerBody"):
        RegisterBrokerBody.decode(zlib.compress(inflated), compressed=True)


def test_a_cut_or_invalid_stream_is_refused() -> None:
    with pytest.raises(RequestRejected, match="cut short"):
        RegisterBrokerBody.decode(BODY.encode(compressed=True)[:-8], compressed=True)
    with pytest.raises(RequestRejected, match="does not inflate"):
        RegisterBrokerBody.decode(b"no zlib", compressed=True)


@given(st.binary(max_size=200), st.booleans(), st.sampled_from([36, 409, 479]))
def test_hostile_bytes_are_refused_and_never_crash(
    body: bytes, deflated: bool, version: int
) -> None:
    sent = zlib.compress(body) if deflated else body
    for compressed in (False, True):
        try:
            RegisterBrokerBody.decode(sent, compressed=compressed, version=version)
        except RequestRejected:
            continue
