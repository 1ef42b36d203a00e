"""The store suite: costs of append, sync flush, recovery and start beside their bare work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import (
    REPOSITORY,
    BenchError,
    Figures,
    Limit,
    Row,
    Samples,
    compiled,
    cpu_us_per_record,
    figure,
    in_child,
    in_killed_child,
    in_program,
    in_rounds,
    records_per_second,
)
from bench.report import filesystem_of

_PARTS = "bench.store_parts"
_RUN_RECORDS = 64
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much each group does."""

    round_count: int
    append_runs: int
    single_appends: int
    commits: int
    recovered_records: int
    recovery_rounds: int
    cold_segments: int
    tail_records: int
    topics: int
    segment_bytes: int = _GIB


SIZES = {
    "full": Sizes(
        round_count=9,
        append_runs=1000,
        single_appends=50_000,
        commits=400,
        recovered_records=400_000,
        recovery_rounds=5,
        cold_segments=10,
        tail_records=200_000,
        topics=10_000,
    ),
    "quick": Sizes(
        round_count=2,
        append_runs=400,
        single_appends=10_000,
        commits=60,
        recovered_records=30_000,
        recovery_rounds=2,
        cold_segments=10,
        tail_records=20_000,
        topics=500,
    ),
    "tiny": Sizes(
        round_count=1,
        append_runs=4,
        single_appends=64,
        commits=2,
        recovered_records=256,
        recovery_rounds=1,
        cold_segments=2,
        tail_records=64,
        topics=5,
        segment_bytes=8 << 20,
    ),
}


def groups() -> list[str]:
    return list(_GROUPS)


def measure(group: str, *, size: str, folder: Path) -> list[Row]:
    """The rows of one group, measured in ``folder``, which must be empty."""
    return _GROUPS[group](SIZES[size], folder)


def _append_rows(sizes: Sizes, folder: Path) -> list[Row]:
    runs, singles = sizes.append_runs, sizes.single_appends
    taken = in_rounds(
        sizes.round_count,
        {
            "c_runs": _pwrite(folder, _RUN_RECORDS, runs * _RUN_RECORDS),
            "runs": _part(folder, "append_runs", run_count=runs),
            "dispatched": _part(folder, "append_runs", run_count=runs, dispatches=True),
            "everything": _part(folder, "append_everything", run_count=runs),
            "c_singles": _pwrite(folder, 1, singles),
            "singles": _part(folder, "append_singles", record_count=singles),
        },
    )
    return [_append_row(taken, *words) for words in _APPEND_ROWS]


# (name, ours, reference, what the reference is, limit, guide)
_APPEND_ROWS: list[tuple[str, str, str, str, Limit | None, str]] = [
    ("append, runs of 64", "runs", "c_runs", "C pwrite of 64", Limit("<=", 6), "2 µs"),
    ("append one by one", "singles", "c_singles", "C pwrite of 1", Limit("<=", 4), ""),
    ("append and dispatch, runs of 64", "dispatched", "c_runs", "C pwrite of 64", None, ""),
    (
        "append, dispatch, prepare segments, sync once",
        "everything",
        "c_runs",
        "C pwrite of 64",
        None,
        "",
    ),
]


def _append_row(
    taken: dict[str, list[Figures]],
    name: str,
    ours: str,
    reference: str,
    reference_name: str,
    limit: Limit | None,
    guide: str,
) -> Row:
    appending = min(run["thread_cpu_s"] / run["record_count"] * 1e6 for run in taken[ours])
    return Row(
        name=name,
        unit="µs CPU/record",
        ours=cpu_us_per_record(taken[ours]),
        reference=cpu_us_per_record(taken[reference]),
        reference_name=reference_name,
        limit=limit,
        guide=guide,
        details={
            "record_bytes": _record_bytes(),
            "record_count": taken[ours][0]["record_count"],
            "us_cpu_of_the_appending_thread": round(appending, 3),
        },
    )


def _sync_rows(sizes: Sizes, folder: Path) -> list[Row]:
    if filesystem_of(folder) in ("tmpfs", "ramfs"):
        raise BenchError(f"{folder} is in memory, where a sync is free: use --folder on a disk")
    commits = sizes.commits
    one_owner = _part(folder, "sync_flush_runs", commit_count=commits)
    threads = _part(folder, "sync_flush_threads", waiter_count=_RUN_RECORDS, commit_count=commits)
    # How many records threads gather for a sync is theirs to show; the reference follows it.
    gathered = max(1, round(_records_per_sync(threads())))
    taken = in_rounds(
        sizes.round_count,
        {
            "c_loop": _group_commit(folder, _RUN_RECORDS, commits * _RUN_RECORDS),
            "one_owner": one_owner,
            "c_gathered": _group_commit(folder, gathered, commits * gathered),
            "threads": threads,
        },
    )
    return [
        _sync_row(
            "sync flush, 64 waiters on one owner",
            taken["one_owner"],
            taken["c_loop"],
            batch=_RUN_RECORDS,
            limit=Limit(">=", 0.5),
        ),
        _sync_row(
            "sync flush, 64 blocked threads",
            taken["threads"],
            taken["c_gathered"],
            batch=gathered,
        ),
    ]


def _records_per_sync(run: Figures) -> float:
    return float(run["record_count"] / max(1, run["sync_count"]))


def _sync_row(
    name: str,
    taken: list[Figures],
    reference: list[Figures],
    *,
    batch: int,
    limit: Limit | None = None,
) -> Row:
    batches = [_records_per_sync(run) for run in taken]
    return Row(
        name=name,
        unit="records/s",
        ours=records_per_second(taken),
        reference=records_per_second(reference),
        reference_name=f"C pwrite of {batch} + fdatasync",
        limit=limit,
        details={
            "records_per_sync": f"{min(batches):.1f} to {max(batches):.1f}",
            "us_cpu_per_record": round(cpu_us_per_record(taken).best, 2),
        },
    )


def _recovery_rows(sizes: Sizes, folder: Path) -> list[Row]:
    root = folder / "killed"
    count = sizes.recovered_records
    built = in_child(f"{_PARTS}:build_keyed_store", folder=str(root), record_count=count)
    segments = sorted(str(path) for path in (root / "commitlog").iterdir())
    recover = partial(
        in_child,
        f"{_PARTS}:recover",
        folder=str(root),
        segment_bytes=built["segment_bytes"],
        record_count=count,
    )
    crc32 = partial(
        in_child, f"{_PARTS}:checksum", paths=segments, byte_count=built["physical_end"]
    )
    taken = in_rounds(
        sizes.recovery_rounds, {"crc32": crc32, "ours": lambda: _recovered(root, recover)}
    )
    return [_recovery_row(taken, built["physical_end"], by) for by in ("wall_s", "cpu_s")]


def _recovered(root: Path, recover: Callable[[], Figures]) -> Figures:
    _as_if_killed(root)
    return recover()


def _as_if_killed(root: Path) -> None:
    """Leave less than a kill leaves: the log alone, without derived files."""
    for entry in root.iterdir():
        if entry.is_dir() and entry.name != "commitlog":
            shutil.rmtree(entry)
        elif entry.is_file():
            entry.unlink()
    (root / "abort").touch()


def _recovery_row(taken: dict[str, list[Figures]], log_bytes: int, by: str) -> Row:
    least = min(run["scanned_bytes"] for run in taken["ours"])
    if least < 0.99 * log_bytes:  # The blank ends of segments are passed without scanning.
        raise BenchError(f"recovery scanned {least} of {log_bytes} bytes: not the whole log")
    return Row(
        name="recovery after a kill, queues and index rebuilt"
        + ("" if by == "wall_s" else " (CPU)"),
        unit="MB/s" if by == "wall_s" else "MB/CPU s",
        ours=_megabytes_per(taken["ours"], log_bytes, by),
        reference=_megabytes_per(taken["crc32"], log_bytes, by),
        reference_name="zlib.crc32",
        limit=Limit(">=", 0.25) if by == "wall_s" else None,
        details={
            "log_mib": log_bytes >> 20,
            "record_count": taken["ours"][0]["record_count"],
            "us_per_record": round(
                min(run[by] / run["record_count"] for run in taken["ours"]) * 1e6, 2
            ),
        },
    )


def _megabytes_per(taken: list[Figures], byte_count: int, by: str) -> Samples:
    return Samples(tuple(byte_count / run[by] / 1e6 for run in taken), higher_is_better=True)


def _start_rows(sizes: Sizes, folder: Path) -> list[Row]:
    root = folder / "large"
    in_child(
        f"{_PARTS}:fill_cold_segments",
        folder=str(root),
        segment_bytes=sizes.segment_bytes,
        cold_count=sizes.cold_segments,
        tail_count=sizes.tail_records,
    )
    start = partial(
        in_child,
        f"{_PARTS}:open_and_close",
        folder=str(root),
        segment_bytes=sizes.segment_bytes,
    )
    taken = in_rounds(sizes.recovery_rounds, {"ours": start})["ours"]
    return [
        Row(
            name=f"clean start of {taken[0]['held_bytes'] / _GIB:.1f} GiB",
            unit="s",
            ours=figure(taken, "wall_s"),
            limit=Limit("<=", 2, on="figure"),
            details={
                "cpu_s": round(figure(taken, "cpu_s").best, 3),
                "worst_s": round(max(run["wall_s"] for run in taken), 3),
                "tail_records": sizes.tail_records,
                "open_files": taken[0]["open_files"],
            },
        )
    ]


def _many_queue_rows(sizes: Sizes, folder: Path) -> list[Row]:
    root = folder / "many"
    in_killed_child(
        f"{_PARTS}:build_many_queues",
        folder=str(root),
        segment_bytes=sizes.segment_bytes,
        topic_count=sizes.topics,
        queue_count=4,
    )
    killed = _reopened(sizes, root, after_kill=True)
    clean = _reopened(sizes, root, after_kill=False)
    most_open = max(clean["open_files"], killed["open_files"])
    return [
        _restart_row(sizes, "restart", clean),
        _restart_row(sizes, "restart after a kill", killed),
        Row(
            name="open files after reading every queue",
            unit="files",
            ours=Samples((float(most_open),)),
            limit=Limit("<=", 2000, on="figure"),
            details={"right_after_start": killed["open_files_at_start"]},
        ),
    ]


def _reopened(sizes: Sizes, root: Path, *, after_kill: bool) -> Figures:
    taken = in_child(
        f"{_PARTS}:reopen_many_queues",
        folder=str(root),
        segment_bytes=sizes.segment_bytes,
        queue_total=sizes.topics * 4,
    )
    if taken["was_clean"] == after_kill:
        raise BenchError(f"{root} was {'killed' if after_kill else 'closed'}, yet opened otherwise")
    return taken


def _restart_row(sizes: Sizes, what: str, taken: Figures) -> Row:
    return Row(
        name=f"{what}, {sizes.topics:,} topics x 4 queues",
        unit="s",
        ours=Samples((taken["wall_s"],)),
        limit=Limit("<=", 60, on="figure"),
        details={"cpu_s": round(taken["cpu_s"], 2), "peak_mib": round(taken["peak_mib"])},
    )


_GROUPS: dict[str, Callable[[Sizes, Path], list[Row]]] = {
    "append": _append_rows,
    "sync": _sync_rows,
    "recovery": _recovery_rows,
    "start": _start_rows,
    "many-queues": _many_queue_rows,
}


def _part(folder: Path, name: str, **arguments: object) -> Callable[[], Figures]:
    """A part that gets a fresh store folder each time, removed afterwards."""

    def run() -> Figures:
        root = folder / name
        try:
            return in_child(f"{_PARTS}:{name}", folder=str(root), **arguments)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    return run


def _pwrite(folder: Path, batch: int, record_count: int) -> Callable[[], Figures]:
    return _baseline(folder, "write", batch, record_count)


def _group_commit(folder: Path, batch: int, record_count: int) -> Callable[[], Figures]:
    return _baseline(folder, "commit", batch, record_count)


def _baseline(folder: Path, mode: str, batch: int, record_count: int) -> Callable[[], Figures]:
    program = str(compiled("store_baseline", REPOSITORY / "build" / "bench-programs"))
    numbers = (str(_record_bytes()), str(batch), str(record_count))
    return partial(in_program, program, mode, str(folder / "baseline"), *numbers)


def _record_bytes() -> int:
    from bench.store_parts import record_bytes

    return record_bytes()
