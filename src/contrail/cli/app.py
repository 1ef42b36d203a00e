"""The root of the ``contrail`` command: a table of groups, and the way to load one."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from contrail.errors import ContrailError


class LazyCommand(NamedTuple):
    """Where a command lives and what ``contrail --help`` says about it."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "broker": LazyCommand(
        "contrail.cli.broker", "app", "Run a broker: it stores messages and hands them out."
    ),
    "namesrv": LazyCommand(
        "contrail.cli.namesrv", "app", "Run a NameServer: brokers register, clients ask for routes."
    ),
    "pipeline": LazyCommand(
        "contrail.cli.pipeline.app", "app", "Move, keep and read messages at scale with Spark."
    ),
    "store": LazyCommand(
        "contrail.cli.store", "app", "Look into a store folder: inspect, verify, dump."
    ),
    "topic": LazyCommand(
        "contrail.cli.topic", "app", "Create topics, list them, see which brokers have them."
    ),
    "version": LazyCommand(
        "contrail.cli.version", "app", "Show versions, compiled kernels and optional parts."
    ),
}


class LazyGroup(TyperGroup):
    """A group whose help comes from the table; a command's module is imported when it is called."""

    table = COMMANDS

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, row in self.table.items():
            self.commands[name] = TyperCommand(name, help=row.help)

    # Typer's own context and command types are private to it, hence Any.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, placeholder, rest = super().resolve_command(ctx, args)
        command = self.load_command(name) if name in self.table else placeholder
        return name, command, rest

    def load_command(self, name: str) -> Any:
        """Import the command called ``name`` and return it ready to run."""
        row = self.table[name]
        command = typer.main.get_command(getattr(import_module(row.module), row.attribute))
        command.name = name
        return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def contrail() -> None:
    """Contrail: a NameServer and a broker for Apache RocketMQ's clients, and their store."""


def main() -> None:
    """Run the command line; what Contrail raises on purpose becomes one line and exit code 2."""
    try:
        app(prog_name="contrail")
    except ContrailError as error:
        print(f"contrail: {error}", file=sys.stderr)
        raise SystemExit(2) from error
