"""Rounds of made-up messages in an archive's table: the work of a run of the job without Spark.

``python -m tests.e2e.table_rounds ADDRESS FORMAT`` waits for a line, then does a whole run.
"""

from __future__ import annotations

import sys
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from contrail.pipeline.jobs.archive_layout import Range
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.tables.contract import Format
from contrail.pipeline.tables.layout import DATA, Attempt
from contrail.pipeline.tables.places import Place
from contrail.pipeline.tables.row_files import RowFiles, merge_files, read_rows

QUEUE = QueueKey("orders", "broker-a", 0)
ROUND, TOTAL = 20, 40
_MIDNIGHT = datetime(2025, 3, 17, tzinfo=UTC)
_DAY_MS = 86_400_000
NOW_MS = int((_MIDNIGHT + timedelta(days=30)).timestamp() * 1000)

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("body", pa.binary()),
        ("storeTimestamp", pa.timestamp("us", tz="UTC")),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def messages(first: int, end: int) -> pa.RecordBatch:
    """Messages of these queue offsets; midnight is at the offset 10."""
    rows = [
        {
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": 0,
            "queueOffset": place,
            "body": b"order %d" % place,
            "storeTimestamp": _MIDNIGHT + timedelta(minutes=place - 10),
            "properties": [("region", "eu")] if place % 2 else [],
        }
        for place in range(first, end)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


def one_round(archive: TableArchive, first: int, end: int, token: int) -> None:
    known = archive.next_offsets()
    attempt = archive.begin(token)
    schema = archive.table.file_schema()
    with RowFiles(
        archive.place,
        archive.folder_of(attempt),
        schema,
        compression="zstd",
        file_bytes_max=1 << 20,
    ) as files:
        files.add(messages(first, end))
        written = files.finish()
    archive.commit(attempt, {QUEUE: Range(first, end)}, known, written)


def run(archive: TableArchive, token: int = 1) -> None:
    """Archive what is left, merge the files of each day, and delete the parts."""
    archive.sweep(NOW_MS)
    archive.create(SCHEMA)
    while (first := archive.next_offsets().get(QUEUE, 0)) < TOTAL:
        one_round(archive, first, first + ROUND, token)
    if archive.format is Format.PARQUET:
        return
    merge(archive, token)
    archive.drop_superseded(NOW_MS + 8 * _DAY_MS)


def merge(archive: TableArchive, token: int) -> None:
    archive.table.refresh()
    days = sorted({file.partition for file in archive.table.files()})
    for number, day in enumerate(days):
        parts = [file for file in archive.table.files() if file.partition == day]
        if len(parts) < 2:
            continue
        merged = merge_files(
            archive.place,
            [file.path for file in parts],
            f"{DATA}/merged-{Attempt(number, token).name}/0000.parquet",
            day,
            archive.table.file_schema(),
            "zstd",
        )
        assert archive.put_merged(parts, [merged], NOW_MS)


def archived(address: str, format: Format) -> tuple[Counter[tuple[int, bytes]], int]:
    """The messages that a reader finds, and up to which queue offset the archive says it is."""
    archive = TableArchive(Place(address), format)
    found: Counter[tuple[int, bytes]] = Counter()
    if not archive.table.exists:
        return found, 0
    if format is not Format.PARQUET:
        archive.table.refresh()
    schema = archive.table.file_schema()
    for file in archive.table.files():
        for rows in read_rows(archive.place, [file.path], schema):
            names = rows.schema.names
            offsets = rows.column(names.index("queueOffset")).to_pylist()
            found.update(zip(offsets, rows.column(names.index("body")).to_pylist(), strict=True))
    return found, archive.next_offsets().get(QUEUE, 0)


def wanted(end: int) -> Counter[tuple[int, bytes]]:
    return Counter((place, b"order %d" % place) for place in range(end))


def main() -> None:
    archive = TableArchive(Place(sys.argv[1]), Format(sys.argv[2]))
    # Imports and connections of a first use are not part of the kill.
    archive.place.exists("_contrail/archive.json")
    print("ready", flush=True)
    sys.stdin.readline()
    run(archive, int(sys.argv[3]))


if __name__ == "__main__":
    main()
