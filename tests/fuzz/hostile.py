"""Inputs by hand: mutations of the seeds, and documents as large as they may be."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from tests.fuzz.targets import Target

_TOKENS = [
    *(bytes([byte]) for byte in b"{}[]:,\"'\\0-.eE$ \n\t\x00\x01\x02\x7f\x80\xff"),
    *(b"null", b"true", b'"$ref"', b"\\u", b"\\ud800", b"1e999", b"9" * 25, b"\xed\xa0\x80"),
    *(struct.pack(">i", number) for number in (-1, 0, 1, 2**31 - 1, -(2**31), 1 << 20)),
    *(b" AND ", b" OR ", b"NOT ", b" IN ", b" BETWEEN ", b"(", b")", b"'", b"/*", b"--"),
]


def mutations(target: Target, *, seed: int, count: int) -> Iterator[bytes]:
    """Inputs near the seeds: pieces cut, doubled, swapped, replaced by meaningful bytes."""
    chance = random.Random(f"{seed} {target.name}")
    pool = list(target.seeds)
    for _ in range(count):
        data = bytearray(chance.choice(pool))
        for _ in range(chance.randint(1, 6)):
            _change(data, chance)
        yield bytes(data[:4096])
        if chance.random() < 0.2:
            pool.append(bytes(data[:2048]))


def _change(data: bytearray, chance: random.Random) -> None:
    at = chance.randint(0, len(data))
    end = min(len(data), at + chance.choice([0, 1, 1, 2, 4, 16]))
    kind = chance.randint(0, 3)
    if kind == 0:
        data[at:end] = chance.choice(_TOKENS)
    elif kind == 1:
        data[at:end] = b""
    elif kind == 2:
        data[at:at] = data[at:end] * chance.choice([1, 2, 50])
    else:
        data[at:end] = chance.randbytes(end - at)


def large(name: str) -> dict[str, bytes]:
    """The worst inputs within the bounds of a decoder, by their content."""
    if name in ("json-header", "fastjson", "heartbeat", "lock"):
        return _large_json(256 << 10 if name == "json-header" else 512 << 10)
    return _LARGE.get(name, {})


def _filled(before: bytes, unit: bytes, after: bytes, size: int) -> bytes:
    count = (size - len(before) - len(after)) // len(unit)
    return before + (unit * count)[:-1] + after


def _large_json(size: int) -> dict[str, bytes]:
    units = [b"{},", b"[],", b"[{}],", b'{"":1},', b"1,", b"1.5,", b'"ab",', b"-9,", b'"",']
    found = {
        f"{opening.decode()} {unit.decode()}": _filled(opening, unit, b"]}", size)
        for unit in units
        for opening in (b'{"code":1,"x":[', b"{code:1,x:[", b'{"$ref":1,"x":[')
    }
    # As many small values as the bound on tokens lets through.
    found |= {
        f"{count} {unit.decode()}": _filled(b"{code:1,x:[", unit, b"]}", count * len(unit))
        for unit in (b"{},", b"[{}],", b'{"":1},')
        for count in (5_000, 16_000, 24_000)
    }
    found |= {
        "many names": b"{" + b",".join(b"k%d:1" % n for n in range(size // 12)) + b"}",
        "escapes": b'{x:"' + b"\\u4e2d" * (size // 6 - 4) + b'"}',
        "surrogates": b'{x:"' + b"\\ud83d\\ude00" * (size // 12 - 4) + b'"}',
        "wide text": '{x:"\U0001f600\\n'.encode() + b"a" * (size - 40) + b'"}',
        "quotes": b'"' * size,
        "a text without an end": b'{"' + b'\\"' * (size // 2 - 4),
        "digits": b"[" + b"9" * (size - 4) + b"]",
        "long numbers": b"[" + (b"9" * 4299 + b",") * (size // 4300 - 1) + b"1]",
        "depth": b"[" * (size // 2) + b"]" * (size // 2),
        "spaces": b" " * size,
        "references": b'{"a":{},"c":[' + b",".join([b'{"$ref":"$.a"}'] * (size // 16 - 4)) + b"]}",
        "a path": b'{"a":{},"b":{"$ref":"$' + b".a" * (size // 2 - 40) + b'"}}',
        "a path of escapes": b'{"b":{"$ref":"$.' + b"\\\\." * (size // 3 - 40) + b'"}}',
    }
    return found


_BINARY_HEAD = struct.pack(">hBhiii", 310, 0, 479, 1, 0, 0)
_EMPTY_FIELDS = bytes(6) * 43_000
_SMALL_FIELDS = b"".join(
    struct.pack(">H", 4) + b"%04d" % n + struct.pack(">i", 1) + b"v" for n in range(9_000)
)
_SQL_BYTES = 16_384
_LARGE = {
    "binary-header": {
        "empty fields": _BINARY_HEAD + struct.pack(">i", len(_EMPTY_FIELDS)) + _EMPTY_FIELDS,
        "small fields": _BINARY_HEAD + struct.pack(">i", len(_SMALL_FIELDS)) + _SMALL_FIELDS,
    },
    "frames": {
        "one frame": b"\x00" + struct.pack(">II", (8 << 20) - 4, 2) + b"{}" + bytes((8 << 20) - 10),
        "a length": b"\x04" + b"\xff" * (1 << 20),
        "small frames": b"\x00" + (struct.pack(">II", 17, 13) + b'{"code":1111}') * 20_000,
    },
    "batch": {"small units": (struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\x00\x00") * 190_000},
    "properties": {
        "pairs": b"a\x01b\x02" * 8_000,
        "names": b"".join(b"%d\x011\x02" % n for n in range(4_000)),
        "separators": b"\x02\x01" * 16_000,
    },
    "properties-text": {
        "continued": b"a\\\n" * 21_000,
        "names": b"".join(b"%d\n" % n for n in range(10_000)),
        "lines": b"\n" * 65_000,
        "backslashes": b"\\" * 65_000,
        "escapes": b"\\u4e2d" * 10_000,
    },
    "sql92": {
        name: (text * (_SQL_BYTES // len(text)))[: _SQL_BYTES - len(end)] + end
        for name, text, end in [
            ("brackets", b"(", b""),
            ("or", b"a=1 OR ", b""),
            ("and", b"a=1 AND ", b"a=1"),
            ("sum", b"1+", b"1 > 0"),
            ("not", b"NOT ", b"a"),
            ("minus", b"-", b"1"),
            ("quotes", b"'", b""),
            ("text", b"x", b"'"),
            ("comments", b"/*", b""),
            ("digits", b"9", b" > 1"),
            ("exponents", b"1e", b""),
            ("between", b"a BETWEEN 1 AND ", b"2"),
            ("in", b"'x',", b"'x')"),
        ]
    },
    "register-compressed": {
        "zeros": b"\x00" + bytes(1 << 20),
        "counts": b"\x00" + struct.pack(">i", 2) + b"{}" + b"\x7f\xff\xff\xff" + bytes(100_000),
    },
    "subscriptions": {"tags": b"a||" * 20_000, "bars": b"|" * 60_000},
}
