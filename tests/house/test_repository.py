"""The repository holds nothing of one machine, and a README that keeps its word."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Spelled in pieces, so that this file does not find itself.
MACHINE_WORDS = re.compile(
    "|".join([r"(?<![\w.~-])/" + "work/", r"(?<![\w.~-])/" + "root/", r"\.\./" + "shared"])
)


def kept_files() -> list[Path]:
    """Files of the repository, and those about to be added to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this is not a git checkout: {done.stderr.strip()}")
    return [path for name in done.stdout.splitlines() if (path := ROOT / name).is_file()]


def machine_words_in(data: bytes) -> list[str]:
    return MACHINE_WORDS.findall(data.decode("utf-8", "replace"))


def test_no_file_names_a_path_of_one_machine() -> None:
    found = {
        str(path.relative_to(ROOT)): words
        for path in kept_files()
        if (words := machine_words_in(path.read_bytes()))
    }
    assert found == {}


def test_the_search_finds_a_machine_path_and_leaves_words_alone() -> None:
    assert machine_words_in(b"see /" + b"work/x and ../" + b"shared/y") == [
        "/" + "work/",
        "../" + "shared",
    ]
    assert machine_words_in(b"network/work/x and a/root/b") == []


def test_no_file_has_the_marks_of_a_conflict() -> None:
    marks = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)
    found = [
        str(path.relative_to(ROOT)) for path in kept_files() if marks.search(path.read_bytes())
    ]
    assert found == []


def test_no_built_file_is_kept() -> None:
    built = [path.name for path in kept_files() if path.suffix in {".so", ".pyc", ".class"}]
    assert built == []


def test_the_readme_names_the_two_commands_of_a_newcomer() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


@pytest.mark.proves("apache.clients.in-ci")
def test_continuous_integration_runs_the_readme_command_with_every_peer() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "CONTRAIL_REQUIRE_PEERS=1 make test" in script.read_text()


def test_every_change_fragment_has_a_kind() -> None:
    kinds = "feature|fix|compat|perf|doc"
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert [name for name in names if not re.fullmatch(rf"[\w-]+\.({kinds})\.md", name)] == []
