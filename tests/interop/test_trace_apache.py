"""Apache RocketMQ's trace encoder writes the same as ours, and each reads the other's lines."""

from __future__ import annotations

import dataclasses
import os
import random
import re
from pathlib import Path

import pytest

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
    trace_keys,
)
from tests.interop.peers import JavaPeer, java_peer

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
TRACE_COUNT = 2_000
RUN_TIMEOUT_S = 300
WORDS = ["order-1", "支付", "a b", "\t", "x\\y", "😀", "7F000001", "127.0.0.1:10911", "Ω=%d"]
KINDS: dict[type[Trace], str] = {
    PubTrace: "Pub",
    SubBeforeTrace: "SubBefore",
    SubAfterTrace: "SubAfter",
    EndTransactionTrace: "EndTransaction",
    RecallTrace: "Recall",
}


@pytest.fixture(scope="module", params=["java-client-5", "java-client-4"])
def peer(request: pytest.FixtureRequest) -> JavaPeer:
    return java_peer(request.param)


@pytest.mark.proves("client.programs.trace")
def test_apache_writes_the_line_that_we_write(peer: JavaPeer, tmp_path: Path) -> None:
    traces = generated(peer)
    questions = ["\t".join(fields_of(trace)) for trace in traces]
    for trace, answer in zip(traces, asked(peer, tmp_path, "encode", questions), strict=True):
        line, keys = answer.split("\t")
        assert escaped(encode_trace(trace)) == line
        assert escaped(" ".join(sorted(set(trace_keys(trace)), key=_java_order))) == keys
        assert decode_traces(unescaped(line).encode()) == [trace]


@pytest.mark.proves("client.programs.trace")
def test_apache_reads_all_fields_of_our_lines(peer: JavaPeer, tmp_path: Path) -> None:
    traces = generated(peer)
    questions = [escaped(encode_trace(trace)) for trace in traces]
    for trace, answer in zip(traces, asked(peer, tmp_path, "decode", questions), strict=True):
        found = ["" if field == "null" else field for field in answer.split("\t")]
        # Apache puts its own address where a line names no client.
        found = found[:14] if isinstance(trace, PubTrace) else found
        assert found == fields_of(trace)


def test_apache_reads_the_client_host_that_our_broker_writes(
    peer: JavaPeer, tmp_path: Path
) -> None:
    trace = PubTrace(timestamp_ms=1, message_id="id", success=False, client_host="10.0.0.7")
    (answer,) = asked(peer, tmp_path, "decode", [escaped(encode_trace(trace))])
    assert answer.split("\t")[13:] == ["false", "10.0.0.7"]


def generated(peer: JavaPeer) -> list[Trace]:
    chance = random.Random(SEED)
    # The old release knows neither recalls nor ordered messages.
    kinds = list(KINDS) if peer.major >= 5 else list(KINDS)[:-1]
    types = list(TracedType) if peer.major >= 5 else list(TracedType)[:-1]
    return [_generated(chance, chance.choice(kinds), types) for _ in range(TRACE_COUNT)]


def _generated(chance: random.Random, kind: type[Trace], types: list[TracedType]) -> Trace:
    values: dict[str, object] = {}
    for field in dataclasses.fields(kind):
        values[field.name] = {
            "int": chance.choice([0, 1, chance.randrange(1 << 31)]),
            "bool": chance.random() < 0.5,
            "TracedType": chance.choice(types),
            "TracedState": chance.choice(list(TracedState)),
            "str": chance.choice(["", *WORDS]),
        }[str(field.type)]
    values["message_id"] = f"7F0000010000{chance.randrange(1 << 40):020X}"
    if "timestamp_ms" in values:
        values["timestamp_ms"] = chance.randrange(1 << 62)
    if kind is PubTrace:
        values["client_host"] = ""
    return kind(**values)  # type: ignore[arg-type]


def fields_of(trace: Trace) -> list[str]:
    """The kind and its fields in the order they are written in; an absent text is empty."""
    values = [getattr(trace, field.name) for field in dataclasses.fields(trace)]
    if isinstance(trace, PubTrace):
        values.pop()
    return [KINDS[type(trace)], *(escaped(_spelled(value)) for value in values)]


def _spelled(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, TracedType):
        return str(int(value))
    return value.value if isinstance(value, TracedState) else str(value)


def asked(peer: JavaPeer, folder: Path, mode: str, questions: list[str]) -> list[str]:
    asks, answers = folder / "questions.tsv", folder / "answers.tsv"
    asks.write_text("".join(f"{line}\n" for line in questions), encoding="ascii")
    arguments = [mode, str(asks), str(answers)]
    peer.run("TraceOracle", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
    return answers.read_text(encoding="ascii").splitlines()


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be")


def escaped(text: str) -> str:
    """``text`` in printable ASCII without tabs, as the oracle reads and writes it."""
    return re.sub(r"[^ -\[\]-~]", _escaped_units, text)


def _escaped_units(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def unescaped(text: str) -> str:
    units = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    return units.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
