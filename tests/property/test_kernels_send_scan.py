"""Runs of sends decoded by patterns: each send equals the same send decoded alone."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contrail.kernels import send_rows
from contrail.kernels.frame_scan import KIND_SEND, scan_frames
from contrail.protocol.command import TYPE_BINARY
from tests.unit.kernels.frame_material import (
    BORN_HOST,
    SUFFIX,
    binary_header,
    frame,
    json_headers,
)
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("send_scan")

LIMIT = 16 << 20
KEY = "UNIQ_KEY"
# All of one length, so that a key can stand in for another.
_KEYS = ["AC00", "AC01", "ZZ99", "a_b~", "AC0\x7f", 'AC"0', "A\\00", "AC\n0", "AC0é"]
_digits = st.sampled_from(
    [
        "0", "1", "3", "00", "007", "-0", "-1", "+1", "", " 1", "1.0", "1e3", "2147483647",
        "2147483648", "-2147483648", "9" * 10, "9" * 18, "0" * 18, "9" * 19, "1" * 30, "x", "١",
    ]
)  # fmt: skip
_bare = st.sampled_from(
    [
        "0", "7", "10", "01", "-0", "-1", "1.5", "1e3", "true", "null", "2147483647", "2147483648",
        "9" * 11, "9" * 19, '"7"', "00", "",
    ]
)  # fmt: skip
_topics = st.sampled_from(["t1", "t1", "t2", "another"]).map(lambda name: f'"{name}"')
_odd_topics = st.sampled_from(
    [
        '""', '"é"', '"t\\u0031"', '"t\\""', '"t\x01"', "5", "true", "null", '"t1',
        '"' + "x" * 127 + '"', '"' + "x" * 128 + '"', '"%RETRY%g"', '"t1",', '"t1","b":"t2"',
    ]
)  # fmt: skip
_usual_pairs = st.sampled_from([("TAGS", "x"), ("TAGS", "y"), ("KEYS", "k1"), ("n", "v\\")])
_odd_pairs = st.sampled_from(
    [
        ("WAIT", "false"), ("DELAY", "1"), ("", "v"), ("n", ""), ("__SHARDINGKEY", "s"), (KEY, "B"),
        ("é", "ü"), ("_" * 20, "v"), ("n", "_" * 18),
    ]
)  # fmt: skip


def rarely(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 29).flatmap(lambda number: usual if number else odd)


keys = rarely(st.sampled_from(_KEYS[:4]), st.sampled_from(_KEYS) | st.text(max_size=6))
# The same separators as other encoders write them.
spellings = rarely(
    st.just("\\u0001"), st.sampled_from(["\\u0001", "\x01", "\\u0041", "\\x01", "\\u000"])
)


@st.composite
def properties(draw: st.DrawFn, pairs: list[tuple[str, str]]) -> str:
    """A JSON string, mostly with the given pairs and a key of its own."""
    extra = draw(rarely(st.just([]), st.lists(_usual_pairs | _odd_pairs, max_size=2)))
    named = [(KEY, draw(keys)) if name == KEY else (name, value) for name, value in pairs]
    text = "".join(f"{name}\x01{value}\x02" for name, value in [*named, *extra])
    if draw(st.integers(0, 3)) == 0:
        text = text[:-1]
    quoted = json.dumps(text, ensure_ascii=draw(st.booleans()))
    return quoted.replace("\\u0001", draw(spellings), 1)


@st.composite
def headers_of_one_client(draw: st.DrawFn) -> list[bytes]:
    """Headers of one layout that differ in their values, some of them odd."""
    letters = draw(st.just(list("abcdefghij")) | st.permutations([*"abcdefghijkmn", "e"]))
    tops = draw(
        st.just(["extFields", "flag", "language", "opaque", "version"])
        | st.permutations(["extFields", "flag", "opaque", "remark"])
        | st.just(["flag", "extFields"])
        | st.just(["opaque", "extFields", "opaque"])
    )
    bare = set(draw(rarely(st.just(""), st.sampled_from(["e", "g", "eg", "f"]))))
    pairs = draw(st.permutations([(KEY, ""), *draw(st.lists(_usual_pairs, max_size=2))]))
    fixed = {"a": '"makers"', "b": '"t1"', "c": '"TBW102"', "k": '"false"', "m": '"false"'}
    fixed |= {"language": '"JAVA"', "version": "479", "remark": '"r"', "flag": "0"}
    has_topics = draw(st.booleans())
    headers = []
    for _ in range(draw(st.integers(1, 6))):
        values = {**fixed, "i": draw(properties(pairs)), "n": '"broker"'}
        if has_topics:
            values["b"] = draw(rarely(_topics, _odd_topics))
        values["opaque"] = draw(rarely(st.integers(0, 2**31 - 1).map(str), _bare))
        for letter in "dfhj":
            values[letter] = '"0"'
        for letter in "eg":
            limit = 3 if letter == "e" else 2**50
            digits = draw(rarely(st.integers(0, limit).map(str), _digits))
            values[letter] = digits if letter in bare else f'"{digits}"'
        changed = draw(rarely(st.none(), st.sampled_from(["b", "f", "m", "k", "flag", "h"])))
        if changed is not None:
            values[changed] = draw(st.sampled_from(['"t2"', '"1"', '"true"', "2", "1", "0"]))
        values["extFields"] = "{" + ",".join(f'"{name}":{values[name]}' for name in letters) + "}"
        members = ['"code":310', *(f'"{name}":{values[name]}' for name in tops)]
        headers.append(("{" + ",".join(members) + "}").encode())
    return headers


@st.composite
def damaged(draw: st.DrawFn, headers: list[bytes]) -> list[bytes]:
    """Frames whose headers may lack a byte, have another byte, or end within the body."""
    frames = []
    for header in headers:
        body = draw(st.binary(min_size=1, max_size=5))
        at = draw(st.integers(0, len(header)))
        kind = draw(rarely(st.just("none"), st.sampled_from(["cut", "drop", "put", "change"])))
        byte = draw(st.binary(min_size=1, max_size=1) | st.sampled_from([b'"', b"\\", b"7", b","]))
        if kind == "cut":
            header, body = header[:at], header[at:] + body
        elif kind == "drop":
            header = header[:at] + header[at + 1 :]
        elif kind == "put":
            header = header[:at] + byte + header[at:]
        elif kind == "change":
            header = header[:at] + byte + header[at + 1 :]
        frames.append(frame(header, body))
    return frames


runs_of_one_client = headers_of_one_client().flatmap(damaged)
binary_frames = keys.map(
    lambda key: frame(
        binary_header(310, {**dict.fromkeys("abcdefgh", "1"), "i": f"{KEY}\x01{key}\x02"}),
        b"x",
        TYPE_BINARY,
    )
)
strangers = json_headers().map(lambda header: frame(header, b"body")) | binary_frames
parts_of_runs = rarely(runs_of_one_client, strangers.map(lambda one: [one]))
runs = st.lists(parts_of_runs, min_size=1, max_size=3).map(
    lambda parts: [one for part in parts for one in part]
)

_IN_TEXTS = [
    (send_rows.PROPERTIES_AT, send_rows.PROPERTIES_END),
    (send_rows.KEY_AT, send_rows.KEY_END),
    (send_rows.KEYS_AT, send_rows.KEYS_END),
    (send_rows.TAGS_AT, send_rows.TAGS_END),
]


def scanned(kernel: ModuleType, data: bytes, suffix: bytes) -> tuple[Any, ...] | None:
    """The kernel's result, with only the used part of the texts."""
    found = kernel.scan_sends(data, LIMIT, LIMIT, suffix)
    if found is None:
        return None
    count, consumed, rows, texts, topics = found
    used = rows[(count - 1) * send_rows.ROW_NUMBERS + send_rows.PROPERTIES_END]
    rows = rows[: count * send_rows.ROW_NUMBERS]
    return count, consumed, list(rows), bytes(texts[:used]), topics


def one_by_one(frames: list[bytes], suffix: bytes) -> tuple[Any, ...] | None:
    """The expected result of a run: each frame decoded alone, moved to its position.

    The run ends in front of the first frame that is no fast send.
    """
    rows: list[int] = []
    texts = b""
    topics: list[bytes] = []
    position = 0
    for one in frames:
        found = scanned(KERNEL, one, suffix)
        if found is None:
            break
        _, _, row, text, (topic,) = found
        for start, end in _IN_TEXTS:
            if row[end]:
                row[start] += len(texts)
                row[end] += len(texts)
        row[send_rows.BODY_AT] += position
        row[send_rows.BODY_END] += position
        rows += row
        texts += text
        topics.append(topic)
        position += len(one)
    return (len(topics), position, rows, texts, topics) if topics else None


def sent(opaque: str, e: str, g: str, i: str) -> bytes:
    fields = {**dict.fromkeys("abcdfh", "1"), "e": e, "g": g}
    members = ",".join(f'"{name}":"{value}"' for name, value in fields.items())
    return frame(
        f'{{"code":310,"extFields":{{{members},"i":"{i}"}},"opaque":{opaque}}}'.encode(), b"x"
    )


FIRST = sent("7", "0", "5", "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001x")


@given(runs, st.sampled_from([SUFFIX, b"", b"C\x01c\x02"]))
@example([FIRST, sent("0", "3", "999", "UNIQ_KEY\\u0001AC01\\u0002TAGS\\u0001x")], SUFFIX)
@example([FIRST, sent("07", "0", "5", "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001x")], SUFFIX)
@example([FIRST, sent("7", "007", "0", "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001yy")], SUFFIX)
@example([FIRST, sent("7", "0", "5", "UNIQ_KEY\\u0001AC\\u00410\\u0002TAGS\\u0001x")], SUFFIX)
@example([FIRST, sent("7", "0", "5", 'UNIQ_KEY\\u0001AC0"\\u0002TAGS\\u0001x')], SUFFIX)
@example([FIRST, sent("7", "2147483648", "5", "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001x")], SUFFIX)
@example([FIRST, sent("7", "0", "9" * 19, "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001x")], SUFFIX)
@example([FIRST, sent("7", "0", "5", "UNIQ_KEY\\u0001AC00\\u0002TAGS\\u0001\xff")], SUFFIX)
@example([sent("7", "0", "5", "n\\u0001\\u20ac\\u00e9\\u0002UNIQ_KEY\\u0001AC00")] * 2, SUFFIX)
@example([sent("7", "0", "5", "UNIQ_KEY\\u0001A\\u004300\\u0002n\\u0001v")] * 2, SUFFIX)
@example([FIRST.replace(b'"e":"0"', b'"e":100'), FIRST.replace(b'"e":"0"', b'"e":007')], SUFFIX)
@example([FIRST.replace(b'"g":"5"', b'"g":100'), FIRST.replace(b'"g":"5"', b'"g":007')], SUFFIX)
@example([FIRST.replace(b'"opaque"', b'"opauqe"')] * 2, SUFFIX)
# The first byte of what may be a checksum is one of the key's, of the second message alone.
@example(
    [
        sent("7", "0", "5", f"UNIQ_KEY\\u0001{'A' * 25}\\u0002"),
        sent("7", "0", "5", f"UNIQ_KEY\\u0001{'A' * 6}{'_'}{'A' * 18}\\u0002"),
    ],
    b"",
)
def test_sends_of_a_run_are_what_each_is_alone(frames: list[bytes], suffix: bytes) -> None:
    data = b"".join(frames)
    found = scanned(KERNEL, data, suffix)
    assert found == one_by_one(frames, suffix)
    if found is None:
        return
    data = data[: found[1]]
    items, consumed, _, kinds = scan_frames(data, 0, LIMIT, LIMIT, BORN_HOST, suffix)
    assert (consumed, kinds, len(items)) == (found[1], KIND_SEND, found[0])
    for number, (item, topic) in enumerate(zip(items, found[4], strict=True)):
        row = found[2][number * send_rows.ROW_NUMBERS :]
        assert (row[send_rows.OPAQUE], row[send_rows.ONE_WAY]) == (item[0], item[1] & 2)
        assert found[3][row[send_rows.KEY_AT] : row[send_rows.KEY_END]] == item[10]
        text = found[3][row[send_rows.PROPERTIES_AT] : row[send_rows.PROPERTIES_END]]
        body = data[row[send_rows.BODY_AT] : row[send_rows.BODY_END]]
        numbers = [row[send_rows.FLAG], row[send_rows.SYS_FLAG], row[send_rows.BORN_MS]]
        parts = (topic, row[send_rows.QUEUE_ID], body, text, *numbers, BORN_HOST)
        assert (*parts, row[send_rows.TIMES], 0) == item[11]
        # Neighbours of one topic share one object.
        assert number == 0 or topic != found[4][number - 1] or topic is found[4][number - 1]


@given(runs, st.sampled_from([SUFFIX, b""]))
def test_compiled_and_pure_take_runs_apart_alike(frames: list[bytes], suffix: bytes) -> None:
    data = b"".join(frames)
    assert outcome(scanned, KERNEL, data, suffix) == outcome(scanned, PURE, data, suffix)


@given(headers_of_one_client(), st.data())
def test_a_run_that_is_cut_off_gives_its_whole_sends(
    headers: list[bytes], draws: st.DataObject
) -> None:
    frames = [frame(header, b"body") for header in headers]
    data = b"".join(frames)
    cut = draws.draw(st.integers(0, len(data)))
    whole = [one for number, one in enumerate(frames) if len(b"".join(frames[: number + 1])) <= cut]
    expected = one_by_one(whole, SUFFIX) if whole else None
    assert scanned(KERNEL, data[:cut], SUFFIX) == expected
    assert scanned(PURE, data[:cut], SUFFIX) == expected


def damages() -> list[bytes]:
    """A neighbour of ``FIRST`` with each byte of its header cut off, dropped, put and changed."""
    header = sent("8", "1", "6", "UNIQ_KEY\\u0001AC01\\u0002TAGS\\u0001x")[8:-1]
    found = [frame(header, b"x")]
    for at in range(len(header) + 1):
        before, after = header[:at], header[at:]
        found += [frame(before, after + b"x"), frame(before + after[1:], b"x")]
        for byte in (b'"', b"\\", b"0", b" ", b"\x7f", b"\x02"):
            found += [frame(before + byte + after, b"x"), frame(before + byte + after[1:], b"x")]
    return found


@pytest.mark.parametrize("tag", ["x", "another"])
@pytest.mark.parametrize("kernel", [KERNEL, PURE], ids=["imported", "pure"])
def test_no_damage_to_a_neighbour_goes_unseen(kernel: ModuleType, tag: str) -> None:
    # With another tag only the loose pattern is left when the damaged header comes.
    second = sent("8", "2", "7", f"UNIQ_KEY\\u0001AC02\\u0002TAGS\\u0001{tag}")
    for damaged_one in damages():
        frames = [FIRST, second, damaged_one]
        assert scanned(kernel, b"".join(frames), SUFFIX) == one_by_one(frames, SUFFIX)


@pytest.mark.parametrize("tag", ["x", "another"])
@pytest.mark.parametrize("kernel", [KERNEL, PURE], ids=["imported", "pure"])
def test_a_header_that_says_it_is_binary_fits_no_pattern(kernel: ModuleType, tag: str) -> None:
    """Otherwise it would be a send here and no send for the tolerant decoder."""
    second = sent("8", "2", "7", f"UNIQ_KEY\\u0001AC02\\u0002TAGS\\u0001{tag}")
    posing = bytearray(sent("8", "1", "6", "UNIQ_KEY\\u0001AC01\\u0002TAGS\\u0001x"))
    posing[4] = TYPE_BINARY
    assert scanned(kernel, FIRST + second + bytes(posing), SUFFIX) == one_by_one(
        [FIRST, second], SUFFIX
    )


def test_of_sends_of_one_client_only_the_first_is_taken_apart_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise every header could cost as much as the first unnoticed."""
    taken: list[int] = []
    in_full = PURE.frame_scan.scan_header

    def noted(view: bytes, header_type: int, at: int, *rest: Any) -> Any:
        taken.append(at)
        return in_full(view, header_type, at, *rest)

    monkeypatch.setattr(PURE.frame_scan, "scan_header", noted)
    same = [
        sent(str(n), str(n), "5", f"UNIQ_KEY\\u0001AC0{n}\\u0002TAGS\\u0001x") for n in range(4)
    ]
    tagged = [sent("9", "0", "6", f"UNIQ_KEY\\u0001A{n}\\u0002TAGS\\u0001{n}") for n in range(4)]
    others = [tagged[n].replace(b'"b":"1"', b'"b":"%d"' % n) for n in range(4)]
    found = scanned(PURE, b"".join(same + tagged + others), SUFFIX)
    assert found is not None and found[0] == 12
    assert found[4][8:] == [b"0", b"1", b"2", b"3"]
    assert taken == [8]
