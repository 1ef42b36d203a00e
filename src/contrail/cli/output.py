"""Output of commands: a table for people, one JSON value for programs, plans to agree to."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from contrail.cli.exits import ExitCode
from contrail.cli.words import in_words
from contrail.errors import ConfigError
from contrail.insight.words import time_text as time_text

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]

# The largest count of an option; far above sensible values, and below the limits of Python.
COUNT_MAX = 1_000_000_000
# A longer cell may be folded; to a narrower width it would be hard to read.
_CELL_FOLDED_TO = 24
_CELL_PADDING = 3


def print_json(value: Any) -> None:
    """One JSON value, on one line."""
    print(json.dumps(value, ensure_ascii=False))


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """A table with a column for each name; ``empty`` is printed when there is no row.

    Numbers stand to the right. Output that is no terminal gets the table's whole width; on a
    terminal that is too narrow for it, each row is a list of names and values.
    """
    if not rows:
        print(empty, file=sys.stderr)
        return
    if sys.stdout.isatty() and _width_needed(rows, columns) > _terminal_width():
        for row in rows:
            print()
            print_facts({name: row.get(name) for name in columns if row.get(name) != ""})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        is_number = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(text_of(row.get(name)) for name in columns))
    print_rich(table)


def _width_needed(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> int:
    """How wide a table is in which no cell has less than a word's room: longer ones are folded."""
    widest = (
        max(len(name), *(min(len(text_of(row.get(name))), _CELL_FOLDED_TO) for row in rows))
        for name in columns
    )
    return sum(width + _CELL_PADDING for width in widest)


def _terminal_width() -> int:
    from shutil import get_terminal_size

    return get_terminal_size().columns


def print_facts(facts: Mapping[str, Any]) -> None:
    """Names and values, a line each."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        grid.add_row(name, text_of(value))
    print_rich(grid)


def print_rich(what: Any) -> None:
    """Anything of rich's; markup in data is shown as it is."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 10_000
    console = Console(highlight=False, markup=False, width=width, soft_wrap=False)
    if width is None:
        console.print(what)
        return
    # Without a terminal: no line is cut and none ends in blanks.
    with console.capture() as captured:
        console.print(what)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")))


def text_of(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={text_of(one)}" for name, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return ", ".join(text_of(one) for one in value)
    return str(value)


def agree(
    plan: Iterable[str],
    *,
    yes: bool,
    dry_run: bool = False,
    as_json: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Show the plan on standard error, and go on only with consent.

    Ends the command with 0 for a dry run, with 1 when a person says no. The dry run of a program
    that reads JSON is a value on standard output: the plan's lines, and ``facts`` beside them.

    Raises:
        ConfigError: standard input is no terminal, and ``--yes`` was not given.
    """
    if yes and not dry_run:
        return
    if dry_run and as_json:
        print_json({"dry_run": True, "plan": [line.strip() for line in plan], **(facts or {})})
        raise typer.Exit(ExitCode.OK)
    for line in plan:
        print(line, file=sys.stderr)
    if dry_run:
        raise typer.Exit(ExitCode.OK)
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to agree to this: say --yes")
    if not typer.confirm("Do this?", err=True):
        raise typer.Exit(ExitCode.FAILED)


def complain(text: str) -> None:
    """One line on standard error."""
    print(f"contrail: {in_words(text)}", file=sys.stderr)
