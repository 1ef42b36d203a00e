"""The programs and commands of README.md run as they stand; those of Spark are in tests/spark."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.testing import LocalCluster

README = Path(__file__).parents[2] / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.proves("cli.small-rules.readme-snippet")
def test_the_first_program_runs_as_it_stands() -> None:
    program = python_blocks()[0]
    assert "127.0.0.1:9876" in program, "the address that `contrail dev` has"
    with LocalCluster() as cluster:
        program = program.replace("127.0.0.1:9876", cluster.namesrv)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'one coffee' ['o-1']\n"


def test_the_program_for_tests_passes(contrail_broker: LocalCluster) -> None:
    program = next(block for block in python_blocks() if "contrail_broker" in block)
    names: dict[str, object] = {}
    exec(compile(program, str(README), "exec"), names)
    (test,) = (value for name, value in names.items() if name.startswith("test_"))
    assert callable(test)
    test(contrail_broker)


def test_the_commands_that_need_no_server_run() -> None:
    commands = re.findall(r"^\$ \.venv/bin/contrail (.*)$", README.read_text(), re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        arguments = shlex.split(command, comments=True)
        line = [sys.executable, "-m", "contrail.cli", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
