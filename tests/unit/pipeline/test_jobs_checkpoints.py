"""Claims of checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrail.errors import OptionInvalid, StateFileDamaged
from contrail.pipeline.jobs.checkpoints import Checkpoint, differences, look


@pytest.mark.proves("spark.jobs.commands")
def test_the_same_job_with_the_same_settings_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "point"
    first = Checkpoint(folder)
    assert first.claim("migrate", {"topic": "orders", "queues": 8}) is False
    first.note(done=7)
    first.note(more=["x"])
    again = Checkpoint(str(folder))
    assert again.claim("migrate", {"topic": "orders", "queues": 8}) is True
    assert again.notes == {"done": 7, "more": ["x"]}


def test_another_job_is_refused_by_name(tmp_path: Path) -> None:
    Checkpoint(tmp_path).claim("migrate", {})
    with pytest.raises(OptionInvalid, match="belongs to the job migrate: give this dedupe another"):
        Checkpoint(tmp_path).claim("dedupe", {})


def test_other_settings_are_refused_and_the_differences_named(tmp_path: Path) -> None:
    Checkpoint(tmp_path).claim("migrate", {"topic": "orders", "key": "auto"})
    with pytest.raises(OptionInvalid, match="key was 'auto' and is now 'keys'"):
        Checkpoint(tmp_path).claim("migrate", {"topic": "orders", "key": "keys"})


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    with pytest.raises(OptionInvalid, match="something else in it"):
        Checkpoint(tmp_path).claim("migrate", {})
    assert [one.name for one in tmp_path.iterdir()] == ["letter.txt"]


def test_a_damaged_state_does_not_count_as_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(StateFileDamaged):
        Checkpoint(tmp_path).claim("migrate", {})


def test_an_address_that_is_no_folder_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="s3://bucket/x"):
        Checkpoint("s3://bucket/x")


def test_each_query_has_its_own_folder(tmp_path: Path) -> None:
    checkpoint = Checkpoint(f"file://{tmp_path}")
    assert checkpoint.spark() == str(tmp_path / "spark" / "query")
    assert checkpoint.spark("copy") == str(tmp_path / "spark" / "copy")


def test_nothing_is_written_before_the_claim(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path / "new").peek("migrate", {}) == {}
    assert not (tmp_path / "new").exists()


@pytest.mark.proves("spark.migration.dry-run-refusals")
def test_a_peek_returns_the_notes_and_refuses_as_a_claim_does(tmp_path: Path) -> None:
    claimed = Checkpoint(tmp_path / "a")
    claimed.claim("migrate", {"topic": "orders"})
    claimed.note(done=7)
    state = {"job": "migrate", "settings": {"topic": "orders"}, "notes": {"done": 7}}
    assert json.loads((tmp_path / "a" / "job.json").read_text()) == state
    assert look(str(tmp_path / "a"), "migrate", {"topic": "orders"}) == {"done": 7}
    assert look(None, "migrate", {"topic": "orders"}) == {}
    with pytest.raises(OptionInvalid, match="topic was 'orders' and is now 'others'"):
        look(str(tmp_path / "a"), "migrate", {"topic": "others"})
    with pytest.raises(OptionInvalid, match="belongs to the job migrate"):
        look(str(tmp_path / "a"), "dedupe", {"topic": "orders"})
    with pytest.raises(OptionInvalid, match="something else in it"):
        look(str(tmp_path), "migrate", {"topic": "orders"})


def test_added_and_removed_settings_are_differences_too() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 2, "c": 3}) == [
        "a was 1 and is now None",
        "c was None and is now 3",
    ]


def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear all")
    for place in ("letter.txt", "letter.txt/below"):
        with pytest.raises(
            OptionInvalid, match=r"letter\.txt.* cannot be used \(Not a directory\)"
        ):
            Checkpoint(tmp_path / place).claim("migrate", {})
        with pytest.raises(OptionInvalid, match="cannot be used"):
            Checkpoint(tmp_path / place).peek("migrate", {})
