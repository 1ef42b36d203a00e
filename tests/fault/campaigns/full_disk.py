"""A small partition filled to the last block and freed again, over and over, under a live store."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from contrail.clock import ManualClock
from contrail.errors import DiskFull
from contrail.model.message import MessageDraft
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.campaigns.history import CLOCK_MS
from tests.fault.campaigns.oracle import decode
from tests.fault.campaigns.workload import LONG_AFTER_MS, small_config

PARTITION_BYTES = 64 << 20
TOPIC = b"steady"
_TICKS_TO_RECOVER = 5
_FILLER = os.urandom(6000)


@dataclass
class FullDiskFigures:
    """The findings of the campaign."""

    cycles: int = 0
    acknowledged: int = 0
    refusals: int = 0
    lost: int = 0
    ticks_to_recover_max: int = 0
    problems: list[str] = field(default_factory=list)


@contextlib.contextmanager
def small_partition(folder: Path) -> Iterator[Path]:
    """A tmpfs of its own; needs root."""
    folder.mkdir()
    size = f"size={PARTITION_BYTES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run_campaign(partition: Path, *, cycles: int) -> FullDiskFigures:
    """Fill the disk, see appends refused and reads served, free it, append; restart at times."""
    figures = FullDiskFigures()
    runner = _Runner(partition, figures)
    for cycle in range(cycles):
        runner.cycle(told_by_ratio=cycle % 2 == 1)
        figures.cycles += 1
        if cycle % 10 == 9 or cycle == cycles - 1:
            runner.restart()
    runner.store.close()
    return figures


class _Runner:
    """One store on one partition, and the next number to send."""

    def __init__(self, partition: Path, figures: FullDiskFigures) -> None:
        self._ballast = partition / "ballast"
        self._figures = figures
        self._config = _config(partition / "store")
        self._clock = ManualClock(CLOCK_MS)
        self.store = MessageStore.open(self._config, clock=self._clock)
        self._acknowledged: list[int] = []

    def cycle(self, *, told_by_ratio: bool) -> None:
        self._append_some(100)
        self._fill_partition()
        if told_by_ratio:
            self._tick()
        self._append_until_refused()
        self._require_reads_and_refusals()
        self._ballast.unlink()
        self._await_recovery()
        self._drop_old_segments()

    def restart(self) -> None:
        """Close, open, and look for every message that retention has not removed."""
        self.store.close()
        self.store = MessageStore.open(self._config, clock=self._clock)
        self.store.dispatch()
        for number in self._acknowledged:
            if number >= self.store.queue_offset_min(TOPIC, 0) and not self._is_there(number):
                self._figures.lost += 1
                self._figures.problems.append(f"message {number} was lost")

    def _append(self) -> bool:
        number = self.store.queue_offset_max(TOPIC, 0) if not self._acknowledged else (
            self._acknowledged[-1] + 1
        )  # fmt: skip
        try:
            run = self.store.append_one(_draft(number))
        except DiskFull:
            self._figures.refusals += 1
            return False
        assert self.store.wait_flushed(run.physical_end, 60_000)
        assert run.queue_offsets == [number], f"{run.queue_offsets} where {number} belongs"
        self._acknowledged.append(number)
        self._figures.acknowledged += 1
        return True

    def _append_some(self, count: int) -> None:
        for _ in range(count):
            if not self._append():
                self._figures.problems.append("refused while there was room")
                return
        self.store.dispatch()

    def _append_until_refused(self) -> None:
        for _ in range(10_000):
            if not self._append():
                return
        self._figures.problems.append("never refused on a full disk")

    def _require_reads_and_refusals(self) -> None:
        for _ in range(3):
            self._tick()
            self.store.dispatch()
            if self._append():
                self._figures.problems.append("acknowledged on a full disk")
        if self.store.poisoned is not None:
            self._figures.problems.append(f"poisoned by a full disk: {self.store.poisoned}")
        for number in self._acknowledged[-20:]:
            if not self._is_there(number):
                self._figures.problems.append(f"message {number} cannot be read on a full disk")

    def _await_recovery(self) -> None:
        for ticks in range(1, _TICKS_TO_RECOVER + 1):
            self._tick()
            if self._append():
                worst = max(self._figures.ticks_to_recover_max, ticks)
                self._figures.ticks_to_recover_max = worst
                return
        self._figures.problems.append("still refused after space came back")

    def _drop_old_segments(self) -> None:
        self.store.dispatch()
        self.store.checkpoint()
        self.store.retention.request_manual()
        self.store.retention.run_once(LONG_AFTER_MS)

    def _fill_partition(self) -> None:
        block = bytes(1 << 16)
        with open(self._ballast, "wb", buffering=0) as ballast:
            while True:
                try:
                    if ballast.write(block) < len(block):
                        return
                except OSError:
                    return

    def _tick(self) -> None:
        self._clock.advance(ms=1000)
        self.store.tick()

    def _is_there(self, number: int) -> bool:
        result = self.store.get(TOPIC, 0, number, count_max=1)
        return [decode(record).body for record in result.records] == [_draft(number).body]


def _config(root: Path) -> StoreConfig:
    return small_config(
        root,
        segment_bytes=2 << 20,
        queue_file_bytes=4000 * 20,
        queue_ext_enabled=False,
        index_slot_count=1000,
        index_entry_count=4000,
        delete_files_max=100,
        clean_forcibly=False,
    )


def _draft(number: int) -> MessageDraft:
    properties = b"UNIQ_KEY\x01u%d\x02" % number
    return MessageDraft(TOPIC, 0, b"%d:" % number + _FILLER, properties)
