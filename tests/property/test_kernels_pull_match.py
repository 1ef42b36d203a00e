"""Pulls like an earlier one: compiled equals pure, and a match equals the scanned pull."""

from __future__ import annotations

import json
import struct

from hypothesis import example, given
from hypothesis import strategies as st

from contrail.broker.fast.pull_templates import template_of
from contrail.protocol.frames import FrameDecoder, PullFrame
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("pull_match")

TEMPLATE = b'{"code":11,"extFields":{"queueId":"\x01","queueOffset":"\x02"},"opaque":\x04}'

digits = st.text("0123456789", max_size=20) | st.sampled_from(["0", "07", "9" * 18, "9" * 19])
pieces = st.sampled_from(
    [b'{"code":11,', b'"queueId":"', b'",', b"}", b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"0"]
)
templates = st.just(TEMPLATE) | st.lists(pieces, max_size=8).map(b"".join)
texts = st.text(st.characters(min_codepoint=32, max_codepoint=300), max_size=8) | st.sampled_from(
    ['"queueId":"7"', "a\\b", "*", 'x","queueOffset":"5', "\x01", "queueId"]
)
numbers = st.integers(0, 10**18 - 1) | st.integers(0, 300)
small_numbers = st.integers(0, 2**31 - 1) | st.integers(0, 300)


def framed(header: bytes) -> bytes:
    return struct.pack(">II", len(header) + 4, len(header)) + header


def pull_header(fields: dict[str, str], opaque: int, language: str = "JAVA") -> bytes:
    command = {"code": 11, "extFields": fields, "flag": 0, "language": language, "opaque": opaque}
    return json.dumps(command, separators=(",", ":"), ensure_ascii=False).encode()


def pull_fields(queue_id: int, queue_offset: int, commit_offset: int) -> dict[str, str]:
    return {
        "queueId": str(queue_id),
        "maxMsgNums": "32",
        "queueOffset": str(queue_offset),
        "commitOffset": str(commit_offset),
    }


def scanned(frame: bytes) -> PullFrame | None:
    """The pull that the frame kernel finds; None for any other frame."""
    found = FrameDecoder().feed(frame)[0]
    return found if isinstance(found, PullFrame) else None


def both(buffer: bytes, start: int, template: bytes) -> object:
    """The result of both kernels, which is the same."""
    compiled = outcome(KERNEL.match_pull, buffer, start, template)
    assert compiled == outcome(PURE.match_pull, buffer, start, template)
    return compiled[1]


@given(templates, digits, digits, digits, st.integers(-1, 9), st.binary(max_size=9))
def test_compiled_and_pure_match_alike(
    template: bytes, queue_id: str, queue_offset: str, opaque: str, cut: int, before: bytes
) -> None:
    header = template.replace(b"\x01", queue_id.encode()).replace(b"\x02", queue_offset.encode())
    frame = framed(header.replace(b"\x03", b"5").replace(b"\x04", opaque.encode()))
    both(frame, 0, template)
    both(before + frame, len(before), template)
    both(frame[: len(frame) - cut], 0, template)
    both(frame, cut, template)


@given(st.binary(max_size=60), st.integers(-3, 70), templates)
def test_compiled_and_pure_match_any_bytes_alike(
    buffer: bytes, start: int, template: bytes
) -> None:
    both(buffer, start, template)
    both(framed(buffer), start, template)


@example([("subscription", '"queueId":"7"')], "JAVA", (1, 2, 3, 4), (5, 6, 7, 8))
@given(
    st.lists(st.tuples(texts, texts), max_size=4),
    st.sampled_from(["JAVA", "CPP", "\xe4"]),
    st.tuples(small_numbers, numbers, numbers, small_numbers),
    st.tuples(small_numbers, numbers, numbers, small_numbers),
)
def test_a_frame_that_matches_is_the_same_pull_with_other_numbers(
    extra: list[tuple[str, str]],
    language: str,
    told: tuple[int, int, int, int],
    later: tuple[int, int, int, int],
) -> None:
    first = scanned(framed(pull_header(dict(extra) | pull_fields(*told[:3]), told[3], language)))
    template = None if first is None else template_of(first)
    frame = framed(pull_header(dict(extra) | pull_fields(*later[:3]), later[3], language))
    if first is None or template is None:
        return
    second = scanned(frame)
    assert second is not None
    assert both(frame, 0, template) == (len(frame), *later)
    assert (second[5], second[7], second[0]) == later[1:]
    assert (second[1:4], second[6]) == (first[1:4], first[6])
    # No other byte of the pull has changed.
    queue_ids = [b'"queueId":"%d"' % numbers[0] for numbers in (told, later)]
    assert first[4].replace(queue_ids[0], b"") == second[4].replace(queue_ids[1], b"")


@given(st.tuples(small_numbers, numbers, numbers, small_numbers), st.data())
def test_another_byte_anywhere_is_no_match(
    told: tuple[int, int, int, int], data: st.DataObject
) -> None:
    header = pull_header(pull_fields(*told[:3]) | {"topic": "orders"}, told[3])
    pull = scanned(framed(header))
    assert pull is not None
    template = template_of(pull)
    assert template is not None
    at = data.draw(st.integers(0, len(header) - 1))
    byte = data.draw(st.integers(0, 255))
    changed = header[:at] + bytes((byte,)) + header[at + 1 :]
    found = both(framed(changed), 0, template)
    if found is not None:
        same = scanned(framed(changed))
        assert same is not None and template_of(same) == template
