"""Every command, flag, error and setting that a user can meet is in docs/reference."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from contrail import errors
from contrail.broker.config import BrokerConfig
from contrail.broker.replication_config import ReplicationConfig
from contrail.cli.app import COMMANDS
from contrail.cli.root import LazyGroup, app
from contrail.nameserver.config import NameServerConfig
from contrail.store.config import StoreConfig

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def command_pages() -> str:
    """The page of the command line, and those of its groups."""
    pages = [REFERENCE / "cli.md", *sorted((REFERENCE / "cli").glob("*.md"))]
    return "\n".join(one.read_text(encoding="utf-8") for one in pages)


def commands() -> Iterator[tuple[str, Any]]:
    """Each command of the command line by its full name, groups included."""
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    yield "contrail", root
    for name in COMMANDS:
        yield from _walk(f"contrail {name}", root.load_command(name))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child_name, child in getattr(command, "commands", {}).items():
        yield from _walk(f"{name} {child_name}", child)


def flags(command: Any) -> list[str]:
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    return [flag for option in options for flag in [*option.opts, *option.secondary_opts]]


def section(text: str, command_name: str) -> str:
    """The part of the page under the command's own heading; empty when it has none."""
    _, found, rest = text.partition(f"\n## `{command_name}`\n")
    return rest.partition("\n## ")[0] if found else ""


@pytest.mark.proves("house.rules.documented", "cli.administration.docs")
def test_every_command_has_its_section_and_every_flag_is_in_it() -> None:
    text = command_pages()
    missing = []
    for name, command in commands():
        body = section(text, name)
        missing += [] if body else [name]
        missing += [f"{name} {flag}" for flag in flags(command) if f"`{flag}" not in body]
    assert missing == []


@pytest.mark.proves("cli.commands.json")
def test_every_command_that_prints_json_has_its_schema() -> None:
    schemas = {
        path.name.removesuffix(".schema.json") for path in (REFERENCE / "json").glob("*.json")
    }
    without = [
        name
        for name, command in commands()
        if "--json" in flags(command)
        if name.removeprefix("contrail ").replace(" ", "-") not in schemas
    ]
    assert without == []


def test_every_section_of_the_command_page_is_a_command() -> None:
    known = {name for name, _ in commands()}
    headings = [line for line in command_pages().splitlines() if line.startswith("## `")]
    assert [heading for heading in headings if heading[4:-1] not in known] == []


@pytest.mark.proves("house.rules.documented")
def test_every_error_is_documented() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    names = [name for name, found in classes if found.__module__ == errors.__name__]
    assert len(names) > 5
    text = page("errors.md")
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.proves("house.rules.documented")
@pytest.mark.parametrize(
    ("heading", "config"),
    [
        ("Store", StoreConfig),
        ("Broker", BrokerConfig),
        ("Replication", ReplicationConfig),
        ("NameServer", NameServerConfig),
    ],
)
def test_every_setting_is_documented_with_its_apache_name_and_default(
    heading: str, config: type[Any]
) -> None:
    table = page("settings.md").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    documented = {row.split("`")[1]: row for row in rows}
    fields = dataclasses.fields(config)
    assert [field.name for field in fields if field.name not in documented] == []
    assert documented.keys() <= {field.name for field in fields}
    for field in fields:
        assert f"`{field.metadata['apache']}`" in documented[field.name]
        assert default_text(field) in documented[field.name], field.name


def default_text(field: dataclasses.Field[Any]) -> str:
    """How the settings page writes a default; a required setting says so."""
    if field.default_factory is not dataclasses.MISSING:
        return f"| `{field.default_factory()}` |".replace(str(Path.home()), "~")
    if field.default is dataclasses.MISSING:
        return "| required |"
    if isinstance(field.default, bool):
        return f"| {str(field.default).lower()} |"
    if isinstance(field.default, int):
        return f"| {field.default:,} |"
    return f"| `{field.default}` |" if field.default else "| none |"
