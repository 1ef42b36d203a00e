"""Merges of a table's files, and changes of its columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs.merged_files import merge_files
from contrail.pipeline.tables.evolution import require_evolvable
from contrail.pipeline.tables.layout import Attempt, DataFile, Partition
from contrail.pipeline.tables.merging import FAN_IN, plan_merges

TARGET = 64 << 20
DAY = Partition("orders", "2026-11-16")
DURING = datetime(2026, 11, 16, 12, tzinfo=UTC)
AFTER = datetime(2026, 11, 17, 2, tzinfo=UTC)
GRACE = timedelta(hours=1)


def files(count: int, size: int, partition: Partition = DAY, first: int = 0) -> list[DataFile]:
    return [
        DataFile(f"data/{number:08d}-00000/f.parquet", partition, 1, size)
        for number in range(first, first + count)
    ]


def test_eight_files_of_one_size_are_merged_while_the_day_lasts() -> None:
    small = files(FAN_IN, 1_000)
    assert plan_merges(small, TARGET, DURING, GRACE) == [small]
    assert plan_merges(small[1:], TARGET, DURING, GRACE) == []
    mixed = small[1:] + files(1, 1_000 * FAN_IN * FAN_IN, first=90)
    assert plan_merges(mixed, TARGET, DURING, GRACE) == []


def test_the_small_files_of_a_day_that_is_over_are_merged_up_to_the_target() -> None:
    left = files(5, TARGET // 4)
    assert plan_merges(left, TARGET, AFTER, GRACE) == [left[:4]]
    assert plan_merges(left, TARGET, DURING, GRACE) == []
    assert plan_merges(files(3, TARGET), TARGET, AFTER, GRACE) == []


def test_files_of_two_partitions_are_never_one() -> None:
    other = Partition("orders", "2026-11-15")
    both = files(2, 10) + files(2, 10, other)
    assert [{one.partition for one in group} for group in plan_merges(both, TARGET, AFTER, GRACE)]
    assert all(
        len({one.partition for one in group}) == 1
        for group in plan_merges(both, TARGET, AFTER, GRACE)
    )


def test_a_message_is_rewritten_once_for_each_class_of_sizes() -> None:
    held: list[DataFile] = []
    written = 0
    count = FAN_IN**3
    for number in range(count):
        held += files(1, 1_000, first=number)
        for group in plan_merges(held, 1_000 * FAN_IN**3, DURING, GRACE):
            size = sum(one.size_bytes for one in group)
            written += size
            held = [one for one in held if one not in group]
            held.append(DataFile(f"data/m{number}/f.parquet", DAY, 1, size))
    assert written <= 3 * count * 1_000
    assert len(held) <= 3 * FAN_IN


def test_an_attempt_is_known_by_its_serial_and_its_name() -> None:
    attempt = Attempt(12, 0xA31F0)
    assert attempt.name == "00000012-a31f0"
    assert Attempt.of_serial(attempt.serial) == Attempt.of_name(attempt.name) == attempt
    assert Attempt.of_name(f"{attempt.name}.json") == attempt
    assert Attempt.of_name("merged-00000012") is None
    assert Attempt(13, 0).serial > attempt.serial


def struct(**fields: pa.DataType) -> pa.Schema:
    return pa.schema([("value", pa.struct(list(fields.items())))])


@pytest.mark.proves("spark.tables.schema-evolution")
@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ({"a": pa.int32()}, {"a": pa.int32()}, False),
        ({"a": pa.int32()}, {"a": pa.int32(), "b": pa.string()}, True),
        ({"a": pa.int32(), "b": pa.string()}, {"a": pa.int32()}, False),
        ({"a": pa.int32()}, {"a": pa.int64()}, True),
        ({"a": pa.int64()}, {"a": pa.int32()}, False),
        ({"a": pa.float32()}, {"a": pa.float64()}, True),
        ({"a": pa.decimal128(9, 2)}, {"a": pa.decimal128(12, 2)}, True),
        ({"a": pa.list_(pa.int32())}, {"a": pa.list_(pa.int64())}, True),
        ({"a": pa.string()}, {"a": pa.large_string()}, False),
    ],
)
def test_columns_are_added_and_widened(
    old: dict[str, pa.DataType], new: dict[str, pa.DataType], changes: bool
) -> None:
    assert require_evolvable(struct(**old), struct(**new), widens=True) is changes


@pytest.mark.proves("spark.tables.schema-evolution")
@pytest.mark.parametrize(
    ("old", "new", "widens"),
    [
        (pa.int32(), pa.string(), True),
        (pa.string(), pa.int32(), True),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), True),
        (pa.int32(), pa.int64(), False),
        (pa.struct([("x", pa.int32())]), pa.int32(), True),
    ],
)
def test_another_type_is_refused_by_the_name_of_its_field(
    old: pa.DataType, new: pa.DataType, widens: bool
) -> None:
    with pytest.raises(OptionInvalid, match=r"field 'value\.a' is .* in the table and .* in the"):
        require_evolvable(struct(a=old), struct(a=new), widens=widens)


def test_files_that_got_columns_later_are_merged_and_other_types_refused(tmp_path: Path) -> None:
    parts = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(pa.table({"body": [b"x"]}), parts[0])
    pq.write_table(pa.table({"body": [b"y"], "value": [{"id": 1}]}), parts[1])
    assert merge_files(parts, tmp_path / "m.parquet", "zstd").rows == 2
    found = pq.read_table(tmp_path / "m.parquet").to_pylist()
    assert found == [{"body": b"x", "value": None}, {"body": b"y", "value": {"id": 1}}]
    pq.write_table(pa.table({"body": ["text"]}), parts[1])
    with pytest.raises(JobFailed, match="'body' is string there and binary before"):
        merge_files(parts, tmp_path / "n.parquet", "zstd")
