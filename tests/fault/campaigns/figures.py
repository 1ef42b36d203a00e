"""Runs every campaign in full and writes what it saw into ``docs/design/durability.md``.

    python -m tests.fault.campaigns.figures [--jobs N] [--only TEXT] [--quick]

The table between the two marks is replaced, or with ``--only`` the lines of the campaigns whose
function's name contains the text; nothing in it is typed by hand. The exit code is 1
when any campaign found a problem, and the table then says so.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.campaigns import (
    bit_flips,
    crash_points,
    damaged_files,
    full_disk,
    io_errors,
    lost_writes,
    torn_tail,
)
from tests.history.replicated import PairFigures
from tests.history.replicated_kinds import KINDS, campaign_of, run_kind

PAGE = crash_points.REPOSITORY / "docs" / "design" / "durability.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
COMMAND = "python -m tests.fault.campaigns.figures"


@dataclass
class Row:
    """One line of the table."""

    campaign: str
    cases: str
    seen: str
    bad: str
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def crash_point_row(folder: Path, quick: bool) -> Row:
    found = crash_points.run_campaign(
        folder, seed=1000, flushes=("sync", "async"), hits=(1,) if quick else (1, 3),
        every_life=not quick,
    )  # fmt: skip
    cases = f"{found.kills:,} kills at {len(found.points)} named points, sync and async flush"
    return Row(
        "kill -9",
        cases,
        f"{found.acknowledged:,} acknowledged messages looked for",
        f"{len(found.problems)} lost or invented",
        found.problems,
    )


def lost_write_row(folder: Path, quick: bool) -> Row:
    seeds = range(500, 501 if quick else 505)
    steps, states = (60, 100) if quick else (150, 300)
    runs = [
        lost_writes.run_campaign(folder / str(seed), seed=seed, steps=steps, states=states)
        for seed in seeds
    ]
    problems = [problem for run in runs for problem in run.problems]
    total = sum(run.states for run in runs)
    nested = sum(run.nested_states for run in runs)
    return Row(
        "lost unsynced writes, sync flush",
        f"{total:,} crash states of {sum(run.operations for run in runs):,} file operations, "
        f"{nested:,} of them crashed again in recovery",
        f"{sum(run.acknowledged for run in runs):,} acknowledged messages looked for",
        f"{len(problems)} lost or refused",
        problems,
    )


def torn_tail_row(folder: Path, quick: bool) -> Row:
    runs = [
        torn_tail.run_campaign(
            folder / str(crc), seed=31, record_crc=crc, record_crc_required=crc,
            every=29 if quick else 1,
        )
        for crc in (True, False)
    ]  # fmt: skip
    problems = [problem for run in runs for problem in run.problems]
    kept = sum(run.kept for run in runs)
    return Row(
        "torn tail",
        f"{sum(run.cases for run in runs):,} tears: every byte, {len(torn_tail.OVERWRITES)} ways, "
        "record CRC on and off",
        f"{sum(run.cut for run in runs):,} cut exactly at the last whole record, {kept:,} changed "
        "no covered byte",
        f"{len(problems)} kept that should be cut, or cut elsewhere",
        problems,
    )


def _flip_row(name: str, runs: list[bit_flips.FlipFigures]) -> Row:
    problems = [problem for run in runs for problem in run.problems]
    total = sum(run.flips.total() for run in runs)
    in_log = sum(run.flips["log"] for run in runs)
    covered, detected = sum(run.covered for run in runs), sum(run.detected for run in runs)
    return Row(
        name,
        f"{total:,} flips: {in_log:,} in log records, {total - in_log:,} in other files",
        f"{detected:,} of {covered:,} in covered bytes detected, "
        f"{sum(run.repairs for run in runs):,} derived files repaired",
        f"{sum(run.wrong_bodies for run in runs)} wrong bodies, {len(problems)} problems",
        problems,
    )


def stopped_flip_row(folder: Path, quick: bool) -> Row:
    flips = 50 if quick else 2500
    crcs = (True, False)
    runs = [
        bit_flips.run_stopped(folder / str(crc), seed=5000, flips=flips, record_crc=crc)
        for crc in crcs
    ]
    return _flip_row("bit flips, store stopped", runs)


def running_flip_row(folder: Path, quick: bool) -> Row:
    flips = 50 if quick else 2500
    runs = [
        bit_flips.run_running(folder / str(crc), seed=5000, flips=flips, record_crc=crc)
        for crc in (True, False)
    ]
    return _flip_row("bit flips, store running", runs)


def damaged_file_row(folder: Path, quick: bool) -> Row:
    targets = damaged_files.TARGETS + damaged_files.LOG_TARGETS
    found = damaged_files.run_campaign(folder, seed=610, targets=targets)
    return Row(
        "files removed, emptied, halved, doubled, swapped",
        f"{found.cases:,} cases over {len(targets)} kinds of file, after a clean stop and a kill",
        f"{found.started:,} started, {found.refused:,} refused by name",
        f"{len(found.problems)} not as documented",
        found.problems,
    )


def full_disk_row(folder: Path, quick: bool) -> Row:
    if os.geteuid() != 0:
        return Row("full disk", "not run: mounting needs root", "", "")
    with full_disk.small_partition(folder / "partition") as partition:
        found = full_disk.run_campaign(partition, cycles=3 if quick else 50)
    return Row(
        "full disk",
        f"{found.cycles} times full and free, 64 MiB tmpfs, {found.refusals:,} refusals",
        f"{found.acknowledged:,} acknowledged, served again after "
        f"{found.ticks_to_recover_max} tick of 1 s at most",
        f"{found.lost} lost",
        found.problems,
    )


def io_error_row(folder: Path, quick: bool) -> Row:
    found = io_errors.run_campaign(folder / "inside", seed=4000, cases=12 if quick else 120)
    library = io_errors.build_shim(folder)
    for operation, mode in (("pwrite", "eio"), ("pwrite", "short"), ("fdatasync", "eio")):
        for nth in (9,) if quick else (1, 2, 3, 5, 8, 13, 21, 34):
            io_errors.run_around(
                folder / f"{operation}{mode}{nth}", library, operation=operation,
                path="commitlog", nth=nth, mode=mode, seed=nth, figures=found,
            )  # fmt: skip
    return Row(
        "EIO and short writes in the log",
        f"{found.struck:,} faults struck in {found.cases:,} runs, in-process and by LD_PRELOAD",
        f"{found.acknowledged:,} acknowledged messages looked for after a restart",
        f"{found.acknowledged_after} acknowledged after the error, {len(found.problems)} problems",
        found.problems,
    )


def replication_row(folder: Path, quick: bool) -> Row:
    """Every kind of message has its own pair, and 20 of the kills."""
    kill_count = 2 if quick else 20
    problems: list[str] = []
    runs: list[PairFigures] = []
    for number, kind in enumerate(KINDS):
        (folder / kind).mkdir()
        pair = campaign_of(kind, folder / kind, 7100 + number, kill_count=kill_count)
        with pair as campaign:
            run_kind(kind, campaign, kill_count)
            found = campaign.violations(KINDS[kind].bounds)
        problems += [f"{kind}: {each}" for each in found]
        runs.append(campaign.figures())

    def total(name: str) -> int:
        return sum(getattr(run, name) for run in runs)

    return Row(
        "kills of master and slave, SYNC_MASTER",
        f"{total('master_kills')} kills of masters, {total('slave_kills')} of slaves, "
        f"{total('disks_lost')} masters' disks thrown away and slaves promoted, {len(KINDS)} kinds "
        "of messages",
        f"{total('acknowledged'):,} sends answered SEND_OK; unknown: {total('unanswered'):,} not "
        f"answered, status 10 {total('flush_late'):,}, 11 {total('slave_absent'):,}, "
        f"12 {total('slave_late'):,}",
        f"{len(problems)} lost, invented, early or out of order",
        problems,
    )


CAMPAIGNS: tuple[Callable[[Path, bool], Row], ...] = (
    crash_point_row,
    stopped_flip_row,
    lost_write_row,
    torn_tail_row,
    running_flip_row,
    io_error_row,
    damaged_file_row,
    full_disk_row,
    replication_row,
)


def run_row(campaign: Callable[[Path, bool], Row], quick: bool) -> Row:
    """One campaign in a folder in memory; its time is part of the figure."""
    logging.disable(logging.CRITICAL)
    begun = time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="contrail-", dir=memory) as folder:
        row = campaign(Path(folder), quick)
    row.seconds = time.monotonic() - begun
    print(f"{row.seconds:6.0f} s  {row.campaign}: {row.bad}", *row.problems[:20], sep="\n  ")
    return row


def line(row: Row) -> str:
    made = time.strftime("%Y-%m-%d", time.gmtime())
    cells = (row.campaign, row.cases, row.seen, row.bad, f"{row.seconds:.0f} s, {made}")
    return "| " + " | ".join(cells) + " |"


def table(lines: list[str]) -> str:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    head = [
        f"Made by `{COMMAND}`, Python {platform.python_version()}, {machine}.",
        "",
        "| campaign | cases | seen | bad | took, made on |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join(head + lines)


def merged(before: str, rows: list[Row]) -> list[str]:
    """The table's lines with those of ``rows`` replaced or added."""
    lines = {_name(text): text for text in before.splitlines() if text.startswith("| ")}
    kept = {name: text for name, text in lines.items() if name not in ("campaign", "---")}
    return list((kept | {row.campaign: line(row) for row in rows}).values())


def _name(text: str) -> str:
    return text.split("|")[1].strip()


def write_page(rows: list[Row]) -> None:
    """Replace what stands between the marks."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    before, _, tail = rest.partition(END)
    text = f"{head}{BEGIN}\n{table(merged(before, rows))}\n{END}{tail}"
    PAGE.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="small sizes; the page is not written")
    parser.add_argument("--only", default="", help="part of a campaign's name, as lost_write")
    options = parser.parse_args()
    chosen = [campaign for campaign in CAMPAIGNS if options.only in campaign.__name__]
    with ProcessPoolExecutor(options.jobs) as pool:
        pending = [pool.submit(run_row, campaign, options.quick) for campaign in chosen]
        rows = [future.result() for future in pending]
    if options.quick:
        print(table([line(row) for row in rows]))
    else:
        write_page(rows)
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
