"""The import contracts of pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@pytest.mark.proves(
    "house.rules.imports",
    "broker.fast.one-gate",
    "replication.ground.room",
    "console.facts.room",
    "console.running.extra",
)
def test_the_import_contracts_hold() -> None:
    command = [sys.executable, "-c", LINT, "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout
