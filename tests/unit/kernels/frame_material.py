"""Frames for the tests of the frame kernel and the decoders behind it: sound, odd and broken."""

from __future__ import annotations

import json
import struct

from hypothesis import strategies as st

from contrail.protocol.command import (
    ANNOUNCED_VERSION,
    LANGUAGES,
    TYPE_BINARY,
    Request,
    encode_request,
)
from tests.unit.kernels.material import i32, i64, properties

BORN_HOST = bytes((10, 0, 0, 9)) + (40_000).to_bytes(4, "big")
SUFFIX = b"MSG_REGION\x01r\x02TRACE_ON\x01true\x02CLUSTER\x01c\x02"


def frame(header: bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    """The frame of a header and a body, whatever they hold."""
    head = struct.pack(">II", 4 + len(header) + len(body), header_type << 24 | len(header))
    return head + header + body


texts = st.text(max_size=8) | st.sampled_from(
    ["", "a", "true", "0", "-7", "TopicTest", "é", "𝄞", 'say "no"', "back\\slash", "\x01\x02\n"]
)
names = st.sampled_from([*"abcdefghijklmnz", "topic", "queueId", "$ref", ""]) | st.text(
    min_size=1, max_size=6
)
field_maps = st.dictionaries(names, texts, max_size=8)
bodies = st.binary(max_size=20)
opaques = i32
requests = st.builds(
    Request,
    code=st.integers(-(2**15), 2**15 - 1) | st.sampled_from([10, 11, 34, 310, 320, 325]),
    opaque=opaques,
    fields=field_maps,
    body=bodies,
    flag=st.sampled_from([0, 2]),
    version=st.just(ANNOUNCED_VERSION),
    language=st.sampled_from(LANGUAGES),
    remark=st.none() | texts,
)


def quoted(text: str, ascii_only: bool = False) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)


def _loose(value: str) -> st.SearchStrategy[str]:
    """A value as one of the ways in which clients write it."""
    ways = [quoted(value), quoted(value, ascii_only=True)]
    if value in ("true", "false") or value.lstrip("-").isdecimal():
        ways.append(value)
    return st.sampled_from(ways)


_sound_values = {
    "a": texts,
    "b": texts,
    "c": texts,
    "d": i32.map(str),
    "e": i32.map(str),
    "f": st.sampled_from(["0", "1", "4", "16"]) | i32.map(str),
    "g": i64.map(str),
    "h": i32.map(str),
    "i": properties.map(lambda data: data.decode("utf-8", "replace"))
    | st.just("UNIQ_KEY\x01AC0001\x02TAGS\x01x\x02"),
    "j": i32.map(str),
    "k": st.sampled_from(["true", "false", "0"]),
    "l": i32.map(str),
    "m": st.sampled_from(["true", "TRUE", "false", "0", "1", ""]),
    "n": texts,
}


@st.composite
def _member(draw: st.DrawFn, letter: str) -> str:
    value = draw(_sound_values[letter] | st.sampled_from(["", "x", "007", "+1", "9" * 19, "-0"]))
    return f"{quoted(letter)}:{draw(_loose(value))}"


@st.composite
def send_fields(draw: st.DrawFn) -> str:
    """The fields of a send in the short spelling, mostly complete."""
    letters = [*"abcdefgh", *draw(st.lists(st.sampled_from("ijklmn"), unique=True))]
    if draw(st.integers(0, 9)) == 0:
        letters.remove(draw(st.sampled_from("abcdefgh")))
    if draw(st.integers(0, 4)) == 0:
        letters.append(draw(st.sampled_from("abcdefghijklmn")))
    members = [draw(_member(letter)) for letter in draw(st.permutations(letters))]
    members += draw(st.lists(odd_members, max_size=1))
    return "{" + ",".join(members) + "}"


# Members that one of the two readers might see otherwise than the other.
odd_members = st.sampled_from(
    [
        '"x":"\\q"', '"x":"\\ud83d"', '"x":"\\ud83d\\ude00"', '"x":null', '"x":1.5', '"x":true',
        '"x":-0', '"x":01', '"x":{"y":1}', '"x":[1,2]', '"z":"é"', '"é":"z"', '"k":"\\q"',
        '"n":"\\u00"', '"$ref":"$"', '"x":"\x80"', '7:8', "'x':'y'", '"x":12345678901234567890',
        '"":""', '"x":"tab\t"', '"i":"\\u0001"', '"e":null', '"m":1',
    ]
)  # fmt: skip

_top_members = st.sampled_from(
    [
        '"flag":0', '"flag":2', '"flag":1', '"flag":"2"', '"opaque":7', '"opaque":-1',
        '"opaque":2147483648', '"version":479', '"version":1', '"language":"JAVA"',
        '"language":"CPP"', '"language":"KLINGON"', '"language":9', '"language":99',
        '"remark":"no"', '"remark":"\\u00e9"', '"remark":null', '"remark":5', '"remark":""',
        '"serializeTypeCurrentRPC":"JSON"', '"serializeTypeCurrentRPC":0', '"code":310',
        '"code":11', '"code":-1', '"code":"34"', '"cause":"x"', '"extFields":null',
    ]
)  # fmt: skip


@st.composite
def pull_fields(draw: st.DrawFn) -> str:
    """The fields of a pull, or almost."""
    numbers = st.sampled_from(
        ["0", "7", "32", "123456789012345678", "1234567890123456789", "-1", "x", ""]
    )
    fields = {
        "consumerGroup": draw(st.sampled_from(["g", "g2"])),
        "topic": draw(st.sampled_from(["t", "\u00e4"])),
        "queueId": "0",
        "queueOffset": draw(numbers),
        "maxMsgNums": draw(st.sampled_from(["32", "1", "x"])),
        "commitOffset": draw(numbers),
        "suspendTimeoutMillis": draw(st.sampled_from(["15000", "a"])),
        **draw(st.sampled_from([{}, {}, {"$ref": "$"}, {"bname": "b"}, {"n" * 300: "1"}])),
    }
    names = draw(st.lists(st.sampled_from(list(fields)), max_size=1))
    kept = {name: value for name, value in fields.items() if name not in names}
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=draw(st.booleans()))


@st.composite
def json_headers(draw: st.DrawFn) -> bytes:
    """A JSON header in the plain form or close to it."""
    code = draw(st.sampled_from([310, 310, 310, 320, 325, 11, 11, 361, 34, 103, 0]))
    members = [f'"code":{code}'] if draw(st.integers(0, 9)) else []
    others = pull_fields() | field_maps.map(lambda f: json.dumps(f, separators=(",", ":")))
    fields = draw(others if code in (11, 361) else send_fields() | others)
    if draw(st.integers(0, 9)):
        members.append(f'"extFields":{fields}')
    members += draw(st.lists(_top_members, max_size=5))
    members += draw(st.lists(odd_members, max_size=1)) if draw(st.integers(0, 3)) == 0 else []
    if draw(st.booleans()):
        members = draw(st.permutations(members))
    return ("{" + ",".join(members) + "}").encode("utf-8", "surrogatepass")


@st.composite
def mutated(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> bytes:
    """Bytes of ``source`` with a few of them changed, dropped or put in."""
    data = bytearray(draw(source))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        byte = draw(st.sampled_from(b'"{}[]:,\\01-x\x00\x80\xff') | st.integers(0, 255))
        if draw(st.booleans()):
            data[at : at + 1] = bytes([byte])
        elif draw(st.booleans()):
            data.insert(at, byte)
        else:
            del data[at : at + draw(st.integers(1, 4))]
    return bytes(data)


@st.composite
def binary_headers(draw: st.DrawFn) -> bytes:
    """A binary header; its lengths are sometimes lies."""
    lie = st.sampled_from([0, 0, 0, 0, 1, -1, 5, 1 << 20, -(1 << 20)])
    fields = b"".join(
        struct.pack(">H", max(0, len(name.encode()) + draw(lie)) & 0xFFFF)
        + name.encode()
        + struct.pack(">i", len(value.encode()) + draw(lie))
        + value.encode()
        for name, value in draw(field_maps).items()
    )
    remark = draw(texts).encode()
    head = struct.pack(
        ">hBhiii",
        draw(st.integers(-(2**15), 2**15 - 1)),
        draw(st.integers(0, 255)),
        draw(st.integers(-(2**15), 2**15 - 1)),
        draw(i32),
        draw(st.sampled_from([0, 1, 2, 3])),
        len(remark) + draw(lie),
    )
    return head + remark + struct.pack(">i", len(fields) + draw(lie)) + fields


def binary_header(code: int, fields: dict[str, str], *, opaque: int = 7, flag: int = 0) -> bytes:
    """As a Java client writes one, nothing being wrong with it."""
    encoded = b"".join(binary_field(name, value) for name, value in fields.items())
    head = struct.pack(">hBhiii", code, 0, 479, opaque, flag, 0)
    return head + struct.pack(">i", len(encoded)) + encoded


def binary_field(name: str, value: str) -> bytes:
    name_bytes = name.encode("utf-8", "surrogatepass")
    value_bytes = value.encode("utf-8", "surrogatepass")
    sizes = struct.pack(">H", len(name_bytes)), struct.pack(">i", len(value_bytes))
    return sizes[0] + name_bytes + sizes[1] + value_bytes


@st.composite
def sound_binary_headers(draw: st.DrawFn) -> bytes:
    """Sends, pulls and a few others with a binary header whose lengths are right."""
    code = draw(st.sampled_from([310, 310, 310, 320, 325, 11, 11, 361, 34, 0]))
    numbers = pull_fields().map(json.loads)
    letters = {letter: draw(_sound_values[letter]) for letter in draw(_binary_letters)}
    fields = draw(numbers) if code in (11, 361) else letters
    opaque, flag = draw(i32), draw(st.sampled_from([0, 0, 0, 2, 1, -1]))
    return binary_header(code, fields, opaque=opaque, flag=flag)


_binary_letters = st.lists(st.sampled_from("ijklmn"), unique=True).flatmap(
    lambda more: st.permutations([*"abcdefgh", *more])
)

frames = (
    st.builds(frame, json_headers(), bodies)
    | st.builds(frame, sound_binary_headers(), bodies, st.just(TYPE_BINARY))
    | st.builds(frame, mutated(sound_binary_headers()), bodies, st.just(TYPE_BINARY))
    | st.builds(frame, mutated(json_headers()), bodies)
    | st.builds(frame, binary_headers(), bodies, st.just(TYPE_BINARY))
    | st.builds(frame, st.binary(max_size=30), bodies, st.sampled_from([0, 1, 2, 255]))
)
streams = st.lists(frames, max_size=4).map(b"".join)

# Bytes that are no frame, by the reason for which their connection is closed.
BREAKERS = {
    "frame_length": struct.pack(">II", (16 << 20) - 3, 0),
    "frame_length (zero)": bytes(8),
    "frame_length (negative)": b"\xff" * 8,
    "header_length": struct.pack(">II", 8, 100) + bytes(4),
    "header_too_long": frame(b"x" * ((256 << 10) + 1)),
    "header_type_unknown": frame(b"{}", header_type=3),
    "header_malformed": frame(b'{"code":1'),
    "header_malformed (no object)": frame(b"[1,2]"),
    "header_malformed (number)": frame(b'{"code":1e5}'),
    "header_malformed (deep)": frame(b'{"code":1,"x":' + b"[" * 33 + b"]" * 33 + b"}"),
    "header_malformed (binary)": frame(b"\x00\x0b", header_type=1),
    "too_many_fields": encode_request(Request(1, 1, {f"f{i}": "x" for i in range(257)})),
    "field_name_too_long": encode_request(Request(1, 1, {"k" * 257: "x"})),
    "field_too_long": encode_request(Request(1, 1, {"k": "v" * 65_537})),
}
