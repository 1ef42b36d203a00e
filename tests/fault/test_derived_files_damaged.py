"""Any file removed, emptied, halved, doubled or swapped: the store starts, or says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail.errors import StateFileDamaged
from contrail.model.data_version import DataVersion
from contrail.runtime.files import FileSystem
from contrail.store.config_files import (
    CONSUMER_FILTERS,
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    TOPICS,
    ConfigFile,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupTable,
    TopicTable,
)
from tests.fault.campaigns.damaged_files import DAMAGES, LOG_TARGETS, TARGETS, run_campaign
from tests.seeds import seeds_asked_for

QUICK_TARGETS = tuple(target for target in TARGETS if "ext" not in target.name)

NEWER, OLDER = DataVersion(counter=2), DataVersion(counter=1)
CONFIG_FILES: dict[ConfigFile[Any], type[Any]] = {
    TOPICS: TopicTable,
    GROUPS: GroupTable,
    CONSUMER_OFFSETS: ConsumerOffsetTable,
    DELAY_OFFSETS: DelayOffsetTable,
}


@pytest.mark.proves("store.crashes.derived-files", "store.repairs.neighbours")
def test_a_damaged_derived_file_is_made_again_or_refused_as_documented(memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=61, targets=QUICK_TARGETS)
    assert figures.problems == []
    assert figures.cases >= len(QUICK_TARGETS) * len(DAMAGES)
    assert figures.refused == 12


def test_a_damaged_segment_is_refused_or_reported_and_never_served(memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=62, targets=LOG_TARGETS)
    assert figures.problems == []
    assert figures.cases == 2 * 2 * len(DAMAGES)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", seeds_asked_for([610, 611, 612]))
def test_every_file_in_every_way(seed: int, memory_path: Path) -> None:
    figures = run_campaign(memory_path, seed=seed, targets=TARGETS + LOG_TARGETS)
    assert figures.problems == []


@pytest.mark.parametrize("file", CONFIG_FILES, ids=lambda file: file.name)
@pytest.mark.parametrize("damage", ["removed", "emptied", "halved", "doubled"])
def test_a_damaged_config_file_falls_back_to_the_one_before(
    file: ConfigFile[Any], damage: str, tmp_path: Path
) -> None:
    files = FileSystem()
    for version in (OLDER, NEWER):
        file.save(files, tmp_path, CONFIG_FILES[file](data_version=version))
    DAMAGES[damage](tmp_path / "config" / file.name, tmp_path / "config" / file.name)
    read = file.load(files, tmp_path)
    assert read.source == "backup" and read.value is not None
    assert read.value.data_version == OLDER
    assert read.problem


@pytest.mark.parametrize("file", [*CONFIG_FILES, CONSUMER_FILTERS], ids=lambda file: file.name)
@pytest.mark.parametrize("damage", ["halved", "doubled"])
def test_a_config_file_damaged_with_its_backup_is_refused_by_name(
    file: ConfigFile[Any], damage: str, tmp_path: Path
) -> None:
    table = CONFIG_FILES.get(file, ConsumerFilterTable)()
    for _ in range(2):
        file.save(FileSystem(), tmp_path, table)
    for path in (tmp_path / "config").iterdir():
        DAMAGES[damage](path, path)
    with pytest.raises(StateFileDamaged, match=file.name):
        file.load(FileSystem(), tmp_path)
