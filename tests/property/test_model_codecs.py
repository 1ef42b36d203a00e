"""Records, properties, batches, hosts and ids over all inputs."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.errors import BatchIllegal, MessageIllegal, RecordDamaged
from contrail.model.batch import BatchUnit, decode_batch, encode_batch
from contrail.model.host import pack_host, unpack_host
from contrail.model.message_id import (
    build_unique_id,
    decode_offset_message_id,
    decode_unique_id,
    encode_offset_message_id,
)
from contrail.model.properties import (
    decode_properties,
    encode_properties,
    put_property,
    read_property,
    remove_property,
)
from contrail.model.record import MAGIC_V1, MAGIC_V2, decode_record, split_record_run

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x02"), min_size=1)
PROPERTIES = st.dictionaries(NAMES, VALUES, max_size=6)
HEAD = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))


@given(PROPERTIES)
def test_properties_come_back_as_they_went_in(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(data[:-1]) == properties
    for name, value in properties.items():
        assert read_property(data, name) == value


@given(st.binary(max_size=60), NAMES, VALUES)
def test_setting_a_property_changes_no_other(data: bytes, name: str, value: str) -> None:
    before = decode_properties(data)
    removed = decode_properties(remove_property(data, name))
    before.pop(name, None)
    assert removed == before
    assert decode_properties(put_property(data, name, value)) == {**before, name: value}


@given(st.text(), st.text())
def test_a_property_is_stored_whole_or_refused(name: str, value: str) -> None:
    try:
        stored = decode_properties(encode_properties({name: value}))
    except MessageIllegal:
        assert "\x01" in name or "\x02" in name + value
    else:
        assert stored == ({name: value} if name and value else {})


@given(
    st.lists(
        st.builds(
            BatchUnit,
            st.binary(max_size=40),
            st.binary(max_size=20),
            st.integers(-(2**31), 2**31 - 1),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_batches_come_back_as_they_went_in(units: list[BatchUnit]) -> None:
    assert decode_batch(encode_batch(units)) == units


@given(st.binary(max_size=120), st.integers(0, 120), st.binary(max_size=8))
def test_a_damaged_batch_is_refused_or_read_within_its_bytes(
    body: bytes, position: int, noise: bytes
) -> None:
    data = bytearray(encode_batch([BatchUnit(body), BatchUnit(b"x")]))
    data[position : position + len(noise)] = noise
    try:
        units = decode_batch(bytes(data))
    except BatchIllegal:
        return
    assert sum(22 + len(unit.body) + len(unit.properties) for unit in units) == len(data)


@given(st.sampled_from(HEAD), st.binary(min_size=83, max_size=300), st.integers(-4, 4))
@example(HEAD[0], bytes(83), 0)
def test_arbitrary_bytes_behind_a_good_head_are_a_whole_record_or_refused(
    magic: bytes, rest: bytes, surplus: int
) -> None:
    record = (8 + len(rest) + surplus).to_bytes(4, "big") + magic + rest
    for check_body_crc in (True, False):
        try:
            message = decode_record(record, check_body_crc=check_body_crc)
        except RecordDamaged:
            continue
        assert message.record_bytes == len(record) + surplus <= len(record)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_record_run_or_refused(data: bytes) -> None:
    try:
        messages = list(split_record_run(data))
    except RecordDamaged:
        return
    assert sum(message.record_bytes for message in messages) == len(data)


@given(st.ip_addresses(), st.integers(0, 65_535), st.integers(0, 2**63 - 1))
def test_hosts_and_offset_ids_come_back_as_they_went_in(
    address: IPv4Address | IPv6Address, port: int, physical_offset: int
) -> None:
    host = address.packed + port.to_bytes(4, "big")
    assert unpack_host(host) == (str(address), port)
    if not (isinstance(address, IPv6Address) and address.ipv4_mapped):
        assert pack_host(str(address), port) == host
    message_id = encode_offset_message_id(host, physical_offset)
    assert len(message_id) == (32 if address.version == 4 else 56)
    assert decode_offset_message_id(message_id) == (host, physical_offset)


@given(st.integers(), st.integers(), st.integers(0, 2**40), st.integers(0))
def test_unique_ids_hold_whatever_numbers_the_process_has(
    process_id: int, process_hash: int, now_ms: int, counter: int
) -> None:
    message_id = build_unique_id(
        address=bytes(4),
        process_id=process_id,
        process_hash=process_hash,
        month_start_ms=0,
        now_ms=now_ms,
        counter=counter,
    )
    assert len(message_id) == 32
    assert decode_unique_id(message_id)[1:] == (
        process_id % 2**16,
        process_hash % 2**32,
        now_ms % 2**32,
        counter % 2**16,
    )
