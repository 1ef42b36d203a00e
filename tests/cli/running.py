"""The command line run inside the test's own process: as a user would, without a new Python."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from contrail.cli.app import run as run_command

SCHEMAS = Path(__file__).parents[2] / "docs" / "reference" / "json"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def contrail(*arguments: str, stdin: str = "") -> Finished:
    """Run ``contrail`` with these arguments, without a terminal."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), _standard_input(stdin):
        code = run_command([str(one) for one in arguments])
    return Finished(code, out.getvalue(), err.getvalue())


def done(*arguments: str, stdin: str = "") -> Finished:
    """Run a command that must end well."""
    finished = contrail(*arguments, stdin=stdin)
    assert finished.code == 0, f"{arguments}: {finished.code}\n{finished.out}\n{finished.err}"
    return finished


def valid_json(schema: str, *arguments: str, stdin: str = "") -> Any:
    """A command's output with ``--json``, checked against the schema file of that name."""
    value = done(*arguments, "--json", stdin=stdin).json
    check_json(schema, value)
    return value


def check_json(schema: str, value: Any) -> None:
    text = (SCHEMAS / f"{schema}.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(json.loads(text)).validate(value)


def one_line(finished: Finished, code: int, *words: str) -> None:
    """A failure as every command tells it: an exit code, one clear line, nothing else."""
    assert finished.code == code, finished
    lines = finished.err.rstrip("\n").split("\n")
    assert len(lines) == 1 and lines[0].startswith("contrail: "), finished.err
    for word in words:
        assert word in lines[0], lines[0]


@contextmanager
def _standard_input(text: str) -> Iterator[None]:
    before = sys.stdin
    raw = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    sys.stdin = raw
    try:
        yield
    finally:
        sys.stdin = before
