"""Shared by the kernels' tests: the pure twin of a kernel, drafts and records to feed both."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

import contrail.kernels
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft

IPV4 = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
IPV6 = bytes(range(16)) + (10911).to_bytes(4, "big")
STORE_TIMESTAMP_MS = 1_760_000_000_123

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.sampled_from([IPV4, IPV6]) | st.binary(min_size=8, max_size=8)
queue_ids = st.integers(0, 3) | i32

_names = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "INNER_NUM", "INNER_BASE", "__CRC32#", "WAIT", "k", ""]
)
_values = (
    st.sampled_from(["", "a", "TagA", "order-1 order-2", "  x  ", "0", "1", "+3", "-3", "18", "99"])
    | st.sampled_from(
        ["32767", "32768", "00012", "9" * 30, "1 2", "grüße", "𝄞", "polygenelubricants"]
    )
    | st.text(max_size=12)
)
_pairs = st.builds("{}\x01{}\x02".format, _names, _values)
properties = (
    st.lists(_pairs, max_size=6).map(lambda pairs: "".join(pairs).encode("utf-8"))
    | st.lists(_pairs, max_size=4).map(lambda pairs: "".join(pairs).encode("utf-8")[:-1])
    | st.binary(max_size=60)
)
topics = (
    st.sampled_from([b"T", b"TopicTest", b"SCHEDULE_TOPIC_XXXX", b"%RETRY%g", "größe".encode()])
    | st.binary(min_size=1, max_size=20)
    | st.binary(min_size=120, max_size=240).map(lambda name: b"%RETRY%" + name)
)
drafts = st.builds(
    MessageDraft,
    topic=topics,
    queue_id=queue_ids,
    body=st.binary(max_size=80),
    properties=properties,
    flag=i32,
    sys_flag=st.sampled_from([0, 1, 4, 8, 12, 0x10, 0x20, 0xC0]) | i32,
    born_timestamp_ms=i64,
    born_host=hosts,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def pure_twin(name: str) -> ModuleType:
    """The kernel's source run by the interpreter, whether or not the kernel is compiled.

    The kernels that it works with are loaded likewise: compiled kernels hide what they share.
    """
    path = Path(contrail.kernels.__path__[0], f"{name}.py")
    spec = spec_from_file_location(f"pure_twin_of_{name}", path)
    assert spec is not None and spec.loader is not None
    twin = module_from_spec(spec)
    spec.loader.exec_module(twin)
    for shared, module in list(vars(twin).items()):
        if isinstance(module, ModuleType) and module.__name__.startswith("contrail.kernels."):
            setattr(twin, shared, pure_twin(module.__name__.removeprefix("contrail.kernels.")))
    return twin


def twins(name: str) -> tuple[ModuleType, ModuleType]:
    """The kernel as imported, compiled when it was built, and its pure twin."""
    return import_module(f"contrail.kernels.{name}"), pure_twin(name)


def outcome(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """The outcome of a call: its value, or the type and text of the exception."""
    try:
        return ("returned", function(*arguments))
    except Exception as error:
        return (type(error).__name__, str(error))


def java_text(data: bytes) -> str:
    """``data`` as Java decodes it: one replacement for an encoded surrogate, whole or cut."""
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xef\xbf\xbd", data).decode("utf-8", "replace")


def log_of(
    messages: list[MessageDraft],
    *,
    queue_offsets: list[int] | None = None,
    base_offset: int = 0,
    store_timestamp_ms: int = STORE_TIMESTAMP_MS,
    store_host: bytes = IPV4,
    record_crc: bool = False,
) -> bytes:
    """The commit log bytes of ``messages``; queue offsets count up unless given."""
    offsets = list(range(len(messages))) if queue_offsets is None else queue_offsets
    return b"".join(
        build_run(messages, offsets, base_offset, store_timestamp_ms, store_host, record_crc)
    )


def record_positions(log: bytes) -> list[tuple[int, int]]:
    """Each record's position and size, by its size field."""
    found = []
    position = 0
    while position < len(log):
        size = struct.unpack_from(">i", log, position)[0]
        found.append((position, size))
        position += size
    return found


@st.composite
def damaged_logs(draw: st.DrawFn) -> tuple[bytes, int]:
    """Log bytes with a few of them changed, cut or followed by something, and their base."""
    base_offset = draw(st.sampled_from([0, 1000, 2**40]))
    log = bytearray(
        log_of(
            draw(st.lists(drafts, min_size=1, max_size=3)),
            queue_offsets=None,
            base_offset=base_offset,
            store_host=draw(st.sampled_from([IPV4, IPV6])),
            record_crc=draw(st.booleans()),
        )
    )
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(log) - 1))
        log[position] = draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    del log[len(log) - draw(st.integers(0, len(log)) | st.just(0)) :]
    log += draw(
        st.sampled_from([b"", bytes(8), b"\x00\x00\x00\x40\xcb\xd4\x31\x94", b"\x00\x00\x00\x5b"])
        | st.binary(max_size=12)
    )
    return bytes(log), base_offset
