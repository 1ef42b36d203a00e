"""`make torture`: campaigns by name, a seed, and the rest of a campaign in the next run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.torture import Plugin, Progress, campaigns, main, run_campaign
from tests.seeds import seed_asked_for, seeds_asked_for

SAMPLE = """
import os
from pathlib import Path
import pytest
LOG = Path(__file__).with_name("log.txt")
@pytest.mark.torture
@pytest.mark.parametrize("case", [1, 2, 3])
def test_case(case):
    with LOG.open("a") as log:
        log.write(f"{case} {os.environ.get('CONTRAIL_SEED')}\\n")
    assert case != 2 or LOG.with_name("mended").exists()
def test_quick(): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(SAMPLE)
    (tmp_path / "tests" / "pytest.ini").write_text("[pytest]\nmarkers = torture\n")
    return tmp_path


def test_a_file_with_long_tests_is_a_campaign(root: Path) -> None:
    (root / "tests" / "test_quick.py").write_text("def test_it(): ...\n")
    (root / "tests" / "test_all.py").write_text("pytestmark = [pytest.mark.torture]\n")
    assert campaigns(root) == {"all": "tests/test_all.py", "it": "tests/test_it.py"}
    assert "bit_flips" in campaigns() and "kills_plain" in campaigns()


def test_an_unknown_campaign_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["patience"]) == 2
    assert "bit_flips" in capsys.readouterr().err


@pytest.mark.proves("house.tests.torture")
def test_a_campaign_goes_on_with_what_has_not_passed(root: Path) -> None:
    file, log = str(root / "tests" / "test_it.py"), root / "tests" / "log.txt"
    assert run_campaign("it", file, "7", 300, root) == 1
    assert log.read_text().split("\n")[:-1] == ["1 7", "2 7", "3 7"]
    (root / "tests" / "mended").touch()
    assert run_campaign("it", file, "7", 300, root) == 0
    assert log.read_text().split("\n")[3:-1] == ["2 7"]
    # Another seed is another campaign.
    assert run_campaign("it", file, "8", 300, root) == 0
    assert log.read_text().split("\n")[4:-1] == ["1 8", "2 8", "3 8"]


class Session:
    """Runs items as pytest does: each in the plugin's hands, until the plugin has enough."""

    shouldstop: Any = False

    def run(self, plugin: Plugin, names: list[str]) -> None:
        for name in names:
            item: Any = SimpleNamespace(nodeid=name, session=self)
            protocol: Iterator[None] = plugin.pytest_runtest_protocol(item)
            try:
                next(protocol)
            except StopIteration:
                return
            report: Any = SimpleNamespace(
                nodeid=name, when="call", passed=True, failed=False, skipped=False
            )
            plugin.pytest_runtest_logreport(report)
            assert next(protocol, "ended") == "ended"


@pytest.mark.proves("house.tests.torture")
def test_no_case_begins_that_would_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, now_s = tmp_path / "p.json", iter(range(0, 1000, 10))
    monkeypatch.setattr("scripts.torture.time.monotonic", lambda: float(next(now_s)))
    Progress("c", "", left=["a", "b", "c"]).keep(place)
    session = Session()
    session.run(Plugin(place, 35.0), ["a", "b", "c"])
    # It is at 0 that the plugin begins: a takes from 10 to 20, and b would take from 30 to 40.
    assert session.shouldstop
    assert Progress.of(place, "c", "") == Progress("c", "", ["a"], ["b", "c"])


def test_progress_of_another_commit_is_forgotten(tmp_path: Path) -> None:
    place = tmp_path / "p.json"
    Progress("c", "7", ["a"], []).keep(place)
    assert Progress.of(place, "c", "7").is_finished
    assert Progress.of(place, "d", "7") == Progress("d", "7")
    assert Progress.of(place, "c", "8") == Progress("c", "8")


@pytest.mark.proves("house.tests.torture")
def test_the_seed_asked_for_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONTRAIL_SEED", raising=False)
    assert (seed_asked_for(3), seeds_asked_for([1, 2])) == (3, [1, 2])
    monkeypatch.setenv("CONTRAIL_SEED", "9")
    assert (seed_asked_for(3), seeds_asked_for([1, 2])) == (9, [9])
