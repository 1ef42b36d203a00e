"""Message traces are read back as written, in old and new forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RemoteProtocolError
from contrail.protocol.bodies.trace import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TracedState,
    TracedType,
    decode_traces,
    encode_trace,
    encode_traces,
    trace_keys,
)

TEXTS = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=12
).filter(lambda text: text != "null")
INTS = st.integers(0, (1 << 31) - 1)
LONGS = st.integers(0, (1 << 63) - 1)
TRACES: st.SearchStrategy[Trace] = st.one_of(
    st.builds(
        PubTrace,
        timestamp_ms=LONGS,
        region=TEXTS,
        group=TEXTS,
        topic=TEXTS,
        message_id=TEXTS,
        tags=TEXTS,
        keys=TEXTS,
        store_host=TEXTS,
        body_length=INTS,
        cost_ms=INTS,
        message_type=st.sampled_from(TracedType),
        offset_message_id=TEXTS,
        success=st.booleans(),
        client_host=TEXTS,
    ),
    st.builds(
        SubBeforeTrace,
        timestamp_ms=LONGS,
        region=TEXTS,
        group=TEXTS,
        request_id=TEXTS,
        message_id=TEXTS,
        retry_times=INTS,
        keys=TEXTS,
    ),
    st.builds(
        SubAfterTrace,
        request_id=TEXTS,
        message_id=TEXTS,
        cost_ms=INTS,
        success=st.booleans(),
        keys=TEXTS,
        context_code=INTS,
        timestamp_ms=LONGS,
        group=TEXTS,
    ),
    st.builds(
        EndTransactionTrace,
        timestamp_ms=LONGS,
        topic=TEXTS,
        message_id=TEXTS,
        tags=TEXTS,
        keys=TEXTS,
        transaction_id=TEXTS,
        state=st.sampled_from(TracedState),
        from_check=st.booleans(),
    ),
    st.builds(
        RecallTrace, timestamp_ms=LONGS, topic=TEXTS, message_id=TEXTS, success=st.booleans()
    ),
)


@given(st.lists(TRACES, max_size=5))
def test_traces_are_read_back_as_written(traces: list[Trace]) -> None:
    assert decode_traces(encode_traces(traces)) == traces


def test_a_sent_message_is_written_in_the_order_of_the_original() -> None:
    trace = PubTrace(
        timestamp_ms=1700000000000,
        region="DefaultRegion",
        group="orders",
        topic="t",
        message_id="AA",
        keys="k1 k2",
        store_host="127.0.0.1:10911",
        body_length=5,
        cost_ms=3,
        message_type=TracedType.DELAYED,
        offset_message_id="BB",
    )
    expected = (
        "Pub|1700000000000|DefaultRegion|orders|t|AA|null|k1 k2|127.0.0.1:10911|5|3|3|BB|true"
    )
    assert encode_trace(trace) == expected.replace("|", "\x01") + "\x02"
    assert trace_keys(trace) == ["AA", "k1", "k2"]


def test_lines_of_older_clients_are_read() -> None:
    old_pub = "Pub|7|r|g|t|id|tag|key|host|5|3|0|false"
    old_after = "SubAfter|request|id|3|true|key|2"
    cloud_after = old_after + "|"
    body = "\x02".join([old_pub, old_after, cloud_after]).replace("|", "\x01").encode()
    pub, *after = decode_traces(body)
    assert isinstance(pub, PubTrace)
    assert (pub.cost_ms, pub.success, pub.offset_message_id) == (3, False, "")
    assert (
        after
        == [
            SubAfterTrace(
                request_id="request", message_id="id", cost_ms=3, keys="key", context_code=2
            )
        ]
        * 2
    )


def test_lines_of_unknown_kinds_are_skipped() -> None:
    assert decode_traces(b"Tomorrow\x01x\x02" + encode_traces([RecallTrace(timestamp_ms=1)])) == [
        RecallTrace(timestamp_ms=1)
    ]


@pytest.mark.parametrize("line", [b"Pub\x011", b"Recall\x01x\x01r\x01g\x01t\x01id\x01true"])
def test_a_malformed_line_is_refused_with_its_text(line: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=line.decode()[:3]):
        decode_traces(line + b"\x02")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, TracedType.NORMAL),
        ({"TRAN_MSG": "true"}, TracedType.HALF),
        ({"DELAY": "3"}, TracedType.DELAYED),
        ({"TIMER_DELIVER_MS": "9"}, TracedType.DELAYED),
    ],
)
def test_the_type_of_a_message_is_in_its_properties(
    properties: dict[str, str], expected: TracedType
) -> None:
    assert TracedType.of(properties) is expected
