"""Importing one room does not pay for another: each check runs in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

import contrail


def modules_after(script: str) -> set[str]:
    """Run ``script`` and return the names of the modules it left loaded."""
    report = "\nimport sys; print('\\n'.join(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-c", script + report]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def after_command(*arguments: str) -> set[str]:
    return modules_after(
        f"import sys; sys.argv = ['contrail', *{arguments!r}]\n"
        "from contrail.cli.app import main\n"
        "try: main()\n"
        "except SystemExit as stopped: assert not stopped.code\n"
    )


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("contrail.")}


@pytest.mark.proves("house.rules.lazy-names")
def test_importing_the_package_imports_no_room() -> None:
    assert ours(modules_after("import contrail; contrail.__version__")) == set()


def test_a_public_name_brings_its_own_room_only() -> None:
    loaded = ours(modules_after("from contrail import ContrailError"))
    assert loaded == {"contrail.errors"}


@pytest.mark.proves("house.rules.lazy-names")
def test_every_public_name_resolves() -> None:
    for name in contrail.__all__:
        assert getattr(contrail, name) is not None, name


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    assert not hasattr(contrail, "no_such_name")


@pytest.mark.proves("house.rules.lazy-commands")
def test_help_imports_no_command_module() -> None:
    loaded = ours(after_command("--help"))
    assert loaded == {"contrail.cli", "contrail.cli.app"}
    assert not {"typer", "rich"} & after_command("--help")


def test_a_command_imports_no_other_command() -> None:
    loaded = after_command("version", "--json")
    assert "contrail.cli.version" in loaded
    assert not {"contrail.cli.store", "contrail.store", "rich.table"} & loaded


def test_listing_the_kernels_loads_none_of_them() -> None:
    loaded = ours(modules_after("import contrail.kernels as k; k.kernel_names()"))
    assert loaded == {"contrail.kernels"}
