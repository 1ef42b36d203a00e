"""Every test file has a part and a step, and every proof of the ledger a target that runs it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from scripts.parts import (
    QUICK,
    ROOT,
    TORTURE,
    WHOLE,
    Plan,
    all_test_files,
    is_selected,
    reaching_no_kernel,
    read_plan,
)
from scripts.proofs import all_tests, proofs_of
from scripts.run_tests import RECORD, recorded
from scripts.torture import campaigns

# Programs that select tests themselves, or hand on the target's selection.
TARGETS = {
    "test": "scripts.run_tests test",
    "test-all": "scripts.run_tests all $(PART)",
    "torture": 'scripts.torture "$(CAMPAIGN)" "$(SEED)"',
}


class Targets:
    """The make commands that run a test."""

    def __init__(self, plan: Plan, campaign_files: Collection[str]) -> None:
        self._campaigns = campaign_files
        self._quick = {name for step in plan.steps() for name in step.files}
        self._part = {name: part for part in plan.own_parts for name in plan.files(part)}

    def of(self, file: str, marks: Collection[str]) -> list[str]:
        targets = ["make test"] if file in self._quick and is_selected(marks, QUICK) else []
        if file in self._part and is_selected(marks, WHOLE):
            targets.append(f"make test-all PART={self._part[file]}")
        is_campaign = file in self._campaigns and is_selected(marks, TORTURE)
        return targets + (["make torture"] if is_campaign else [])


@pytest.mark.proves("house.tests.ledger")
def test_every_row_of_the_ledger_names_a_proof_that_a_target_runs() -> None:
    targets = Targets(read_plan(), campaigns().values())
    unrun = [
        f"{proof.file}::{test.name}"
        for proof in proofs_of().proofs
        for test in proof.tests
        if not targets.of(proof.file, test.marks)
    ]
    assert unrun == []


SAMPLE = ast.parse(
    """
def test_plain(): ...
@pytest.mark.matrix
def test_whole(): ...
@pytest.mark.timeout(3)
@pytest.mark.torture
def test_long(): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_partly(): ...
class TestGroup:
    @pytest.mark.torture
    def test_long_too(self): ...
"""
)


@pytest.mark.proves("house.tests.ledger")
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("test_plain", ["make test", "make test-all PART=store"]),
        ("test_partly", ["make test", "make test-all PART=store"]),
        ("test_whole", ["make test-all PART=store"]),
        ("test_long", ["make torture"]),
        ("TestGroup::test_long_too", ["make torture"]),
    ],
)
def test_a_test_is_found_in_the_targets_that_select_it(
    name: str, targets: list[str], tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").touch()
    plan = Plan('[parts.store]\nfiles = ["tests"]\n[[steps]]\nparts = ["store"]\n', tmp_path)
    [marks] = [test.marks for test in all_tests(SAMPLE) if test.name == name]
    assert Targets(plan, ["tests/test_it.py"]).of("tests/test_it.py", marks) == targets
    assert Targets(plan, ["tests/test_it.py"]).of("tests/test_other.py", marks) == []


@pytest.mark.proves("house.tests.parts")
def test_every_test_file_has_one_part_and_every_part_is_a_step() -> None:
    plan = read_plan()
    found = Counter(file for part in plan.own_parts for file in plan.files(part))
    assert [file for file in all_test_files() if found[file] != 1] == []
    run = [name for step in plan.steps() for name in step.name.split()]
    assert sorted(run) == [part for part in plan.part_names if not plan.only_whole(part)]


def test_every_step_is_run_once_and_what_measures_runs_alone() -> None:
    plan = read_plan()
    stages = list(plan.stages())
    run = [step.name for tracks in stages for track in tracks for step in track]
    assert sorted(run) == sorted(step.name for step in plan.steps())
    (alone,) = [tracks for tracks in stages if any(step.name == "alone" for (step, *_) in tracks)]
    assert len(alone) == 1
    assert alone[0][0].workers == 0


def test_a_part_that_repeats_others_for_the_whole_changes_their_environment() -> None:
    plan = read_plan()
    repeated = {part for part in plan.own_parts if plan.whole(part).environment}
    assert plan.whole("general").environment == {"CONTRAIL_FAST_PATH": "off"}
    assert repeated == {"clients", "scenarios"}
    assert set(plan.files("general")) == {file for part in repeated for file in plan.files(part)}


@pytest.mark.proves("house.tests.interpreted")
def test_the_files_left_out_of_the_interpreted_step_are_there_and_name_no_kernel() -> None:
    left_out, part = reaching_no_kernel(), read_plan().files("interpreted")
    assert [file for file in left_out if file not in part] == []
    # A test calls the kernels that it imports.
    named = [file for file in left_out if "contrail.kernels" in (ROOT / file).read_text("utf-8")]
    assert named == [], "run: python -m scripts.reach_no_kernel"


@pytest.mark.proves("house.tests.parts")
def test_the_make_targets_run_the_plan() -> None:
    recipes = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target, command in TARGETS.items():
        recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", recipes, re.MULTILINE)
        assert recipe and command in recipe[1], target


@pytest.mark.proves("house.tests.whole-parts")
def test_the_recorded_parts_are_parts() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", RECORD.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(rows) <= set(read_plan().part_names)


@pytest.mark.proves("house.tests.whole-parts")
def test_a_recorded_run_replaces_the_one_before() -> None:
    page = "# Parts\n\n| part | seconds |\n| --- | --- |\n| `cli` | 1 |\n| `store` | 2 |\n\nEnd.\n"
    again = recorded(page, ["`cli`", "5"])
    assert again == page.replace("| 1 |", "| 5 |")
    more = recorded(again, ["`house`", "3"])
    assert more.index("`cli`") < more.index("`house`") < more.index("`store`")
