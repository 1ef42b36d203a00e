"""Plans merges of files of about one size, so that a row is rewritten seldom.

Files belong to a class by their size, each class eight times the one before. Eight files of one
class become one of the next, up to the target. When a day is over, its files are merged to the
target at once. A message is thus written again once for each class that it passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from contrail.pipeline.tables.layout import DataFile, Partition

FAN_IN = 8


def plan_merges(
    files: Iterable[DataFile], target_bytes: int, now: datetime, grace: timedelta
) -> list[list[DataFile]]:
    """Groups of at least two files, each of one partition."""
    partitions: dict[Partition, list[DataFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    groups: list[list[DataFile]] = []
    for partition in sorted(partitions):
        small = [file for file in partitions[partition] if file.size_bytes < target_bytes]
        small.sort(key=lambda file: (file.path.split("/")[-2:], file.size_bytes))
        is_over = now >= partition.starts_at + timedelta(days=1) + grace
        groups += _filled(small, target_bytes) if is_over else _by_class(small, target_bytes)
    return groups


def _filled(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    groups: list[list[DataFile]] = [[]]
    held = 0
    for file in files:
        if groups[-1] and held + file.size_bytes > target_bytes:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.size_bytes
    return [group for group in groups if len(group) > 1]


def _by_class(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    classes: dict[int, list[DataFile]] = {}
    for file in files:
        classes.setdefault(_class_of(file.size_bytes, target_bytes), []).append(file)
    groups: list[list[DataFile]] = []
    for members in classes.values():
        for first in range(0, len(members) - FAN_IN + 1, FAN_IN):
            groups += _filled(members[first : first + FAN_IN], target_bytes)
    return groups


def _class_of(size_bytes: int, target_bytes: int) -> int:
    """0 for files of an eighth of the target and more, 1 for an eighth of that, and so on."""
    found = 0
    while size_bytes * FAN_IN < target_bytes and target_bytes > 1:
        target_bytes //= FAN_IN
        found += 1
    return found
