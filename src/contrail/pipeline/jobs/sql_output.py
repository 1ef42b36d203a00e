"""Output of a query's result: a few rows for a table, lines, or files.

Executors make the lines, so that the driver gets text of one partition at a time, if any. Executors
write the files too; for a single file, their files are joined in order under another name, which is
then renamed.
"""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    StringType,
    StructType,
    VariantType,
)

from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.message_frames import local_url
from contrail.pipeline.row_groups import ROW_GROUPS, write_rows

CELL_CHARACTERS_MAX = 200
_NESTED = (ArrayType, MapType, StructType, VariantType)
_SUFFIXES = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
_PARTS = ".parts"
_COPY_BYTES = 1 << 20
_COMPRESSION = "snappy"


class Output(StrEnum):
    """The form of a result."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def table_rows(result: DataFrame, row_count_max: int) -> tuple[list[dict[str, object]], bool]:
    """The first rows, long texts cut, and whether there are more."""
    names = unique_names(result.columns)
    numbered = _numbered(result)
    cells = [
        _cut(_readable(numbered[index], field.dataType), field.dataType).alias(names[index])
        for index, field in enumerate(result.schema.fields)
    ]
    rows = numbered.select(*cells).limit(row_count_max + 1).collect()
    kept = [dict(zip(names, row, strict=True)) for row in rows[:row_count_max]]
    return kept, len(rows) > row_count_max


def lines(result: DataFrame, output: Output) -> DataFrame:
    """One text column, a line of CSV or JSON for each row."""
    numbered, fields = _numbered(result), result.schema.fields
    names = unique_names(result.columns)
    if output is Output.JSON:
        cells = [
            _readable_binary(numbered[index], field.dataType).alias(names[index])
            for index, field in enumerate(fields)
        ]
        line = f.to_json(f.struct(*cells), {"ignoreNullFields": "false"})
    else:
        cells = [
            _readable(numbered[index], field.dataType).alias(names[index])
            for index, field in enumerate(fields)
        ]
        line = f.to_csv(f.struct(*cells), {"escape": '"'})
    return numbered.select(line.alias("value"))


def header(result: DataFrame, output: Output) -> list[str]:
    """The lines above all others."""
    if output is not Output.CSV:
        return []
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(unique_names(result.columns))
    return [text.getvalue()]


def streamed(result: DataFrame, output: Output) -> Iterator[str]:
    """All lines; the driver holds the lines of one partition at a time."""
    yield from header(result, output)
    for row in lines(result, output).toLocalIterator():
        yield row["value"]


def write(result: DataFrame, output: Output, out: str) -> None:
    """Write the result to ``out``: one file if its name ends like one, else a folder of parts."""
    if not is_one_file(out):
        _write_parts(result, output, out)
        return
    target = Path(out).absolute()
    parts = target.with_name(f".{target.name}{_PARTS}")
    try:
        _write_parts(result, output, local_url(parts))
        _join(parts, header(result, output), target, output)
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def require_free(out: str) -> None:
    """Refuse to overwrite a file or folder.

    Raises:
        OptionInvalid: ``out`` exists already, or its folder does not exist.
    """
    if "://" in out:
        return
    target = Path(out).absolute()
    if target.exists():
        raise OptionInvalid(f"{out!r} is there already: name another, or remove it")
    if not target.parent.is_dir():
        raise OptionInvalid(f"{out!r}: there is no folder {str(target.parent)!r}: make it first")


def is_one_file(out: str) -> bool:
    return "://" not in out and out.lower().endswith(_SUFFIXES)


def unique_names(names: Sequence[str]) -> list[str]:
    """The columns' names; repeated names get a number, as in ``count(1)``, ``count(1)_2``."""
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return unique


def _numbered(result: DataFrame) -> DataFrame:
    """The columns under unique names that need no quotes."""
    return result.toDF(*(f"c{index}" for index in range(len(result.columns))))


def _readable(value: Column, kind: DataType) -> Column:
    """A cell that fits a line: bytes and nested values as text."""
    if isinstance(kind, _NESTED):
        return f.to_json(value)
    return _readable_binary(value, kind)


def _readable_binary(value: Column, kind: DataType) -> Column:
    if not isinstance(kind, BinaryType):
        return value
    text = f.try_validate_utf8(value.cast("string"))
    return f.coalesce(text, f.concat(f.lit("base64:"), f.base64(value)))


def _cut(cell: Column, kind: DataType) -> Column:
    if not isinstance(kind, (StringType, BinaryType, *_NESTED)):
        return cell
    start = f.substring(cell, 1, CELL_CHARACTERS_MAX)
    is_long = f.length(cell) > CELL_CHARACTERS_MAX
    return f.when(is_long, f.concat(start, f.lit("…"))).otherwise(cell)


def _write_parts(result: DataFrame, output: Output, folder: str) -> None:
    if output is Output.PARQUET:
        named = result.toDF(*unique_names(result.columns))
        named.write.mode("overwrite").options(**ROW_GROUPS).parquet(folder)
    else:
        # A folder's parts have no header: joined parts would have it in the middle.
        lines(result, output).write.mode("overwrite").text(folder)


def _join(parts: Path, above: list[str], target: Path, output: Output) -> None:
    files = sorted(file for file in parts.iterdir() if file.name.startswith("part-"))
    joined = parts / "joined"
    if output is Output.PARQUET:
        # Spark writes at least one file, if only for the schema.
        write_rows(files, joined, _COMPRESSION)
    else:
        _join_text(files, above, joined)
    joined.rename(target)


def _join_text(files: list[Path], above: list[str], joined: Path) -> None:
    with joined.open("wb") as target:
        target.writelines(f"{line}\n".encode() for line in above)
        for file in files:
            with file.open("rb") as source:
                shutil.copyfileobj(source, target, _COPY_BYTES)
