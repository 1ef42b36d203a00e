"""The joined values of a signed request: as the general decoder reads them, or left to it."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.protocol.command import ReceivedResponse
from contrail.protocol.frames import FrameDecoder
from contrail.protocol.signing import ACCESS_KEY, SIGNATURE, signed_content
from tests.unit.kernels.frame_material import frame
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("signed_values")
NAMES = [
    *"abcdefghijklmn",
    "bb",
    "topic",
    ACCESS_KEY,
    SIGNATURE,
    "SecurityToken",
    "_late",
    "$x",
    "",
]
VALUES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["t", "1", "", "a\x01b\x02", 'q"\\', "é", "😀", "x" * 40]),
)
ODD_VALUES = st.one_of(VALUES, st.integers(-5, 5), st.booleans(), st.none(), st.just({}))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    values = VALUES if draw(st.integers(0, 3)) else ODD_VALUES
    fields: dict[str, Any] = {ACCESS_KEY: "user", SIGNATURE: "made", "b": "topic"}
    fields |= draw(st.dictionaries(st.sampled_from(NAMES), values, max_size=18))
    names = draw(st.permutations(sorted(fields)))
    document: dict[str, Any] = {
        "code": 310,
        "extFields": {name: fields[name] for name in names},
        "flag": 0,
        "language": draw(st.sampled_from(["JAVA", "é", "C"])),
        "opaque": draw(st.integers(-9, 9)),
        "version": draw(st.sampled_from([399, 479])),
    }
    if not draw(st.integers(0, 9)):
        document["remark"] = draw(st.sampled_from([None, "said", {}]))
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=draw(st.booleans()))
    header = text.encode("utf-8", "surrogatepass")
    if not draw(st.integers(0, 5)):
        at = draw(st.integers(0, len(header) - 1))
        header = header[:at] + draw(st.binary(max_size=2)) + header[at + 1 :]
    return header


@pytest.mark.parametrize("kernel", [KERNEL, PURE], ids=["compiled", "pure"])
@given(headers(), st.binary(max_size=12), st.binary(max_size=5))
def test_joined_values_are_those_of_the_general_decoder(
    kernel: ModuleType, header: bytes, body: bytes, behind: bytes
) -> None:
    data = frame(header, body)
    joined = kernel.join_signed(data + behind, 0, b"b")
    if joined is None:
        return
    request = FrameDecoder(decodes_all=True).whole(data)[0]
    assert not isinstance(request, ReceivedResponse | tuple) or hasattr(request, "fields")
    end, access_key, signature, topic, content = joined
    assert end == len(data)
    assert request.fields[ACCESS_KEY] == access_key.decode()  # type: ignore[union-attr]
    assert request.fields[SIGNATURE] == signature.decode()  # type: ignore[union-attr]
    assert request.fields["b"] == topic.decode()  # type: ignore[union-attr]
    version = request.version  # type: ignore[union-attr]
    assert bytes(content) == signed_content(request.fields, version) + body  # type: ignore[union-attr]


@given(headers(), st.binary(max_size=12), st.integers(0, 9))
def test_compiled_equals_pure(header: bytes, body: bytes, cut: int) -> None:
    data = frame(header, body)
    data = data[: len(data) - cut] if cut < 4 else data
    told = [outcome(kernel.join_signed, data, 0, b"b") for kernel in (KERNEL, PURE)]
    assert told[0] == told[1]


def test_a_send_of_a_java_client_is_joined() -> None:
    fields = {"b": "topic", "a": "group", "i": "TAGS\x01x\x02", ACCESS_KEY: "user", SIGNATURE: "m"}
    document = {"code": 310, "extFields": fields, "flag": 0, "opaque": 1, "version": 479}
    data = frame(json.dumps(document, separators=(",", ":")).encode(), b"body")
    for kernel in (KERNEL, PURE):
        _, access_key, signature, topic, content = kernel.join_signed(data, 0, b"b")
        assert (access_key, signature, topic) == (b"user", b"m", b"topic")
        assert bytes(content) == b"usergrouptopicTAGS\x01x\x02body"


def test_more_fields_than_fit_are_left_to_the_decoder() -> None:
    fields = {f"n{number}": "v" for number in range(60)}
    data = frame(json.dumps({"code": 310, "extFields": fields}).encode())
    assert KERNEL.join_signed(data, 0, b"b") is None and PURE.join_signed(data, 0, b"b") is None
