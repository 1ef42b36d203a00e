"""Frames: compiled equals pure, and the kernel equals the tolerant decoder behind it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contrail.errors import RemoteProtocolError, RequestRejected
from contrail.kernels.frame_scan import (
    FEATURE_NO_UNIQUE_KEY,
    FRAMES_LEFT,
    PROBLEM_NONE,
    Item,
    look_over,
)
from contrail.model.properties import decode_properties, encode_properties
from contrail.protocol.command import (
    LANGUAGES,
    Frame,
    ReceivedResponse,
    Request,
    decode_frame,
)
from contrail.protocol.fields import FieldInvalid
from contrail.protocol.frames import (
    FrameDecoder,
    PullFrame,
    SendRequest,
    pull_request,
    send_request,
)
from contrail.protocol.sends import read_send
from tests.unit.kernels.frame_material import (
    BORN_HOST,
    SUFFIX,
    TYPE_BINARY,
    binary_field,
    binary_header,
    bodies,
    frame,
    frames,
    json_headers,
    mutated,
    sound_binary_headers,
    streams,
)
from tests.unit.kernels.material import outcome, properties, twins

KERNEL, PURE = twins("frame_scan")

# Properties that the general way drops from a client's message, or writes itself.
_BROKER_OWNED = [
    "MSG_REGION", "TRACE_ON", "CLUSTER", "POP_CK", "TIMER_ROLL_TIMES", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "CONTRAIL_RECALL_NONCE", "TRANSACTION_CHECK_TIMES",
    "TRAN_PREPARED_QUEUE_OFFSET",
]  # fmt: skip
sizes = st.sampled_from([0, 8, 64, 4096, 16 << 20])
arbitrary = st.binary(max_size=60) | streams | mutated(streams)


@given(arbitrary, st.integers(-2, 12), sizes)
def test_compiled_and_pure_split_alike(data: bytes, start: int, frame_bytes_max: int) -> None:
    start = max(0, start)
    arguments = (data, start, frame_bytes_max)
    assert outcome(KERNEL.split_frames, *arguments) == outcome(PURE.split_frames, *arguments)


@given(arbitrary, st.integers(0, 9), sizes, sizes)
def test_compiled_and_pure_scan_alike(
    data: bytes, start: int, frame_bytes_max: int, header_bytes_max: int
) -> None:
    arguments = (data, start, frame_bytes_max, header_bytes_max, BORN_HOST, SUFFIX)
    assert outcome(KERNEL.scan_frames, *arguments) == outcome(PURE.scan_frames, *arguments)


@given(properties | st.binary(max_size=60))
def test_compiled_and_pure_look_over_properties_alike(data: bytes) -> None:
    assert outcome(KERNEL.look_over, data) == outcome(PURE.look_over, data)


@given(streams, sizes)
def test_whole_frames_are_found_where_they_were_put(data: bytes, frame_bytes_max: int) -> None:
    places, end, problem = KERNEL.split_frames(data, 0, frame_bytes_max)
    assert [0, *places[1::2]] == [*places[::2], end]
    if problem == PROBLEM_NONE:
        assert end == len(data)


def scanned(data: bytes) -> list[Item]:
    items: list[Item] = KERNEL.scan_frames(data, 0, 16 << 20, 256 << 10, BORN_HOST, SUFFIX)[0]
    return items


def as_objects(item: Item) -> Frame:
    """An item of eight parts as the decoder passes it on."""
    language = item[6] if item[6] in LANGUAGES else "OTHER"
    code, opaque, fields, body, flag, version, _, remark = item
    if flag & 1:
        return ReceivedResponse(code, opaque, remark, fields, body, version, language)
    return Request(code, opaque, fields, body, flag, version, language, remark)


def untouched(send: SendRequest) -> SendRequest:
    """A fast send of the kernel as it came, without the separator the kernel put at its end."""
    if send.features:
        return send
    stored = send.draft.properties
    assert stored.endswith(b"\x02" + SUFFIX)
    return send._replace(draft=send.draft._replace(properties=stored.removesuffix(SUFFIX)))


def ended(send: SendRequest) -> SendRequest:
    """The tolerant decoder's send; the kernel ends fast sends' properties with a separator."""
    raw = send.draft.properties
    if send.features or raw.endswith(b"\x02"):
        return send
    return send._replace(draft=send.draft._replace(properties=raw + b"\x02"))


def assert_same_pull(item: Item, decoded: Request) -> None:
    assert pull_request(PullFrame._make(item)) == decoded
    assert item[:4] == (decoded.opaque, decoded.flag, decoded.version, decoded.code)
    fields = dict(decoded.fields)
    numbers = [int(fields.pop(name, -1)) for name in ("queueOffset", "maxMsgNums", "commitOffset")]
    assert list(item[5:8]) == numbers
    # The key depends on every other field, and on nothing else.
    if item[8].startswith(b"{"):
        assert item[4].count(b'"') >= 4 * len(fields)
        assert all(f'"{name}":"{value}"'.encode() in item[4] for name, value in fields.items())
    else:
        assert item[4] == b"".join(binary_field(name, value) for name, value in fields.items())


@pytest.mark.proves("wire.hostile.round-trips")
@given(json_headers() | mutated(json_headers()), bodies)
@example(b'{"code":11,"extFields":{"$ref":"$"}}', b"")
@example(b'{"code":11,"x":"\\q"}', b"")
@example(b'{"code":11,"x":"\xff"}', b"")
def test_the_tolerant_decoder_reads_the_same_as_the_kernel(header: bytes, body: bytes) -> None:
    assert_read_alike(0, header, body)


@given(sound_binary_headers() | mutated(sound_binary_headers()), bodies)
@example(binary_header(11, {"queueOffset": "1", "maxMsgNums": "2"}), b"")
@example(
    binary_header(310, {**dict.fromkeys("abcdefgh", "1"), "i": "UNIQ_KEY\x01back\\u\x02"}), b"x"
)
def test_the_tolerant_decoder_reads_the_same_binary_headers_as_the_kernel(
    header: bytes, body: bytes
) -> None:
    assert_read_alike(TYPE_BINARY, header, body)


def test_sends_and_pulls_with_binary_headers_are_taken_by_the_kernel() -> None:
    properties = "UNIQ_KEY\x01AC01\x02KEYS\x01back\\slash\x02"
    send = binary_header(310, {**dict.fromkeys("abcdefgh", "1"), "i": properties}, opaque=-5)
    pull = binary_header(11, {"queueOffset": "10", "maxMsgNums": "32", "topic": "t", "e": ""})
    data = frame(send, b"x", TYPE_BINARY) + frame(pull, b"", TYPE_BINARY)
    first, second = scanned(data)
    assert first[0] == -5 and first[11][3] == properties.encode() + SUFFIX
    assert second[5:8] == (10, 32, -1) and len(second) == 9


def assert_read_alike(header_type: int, header: bytes, body: bytes) -> None:
    (item,) = scanned(frame(header, body, header_type))
    if len(item) == 4:
        assert item == (header_type, 8, 8 + len(header), 8 + len(header) + len(body))
        return
    decoded = decode_frame(header_type, header, body)
    if len(item) == 8:
        assert decoded == as_objects(item)
        return
    assert isinstance(decoded, Request)
    if len(item) == 9:
        assert_same_pull(item, decoded)
        return
    found = ended(read_send(decoded, BORN_HOST))
    # Only fast sends are answered by the key that the kernel found.
    if found.features:
        found = found._replace(unique_key=b"")
    assert untouched(send_request(item)) == found


@given(json_headers(), bodies)
def test_a_send_that_the_kernel_leaves_alone_is_read_or_refused_by_the_tolerant_reader(
    header: bytes, body: bytes
) -> None:
    (item,) = scanned(frame(header, body))
    if len(item) != 4:
        return
    kind, found = outcome(decode_frame, 0, header, body)
    assert kind in ("returned", RemoteProtocolError.__name__)
    if isinstance(found, Request):
        refusals = (RequestRejected.__name__, FieldInvalid.__name__)
        assert outcome(read_send, found, BORN_HOST)[0] in ("returned", *refusals)


@given(streams, sizes, st.integers(0, 6), sizes)
def test_a_bounded_number_of_frames_is_scanned_and_the_rest_from_where_they_end(
    data: bytes, frame_bytes_max: int, count_max: int, bytes_max: int
) -> None:
    limits = (frame_bytes_max, 256 << 10, BORN_HOST, SUFFIX)
    first = outcome(KERNEL.scan_frames, data, 0, *limits, count_max, bytes_max)
    assert first == outcome(PURE.scan_frames, data, 0, *limits, count_max, bytes_max)
    items, end, problem, kinds = KERNEL.scan_frames(data, 0, *limits, count_max, bytes_max)
    assert len(items) <= count_max
    if not any(len(item) == 12 for item in items):
        assert end <= bytes_max or len(items) <= 1
    if kinds & FRAMES_LEFT:
        assert items and KERNEL.scan_frames(data, end, *limits, 1)[1] > end
    if not problem:
        rest = KERNEL.scan_frames(data, end, *limits)
        assert (items + rest[0], *rest[1:3]) == KERNEL.scan_frames(data, 0, *limits)[:3]


def decoded_in_pieces(data: bytes, cuts: list[int]) -> tuple[list[Any], str | None, int]:
    decoder = FrameDecoder(born_host=BORN_HOST, property_suffix=SUFFIX)
    found: list[Any] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if data[start:end] and decoder.failure is None:
            found += decoder.feed(data[start:end])
    reason = decoder.failure.reason if decoder.failure is not None else None
    return found, reason, 0 if reason else decoder.pending_bytes


@given(streams | mutated(streams), st.data())
def test_frames_split_anywhere_are_the_same_frames(data: bytes, draws: st.DataObject) -> None:
    cuts = sorted(draws.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    assert decoded_in_pieces(data, cuts) == decoded_in_pieces(data, [])


@given(streams)
def test_frames_that_arrive_byte_by_byte_are_the_same_frames(data: bytes) -> None:
    assert decoded_in_pieces(data, list(range(len(data)))) == decoded_in_pieces(data, [])


@given(frames, st.integers(1, 7), st.integers(16 << 20, (1 << 32) - 1))
def test_a_length_beyond_the_limit_is_refused_wherever_it_was_cut(
    sound: bytes, cut: int, total: int
) -> None:
    decoder = FrameDecoder()
    data = total.to_bytes(4, "big") + sound[4:8]
    decoder.feed(data[:cut])
    decoder.feed(data[cut:] + bytes(100))
    assert decoder.failure is not None and decoder.failure.reason == "frame_length"
    assert decoder.pending_bytes == 0


PULL = b'{"code":11,"extFields":{"queueId":"0","queueOffset":"%d","topic":"t","maxMsgNums":"32"}}'


def test_pulls_that_differ_in_their_numbers_only_have_one_key() -> None:
    first, second = scanned(frame(PULL % 5, b"") + frame(PULL % 99, b""))
    assert (len(first), len(second)) == (9, 9)
    assert first[4] == second[4]
    assert (first[5], second[5]) == (5, 99)


def test_a_pull_with_a_body_or_an_odd_number_is_left_to_the_tolerant_decoder() -> None:
    odd = PULL.replace(b'"%d"', b'"-5"')
    items = scanned(frame(PULL % 5, b"x") + frame(odd, b""))
    assert [len(item) for item in items] == [8, 8]


_NAMES = st.sampled_from(
    ["a", "b", "ab", "ba", "TAGS", "KEYS", "TAGS2", "UNIQ_KEY", *_BROKER_OWNED, "level"]
)


@pytest.mark.proves("broker.fast.fast-is-general")
@given(st.lists(st.tuples(_NAMES, st.text("ab1", min_size=1, max_size=3)), max_size=8))
def test_properties_without_a_feature_are_stored_by_the_general_way_as_they_came(
    pairs: list[tuple[str, str]],
) -> None:
    data = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    is_tidy = look_over(data)[0] & ~FEATURE_NO_UNIQUE_KEY == 0
    names = [name for name, _ in pairs]
    assert is_tidy == (len(set(names)) == len(names) and not set(names) & set(_BROKER_OWNED))
    if is_tidy:
        assert encode_properties(decode_properties(data)) == data
