"""Tables of an archive: each round once wherever its run is killed, in a folder and in a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from contrail.errors import JobFailed, OptionInvalid
from contrail.pipeline.jobs import archive_table
from contrail.pipeline.jobs.archive_layout import Range
from contrail.pipeline.jobs.archive_table import TableArchive
from contrail.pipeline.tables import delta, iceberg, plain, row_files
from contrail.pipeline.tables.contract import CommitRaced, Format
from contrail.pipeline.tables.places import AlreadyThere, Place
from tests.e2e import table_rounds
from tests.e2e.s3_server import S3, running_s3
from tests.e2e.table_rounds import QUEUE, SCHEMA, TOTAL, archived, one_round, run, wanted

FORMATS = tuple(Format)
_MARKING = (archive_table, delta, iceberg, plain, row_files)


class Died(BaseException):
    """The end of a process; no handler of errors takes it."""


class Passages:
    """Ends a run at one of the passages of crash points, and notes their names."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._ends_at = 0
        for module in _MARKING:
            patch.setattr(module, "crashpoint", self._pass)

    def _pass(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) == self._ends_at:
            raise Died(name)

    def reset(self, ends_at: int) -> None:
        self.names, self._ends_at = [], ends_at


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with running_s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        import fsspec

        fsspec.filesystem("s3").mkdir("lake")
        yield server


def check(address: str, format: Format) -> None:
    """A reader finds each message of the rounds that count, once."""
    found, end = archived(address, format)
    if format is Format.PARQUET:
        # Copies of the last commit may be missing until the next run, and none is there twice.
        assert found <= wanted(end)
    else:
        assert found == wanted(end)


@pytest.mark.proves("spark.tables.once", "spark.tables.kill-matrix")
@pytest.mark.parametrize(
    "is_whole", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["each-point", "all"]
)
@pytest.mark.parametrize("format", FORMATS)
def test_every_round_counts_once_wherever_a_run_ends(
    format: Format, is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = Passages(monkeypatch)
    whole = str(tmp_path / "whole")
    run(TableArchive(Place(whole), format))
    assert archived(whole, format) == (wanted(TOTAL), TOTAL)
    names = passages.names
    last = {name: number for number, name in enumerate(names, 1)}
    assert len(last) >= 6 and len(names) >= 10
    for ends_at in range(1, len(names) + 1) if is_whole else last.values():
        address = str(tmp_path / f"at-{ends_at}")
        passages.reset(ends_at)
        with pytest.raises(Died):
            run(TableArchive(Place(address), format), token=1)
        passages.reset(0)
        check(address, format)
        run(TableArchive(Place(address), format), token=2)
        assert archived(address, format) == (wanted(TOTAL), TOTAL), names[ends_at - 1]
        assert leftovers(address, format) == [], names[ends_at - 1]


def leftovers(address: str, format: Format) -> list[str]:
    """Data files that no version of the table has, and that no sweep is to find later."""
    archive = TableArchive(Place(address), format)
    if format is Format.PARQUET:
        return [path for path in archive.place.below("_contrail/data") if path.endswith("parquet")]
    archive.table.refresh()
    known = {file.path for file in archive.table.files()}
    there = {path for path in archive.place.below("data") if path.endswith(".parquet")}
    # A merge that never counted is swept with the next attempt of its name.
    return sorted(path for path in there - known if "/merged-" not in path)


@pytest.mark.proves("spark.tables.object-stores")
@pytest.mark.parametrize("format", FORMATS)
def test_an_object_store_holds_what_a_folder_holds(s3: S3, format: Format) -> None:
    address = f"s3://lake/whole-{format}"
    run(TableArchive(Place(address), format))
    assert archived(address, format) == (wanted(TOTAL), TOTAL)


def killed_run(s3: S3, address: str, format: Format, at: str, when: str, token: int) -> int:
    """Kill a run at its write ``at``, by number or by name; returns how it ended."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.table_rounds", address, format, str(token)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **s3.environment},
    )
    assert child.stdin is not None and child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"ready\n"
        s3.arm(child.pid, at, when)
        child.stdin.write(b"go\n")
        child.stdin.close()
        code = child.wait(timeout=120)
    s3.arm(0, "", "never")
    return code


# Of each format, the write that is its commit of the first round.
_COMMITS = {
    Format.ICEBERG: "v2.metadata.json",
    Format.DELTA: "00000000000000000001.json",
    Format.PARQUET: "commits/00000000.json",
}


_MATRIX = pytest.mark.matrix


@pytest.mark.proves("spark.tables.once", "spark.tables.kill-matrix", "spark.tables.object-stores")
@pytest.mark.parametrize(
    ("format", "when"),
    [
        (Format.ICEBERG, "behind"),
        (Format.DELTA, "before"),
        pytest.param(Format.ICEBERG, "before", marks=_MATRIX),
        pytest.param(Format.DELTA, "behind", marks=_MATRIX),
        pytest.param(Format.PARQUET, "before", marks=_MATRIX),
        pytest.param(Format.PARQUET, "behind", marks=_MATRIX),
    ],
)
def test_a_run_killed_at_its_commit_in_a_bucket_goes_on(s3: S3, format: Format, when: str) -> None:
    address = f"s3://lake/commit-{format}-{when}"
    assert killed_run(s3, address, format, _COMMITS[format], when, token=1) == -signal.SIGKILL
    _, end = archived(address, format)
    assert end == (0 if when == "before" else table_rounds.ROUND)
    check(address, format)
    run(TableArchive(Place(address), format), token=2)
    assert archived(address, format) == (wanted(TOTAL), TOTAL)


@pytest.mark.matrix
@pytest.mark.timeout(1_800)
@pytest.mark.proves("spark.tables.kill-matrix")
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_run_killed_at_any_write_in_a_bucket_goes_on(s3: S3, format: Format, when: str) -> None:
    at = 0
    while True:
        at += 1
        address = f"s3://lake/any-{format}-{when}-{at}"
        code = killed_run(s3, address, format, str(at), when, token=1)
        check(address, format)
        if code == 0:
            break
        assert code == -signal.SIGKILL, at
        run(TableArchive(Place(address), format), token=2)
        assert archived(address, format) == (wanted(TOTAL), TOTAL), at
    # There were so many writes, and a kill at each; the run after them ended by itself.
    assert at > 12


@pytest.mark.parametrize("format", FORMATS)
def test_two_runs_cannot_make_the_same_round(format: Format, tmp_path: Path) -> None:
    address = str(tmp_path / "archive")
    mine = TableArchive(Place(address), format)
    mine.create(SCHEMA)
    mine.next_offsets()
    theirs = TableArchive(Place(address), format)
    one_round(theirs, 0, 20, token=2)
    with pytest.raises(JobFailed, match=r"round 0 .* was made by another run"):
        mine.commit(mine.begin(1)._replace(number=0), {QUEUE: Range(0, 20)}, {}, [])
    assert archived(address, format) == (wanted(20), 20)


@pytest.mark.parametrize("format", [Format.ICEBERG, Format.DELTA])
def test_another_programs_commit_between_rounds_does_no_harm(
    format: Format, tmp_path: Path
) -> None:
    address = str(tmp_path / "archive")
    archive = TableArchive(Place(address), format)
    archive.create(SCHEMA)
    one_round(archive, 0, 20, token=1)
    other = TableArchive(Place(address), format)
    other.table.evolve(SCHEMA.append(pa.field("added", pa.string())))
    one_round(archive, 20, 40, token=1)
    assert archived(address, format) == (wanted(40), 40)


def test_a_merge_whose_parts_another_program_moved_changes_nothing(tmp_path: Path) -> None:
    for format in (Format.ICEBERG, Format.DELTA):
        address = str(tmp_path / format)
        archive = TableArchive(Place(address), format)
        run(archive)
        (*_, last) = archive.table.files()
        gone = type(last)("data/gone.parquet", last.partition, last.rows, last.size_bytes)
        with pytest.raises(CommitRaced):
            archive.table.replace([gone], [last])
        assert archived(address, format) == (wanted(TOTAL), TOTAL)


def test_a_place_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    with pytest.raises(OptionInvalid, match="holds something else"):
        TableArchive(Place(str(tmp_path)), Format.DELTA).create(SCHEMA)
    archive = TableArchive(Place(str(tmp_path / "delta")), Format.DELTA)
    archive.create(SCHEMA)
    with pytest.raises(OptionInvalid, match="is delta, not iceberg"):
        TableArchive(Place(str(tmp_path / "delta")), Format.ICEBERG).create(SCHEMA)
    with pytest.raises(OptionInvalid, match="name a folder or s3://"):
        Place("hdfs://namenode/lake")


def test_a_bucket_that_is_missing_is_named(s3: S3) -> None:
    with pytest.raises(OptionInvalid, match=r"'s3://nowhere/a' cannot be made .* bucket that exis"):
        TableArchive(Place("s3://nowhere/a"), Format.DELTA).create(SCHEMA)


def test_a_file_is_made_by_one_process_only(s3: S3, tmp_path: Path) -> None:
    for place in (Place(str(tmp_path)), Place("s3://lake/once")):
        place.create("a/b.json", b"first")
        with pytest.raises(AlreadyThere):
            place.create("a/b.json", b"second")
        assert place.read("a/b.json") == b"first"
        assert place.names("a") == ["b.json"]


@pytest.mark.parametrize("format", [Format.ICEBERG, Format.DELTA])
def test_a_lost_note_of_the_last_round_is_named(format: Format, tmp_path: Path) -> None:
    archive = TableArchive(Place(str(tmp_path)), format)
    archive.create(SCHEMA)
    one_round(archive, 0, 20, token=1)
    (note,) = archive.place.below("_contrail/rounds")
    archive.place.remove([note])
    with pytest.raises(JobFailed, match=r"has lost '_contrail/rounds/00000000-00001.json'"):
        TableArchive(Place(str(tmp_path)), format).next_offsets()


@pytest.mark.proves("spark.tables.schema-evolution")
@pytest.mark.parametrize("format", FORMATS)
def test_a_table_gets_new_columns_and_fields_and_keeps_its_rows(
    format: Format, tmp_path: Path
) -> None:
    address = str(tmp_path / "archive")
    inner = pa.struct([("id", pa.int32())])
    archive = TableArchive(Place(address), format)
    archive.create(SCHEMA.append(pa.field("value", inner)))
    one_round(archive, 0, 20, token=1)
    wider = pa.struct([("id", pa.int32()), ("note", pa.string())])
    archive = TableArchive(Place(address), format)
    archive.create(SCHEMA.append(pa.field("value", wider)))
    one_round(archive, 20, 40, token=1)
    assert archived(address, format) == (wanted(40), 40)
    kept = archive.table.schema().field("value").type
    assert [field.name for field in kept] == ["id", "note"]
    other = SCHEMA.append(pa.field("value", pa.struct([("id", pa.string())])))
    with pytest.raises(OptionInvalid, match=r"field 'value\.id' is int32 in the table"):
        TableArchive(Place(address), format).create(other)
    wide = SCHEMA.append(pa.field("value", pa.struct([("id", pa.int64())])))
    if format is Format.ICEBERG:
        archive.create(wide)
        assert pa.types.is_int64(archive.table.schema().field("value").type.field("id").type)
    else:
        with pytest.raises(OptionInvalid, match="this format cannot widen a column"):
            archive.create(wide)
