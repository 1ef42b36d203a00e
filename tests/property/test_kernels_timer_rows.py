"""Timer records: compiled equals pure on any bytes, and both equal the record decoder."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RecordDamaged
from contrail.kernels.record_build import build_run
from contrail.model.message import MessageDraft
from contrail.model.properties import decode_properties
from contrail.model.record import decode_record
from tests.unit.kernels.material import outcome, twins

KERNEL, PURE = twins("timer_rows")

NAMES = (
    "TIMER_OUT_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELAY_MS",
    "TIMER_DELIVER_MS",
    "TIMER_ROLL_TIMES",
    "TIMER_DEL_UNIQKEY",
    "REAL_TOPIC",
    "REAL_QID",
    "UNIQ_KEY",
    "CONTRAIL_RECALL_NONCE",
    "TIMER_OUT_M",
    "XTIMER_OUT_MS",
    "",
)
values = st.integers(-(10**20), 10**20).map(str) | st.sampled_from(
    ["", "+5", "-", "x", "1 ", "orders+key", "007", "\u0664"]
)
pairs = st.lists(st.tuples(st.sampled_from(NAMES), values), max_size=8)
hosts = st.sampled_from([b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(16) + b"\0\0\x2a\x9f"])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    text = "\x02".join(f"{name}\x01{value}" for name, value in draw(pairs))
    properties = text.encode() + (b"\x02" if draw(st.booleans()) else b"")
    topic = draw(st.sampled_from([b"rmq_sys_wheel_timer", b"%RETRY%" + b"t" * 200]))
    body = draw(st.binary(max_size=20))
    draft = MessageDraft(topic, 0, body, properties, 7, 1, 1_760_000_000_123, draw(hosts), 2, -5)
    store_host = draw(hosts)
    return b"".join(build_run([draft], [9], 4096, 1_760_000_000_000, store_host, False))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(records()))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@given(records() | damaged() | st.binary(max_size=120))
def test_compiled_and_pure_read_alike_whatever_the_bytes(data: bytes) -> None:
    found = outcome(KERNEL.read_timer, data)
    assert found == outcome(PURE.read_timer, data)
    assert found[0] in ("returned", "ValueError")


@given(records())
def test_a_record_reads_as_the_decoder_reads_it(data: bytes) -> None:
    read = KERNEL.read_timer(data)
    plain = decode_record(data)
    assert read[:9] == (
        plain.physical_offset,
        plain.queue_offset,
        plain.record_bytes,
        plain.store_timestamp_ms,
        plain.flag,
        plain.sys_flag,
        plain.born_timestamp_ms,
        plain.born_host,
        plain.reconsume_times,
    )
    assert data[read[9] : read[10]] == plain.body
    assert data[read[11] : read[12]] == plain.raw_properties
    properties = decode_properties(plain.raw_properties)
    assert read[15] == properties.get("REAL_TOPIC", "").encode()
    assert read[17] == properties.get("UNIQ_KEY", "").encode()
    assert read[18] == properties.get("TIMER_DEL_UNIQKEY", "").encode()
    assert read[20] == properties.get("CONTRAIL_RECALL_NONCE", "").encode()
    assert read[13] == _number(properties.get("TIMER_OUT_MS"))
    assert read[14] == _asked(properties, plain.store_timestamp_ms)


@given(damaged())
def test_records_that_the_decoder_refuses_are_refused(data: bytes) -> None:
    try:
        decode_record(data, check_body_crc=False)
    except RecordDamaged:
        assert outcome(KERNEL.read_timer, data)[0] == "ValueError"


def _number(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-").removeprefix("+") if text else ""
    if text and len(text) - len(digits) > 1:
        return None
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 19
    return int(text) if text and is_number else None


def _asked(properties: dict[str, str], stored_ms: int) -> int | None:
    numbers = {name: _number(properties.get(name)) for name in NAMES}
    seconds, delay = numbers["TIMER_DELAY_SEC"], numbers["TIMER_DELAY_MS"]
    if numbers["TIMER_ROLL_TIMES"] is None:
        if seconds is not None:
            return stored_ms + seconds * 1000
        if delay is not None:
            return stored_ms + delay
    return numbers["TIMER_DELIVER_MS"]
