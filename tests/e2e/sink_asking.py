"""A sink, as plain requests to one broker of a ``LocalCluster``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from contrail.model.batch import BatchUnit, encode_batch
from contrail.model.properties import encode_properties
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from tests.e2e.asking import Asker


def rows(
    key: str, seqs: Iterable[int], *, attempt: str = "", properties: Mapping[str, str] | None = None
) -> bytes:
    """A batch of rows whose bodies are their key and number."""
    more = dict(properties or {}) | ({"SPARK_SINK_ATTEMPT": attempt} if attempt else {})
    return encode_batch(
        BatchUnit(
            f"{key}#{seq}".encode(),
            encode_properties({"SPARK_SINK_KEY": key, "SPARK_SINK_SEQ": str(seq), **more}),
        )
        for seq in seqs
    )


def send_fields(topic: str, queue_id: int = 0, **changes: str) -> dict[str, str]:
    fields = {"topic": topic, "queueId": str(queue_id), "producerGroup": "sinks"}
    return {**fields, "prepared": "false", **changes}


def send(
    broker: Asker, topic: str, body: bytes, queue_id: int = 0, **changes: str
) -> tuple[int, int, int]:
    """How many were stored and dropped, and the first queue offset."""
    fields = send_fields(topic, queue_id, **changes)
    answer = broker.done(RequestCode.CONTRAIL_SINK_SEND, fields, body)
    names = ("storedCount", "droppedCount", "queueOffset")
    stored, dropped, queue_offset = (int(answer.fields[name]) for name in names)
    return stored, dropped, queue_offset


def prepare(
    broker: Asker, topic: str, key: str, seqs: Iterable[int], attempt: str, queue_id: int = 0
) -> int:
    body = rows(key, seqs, attempt=attempt)
    return send(broker, topic, body, queue_id, prepared="true")[0]


def begin(broker: Asker, sink: str, batch: int, topics: Mapping[str, object]) -> Any:
    fields = {"sinkId": sink, "batchId": str(batch)}
    body = json.dumps({"topics": topics}).encode()
    return json.loads(broker.done(RequestCode.CONTRAIL_SINK_BEGIN, fields, body).body)


def status(broker: Asker, sink: str) -> Any:
    return json.loads(broker.done(RequestCode.CONTRAIL_SINK_STATUS, {"sinkId": sink}).body)


def ask_commit(
    broker: Asker, sink: str, batch: int, attempts: Mapping[str, str], *, decide: bool
) -> ReceivedResponse:
    body = json.dumps({"participants": {broker.broker.name: attempts}}).encode()
    fields = {"sinkId": sink, "batchId": str(batch), "decide": "true" if decide else "false"}
    return broker.ask(RequestCode.CONTRAIL_SINK_COMMIT, fields, body)


def commit(
    broker: Asker, sink: str, batch: int, attempts: Mapping[str, str], *, decide: bool = False
) -> tuple[int, int]:
    """How many rows became messages, and how many were rolled back."""
    answer = ask_commit(broker, sink, batch, attempts, decide=decide)
    assert answer.code == 0, (answer.code, answer.remark)
    counts = json.loads(answer.body)
    return counts["committed"], counts["rolledBack"]


def abort(broker: Asker, sink: str, batch: int, attempts: list[str]) -> int:
    fields = {"sinkId": sink, "batchId": str(batch)}
    body = json.dumps({"attempts": attempts}).encode()
    answer = broker.done(RequestCode.CONTRAIL_SINK_ABORT, fields, body)
    return int(json.loads(answer.body)["rolledBack"])
