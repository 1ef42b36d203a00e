"""``contrail version``, and the lazy table of commands it is found through."""

from __future__ import annotations

import json
import platform
import sys
from types import ModuleType

import pytest
import typer
from typer.testing import CliRunner

import contrail
from contrail import kernels
from contrail.cli import version
from contrail.cli.app import COMMANDS, LazyCommand, help_text, main
from contrail.cli.app import run as run_line
from contrail.cli.root import LazyGroup, app
from contrail.errors import StoreLocked
from tests.cli.running import check_json

run = CliRunner().invoke


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel loaded from an extension and one from its source."""
    for name, file in (("fast", "fast.cpython-311-x86_64-linux-gnu.so"), ("slow", "slow.py")):
        module = ModuleType(f"contrail.kernels.{name}")
        module.__file__ = f"/somewhere/{file}"
        monkeypatch.setitem(sys.modules, module.__name__, module)
    suffixes = [".cpython-311-x86_64-linux-gnu.so"]
    monkeypatch.setattr(kernels, "EXTENSION_SUFFIXES", suffixes)
    monkeypatch.setattr(kernels, "kernel_names", lambda: ["fast", "slow"])


@pytest.mark.proves("house.rules.version-report")
@pytest.mark.usefixtures("two_kernels")
def test_the_report_tells_a_compiled_kernel_from_an_interpreted_one() -> None:
    assert version.version_report().kernels == {"fast": "compiled", "slow": "interpreted"}


@pytest.mark.usefixtures("two_kernels")
def test_the_text_names_each_version_and_kernel() -> None:
    lines = [line.split() for line in run(app, ["version"]).stdout.splitlines()]
    assert ["contrail", contrail.__version__] in lines
    assert ["python", "CPython", platform.python_version()] in lines
    assert ["kernel", "slow", "interpreted"] in lines


def test_json_holds_the_same_report() -> None:
    told = json.loads(run(app, ["version", "--json"]).stdout)
    assert told["contrail"] == contrail.__version__
    assert told["kernels"].keys() == set(kernels.kernel_names())
    assert told["optional"].keys() == version.OPTIONAL_PARTS.keys()
    check_json("version", told)


@pytest.mark.proves("house.rules.version-report")
def test_an_absent_part_is_null_in_json_and_named_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    assert json.loads(run(app, ["version", "--json"]).stdout)["optional"]["java"] is None
    assert "absent (tests against Apache RocketMQ)" in run(app, ["version"]).stdout


def test_help_lists_every_command_of_the_table() -> None:
    for name, row in COMMANDS.items():
        assert f"  {name:<11} {row.help}\n" in help_text()


def test_a_mistyped_command_is_answered_with_the_nearest_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_line(["versoin"]) == 2
    assert "did you mean version?" in capsys.readouterr().err


@pytest.mark.proves("house.rules.lazy-commands")
def test_a_group_of_the_table_is_loaded_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    group = typer.Typer()
    group.command("one")(lambda: print("one ran"))
    group.command("two")(lambda: print("two ran"))
    module = ModuleType("a_group_of_two")
    module.__dict__["app"] = group
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(LazyGroup, "table", {"pair": LazyCommand(module.__name__, "app", "Two.")})
    assert "two ran" in run(app, ["pair", "two"]).stdout


def test_an_error_of_ours_is_one_line_and_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def locked() -> None:
        raise StoreLocked("the folder x is open in process 7")

    monkeypatch.setattr(version, "version_report", locked)
    monkeypatch.setattr(sys, "argv", ["contrail", "version"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "contrail: the folder x is open in process 7\n"
