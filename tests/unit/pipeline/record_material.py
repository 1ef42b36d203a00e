"""Shared by the decoder's tests: the engines, and the rows they must give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa

from contrail.client.compression import decompress
from contrail.errors import BatchIllegal, ClientError
from contrail.model.batch import expand_inner_batch, inner_batch_count
from contrail.model.host import unpack_host
from contrail.model.message import StoredMessage
from contrail.model.message_id import encode_offset_message_id
from contrail.model.properties import decode_properties, read_property
from contrail.model.record import SYS_FLAG_NEED_UNWRAP, split_record_run
from contrail.pipeline import arrow, arrow_python
from contrail.pipeline.columns import MESSAGE_COLUMNS, ColumnPlan, plan_columns, schema_of
from tests.unit.kernels.material import twins

KERNEL, PURE = twins("arrow_columns")
ALL_COLUMNS = plan_columns(schema_of(list(MESSAGE_COLUMNS)))
BROKER = "broker-a"

_TIME_MS = (-62_135_596_800_000, 253_402_300_799_999)

# Name, engine, and the kernel it works with.
ENGINES = {
    "kernel": (arrow.CompiledEngine(), KERNEL),
    "pure kernel": (arrow.CompiledEngine(), PURE),
    "python": (arrow_python, PURE),
}


def with_engine(name: str, work: Callable[[], Any]) -> Any:
    """The result of ``work`` with one of the engines."""
    engine, kernel = ENGINES[name]
    with (
        mock.patch.object(arrow, "_engine", return_value=engine),
        mock.patch.object(arrow, "kernel", kernel),
    ):
        return work()


def rows_of(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[dict[str, Any]]:
    """The rows of valid batches; times as integers, maps as dicts."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        columns = {}
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_timestamp(field.type):
                column = column.cast(pa.int64())
            values = column.to_pylist()
            columns[field.name] = (
                [dict(pairs) for pairs in values] if pa.types.is_map(field.type) else values
            )
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return rows


def decoded(
    name: str, log: bytes, plan: ColumnPlan = ALL_COLUMNS, *, raw_body: bool = False
) -> list[dict[str, Any]]:
    """A log's rows as an engine decodes them."""

    def work() -> list[dict[str, Any]]:
        positions = arrow.walk(log)
        found = rows_of([arrow.decode(log, positions, plan, broker_name=BROKER, raw_body=raw_body)])
        cut = arrow.batches(
            log, positions, plan, broker_name=BROKER, raw_body=raw_body, rows_max=2, bytes_max=400
        )
        assert rows_of(cut) == found
        return found

    rows: list[dict[str, Any]] = with_engine(name, work)
    # The words are those of the library that failed.
    return [
        {**row, "decodeError": row["decodeError"] is not None} if "decodeError" in row else row
        for row in rows
    ]


def expected_rows(log: bytes, *, raw_body: bool = False) -> list[dict[str, Any]]:
    """A log's rows by the record model and the client, one field at a time."""
    rows = []
    for stored in split_record_run(log):
        units = _unwrapped(stored)
        if units is None:
            rows.append({**expected_row(stored, raw_body=True), "decodeError": True})
        rows += [expected_row(message, raw_body=raw_body) for message in units or ()]
    return rows


def _unwrapped(stored: StoredMessage) -> list[StoredMessage] | None:
    """The messages of a record; None when it says it holds a batch and does not."""
    try:
        if stored.sys_flag & SYS_FLAG_NEED_UNWRAP and inner_batch_count(stored.raw_properties) > 1:
            return [_as_record(unit, stored) for unit in expand_inner_batch(stored)]
    except BatchIllegal:
        return None
    return [stored]


def _as_record(unit: StoredMessage, stored: StoredMessage) -> StoredMessage:
    fixed = stored.record_bytes - len(stored.body) - len(stored.raw_properties)
    fields = dict(unit.__dict__)
    fields["record_bytes"] = fixed + len(unit.body) + len(unit.raw_properties)
    fields["sys_flag"] = unit.sys_flag & ~0xC0
    return StoredMessage(**fields)


def expected_row(message: StoredMessage, *, raw_body: bool = False) -> dict[str, Any]:
    raw = message.raw_properties
    body, is_undecodable = message.body, False
    try:
        body = message.body if raw_body else decompress(message.body, message.sys_flag)
    except ClientError:
        is_undecodable = True
    offset_id = encode_offset_message_id(message.store_host, message.physical_offset)
    return {
        "topic": message.topic,
        "brokerName": BROKER,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "keys": read_property(raw, "KEYS"),
        "tags": read_property(raw, "TAGS"),
        "body": body,
        "bornTimestamp": _micros(message.born_timestamp_ms),
        "storeTimestamp": _micros(message.store_timestamp_ms),
        "msgId": read_property(raw, "UNIQ_KEY") or offset_id,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "bornHost": str(unpack_host(message.born_host)),
        "storeHost": str(unpack_host(message.store_host)),
        "physicalOffset": message.physical_offset,
        "storeSize": message.record_bytes,
        "properties": decode_properties(raw),
        "decodeError": is_undecodable,
    }


def _micros(time_ms: int) -> int:
    return min(max(time_ms, _TIME_MS[0]), _TIME_MS[1]) * 1000
