"""The draft delivered from a record: compiled equals pure, and both equal the general way."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contrail.broker.state.delay_cursors import as_delivered, delivery_of
from contrail.kernels.record_build import build_run
from contrail.model.record import decode_record
from tests.unit.kernels.material import drafts, hosts, outcome, twins

KERNEL, PURE = twins("delivered_draft")

_values = st.sampled_from(["", "orders", "größe", "0", "3", "+3", "-1", "9" * 9, "9" * 10, " 1"])
_pairs = st.builds(
    "{}\x01{}\x02".format,
    st.sampled_from(["REAL_TOPIC", "REAL_QID", "REAL_TOPICS", "TAGS", "", "REAL_TOPIC\x01x"]),
    _values | st.sampled_from(["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"]),
)
_texts = st.lists(_pairs, max_size=5).map("".join).map(str.encode)
_placed = st.builds(
    "REAL_TOPIC\x01{}\x02TAGS\x01t\x02REAL_QID\x01{}\x02".format,
    st.sampled_from(["orders", "payments", "größe"]),
    st.integers(0, 2**33),
).map(str.encode)
properties = _texts | _texts.map(lambda text: text[:-1]) | _placed | st.binary(max_size=40)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    draft = draw(drafts)._replace(properties=draw(properties))
    return b"".join(build_run([draft], [7], draw(st.integers(0, 2**50)), 5, draw(hosts), False))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(records()))
    for _ in range(draw(st.integers(1, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def in_general(record: bytes) -> Any:
    return as_delivered(decode_record(record, check_body_crc=False))


@given(records() | damaged() | st.binary(max_size=120))
def test_a_delivery_is_that_of_the_general_way(record: bytes) -> None:
    found = KERNEL.delivered_draft(record)
    assert found == PURE.delivered_draft(record)
    expected = outcome(in_general, record)
    assert outcome(delivery_of, record) == expected
    if found is not None and expected[0] == "returned":
        assert found == expected[1]


@given(drafts)
def test_records_of_the_common_form_are_taken(draft: Any) -> None:
    """Otherwise every delivery could take the general way unnoticed."""
    text = b"UNIQ_KEY\x01AC\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
    record = b"".join(
        build_run(
            [draft._replace(topic=b"SCHEDULE_TOPIC_XXXX", properties=text)],
            [7],
            64,
            5,
            bytes(8),
            False,
        )
    )
    found = KERNEL.delivered_draft(record)
    assert found is not None
    assert found[:2] == (b"orders", 3)
    assert found[9] == -65
