"""The command line as the framework sees it: all groups, each imported when it is called."""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from contrail.cli.app import COMMANDS
from contrail.cli.exits import ExitCode, exit_code_of
from contrail.cli.output import complain
from contrail.cli.usage import ParserError, help_was_asked, refuse_blank_arguments, usage_line
from contrail.errors import ContrailError


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
        refuse_blank_arguments(command)
        return command


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def contrail() -> None:
    """Contrail: a NameServer and a broker for Apache RocketMQ's clients, and their store."""


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code. An error of ours becomes one line."""
    try:
        code = _code_of(arguments)
        sys.stdout.flush()
        return code
    except ContrailError as error:
        complain(str(error))
        return exit_code_of(error)
    except ParserError as error:
        if not help_was_asked(error):
            complain(usage_line(error, _typed_command(arguments)))
        return ExitCode.UNUSABLE
    except typer.Abort:
        complain("nobody agreed: nothing was done")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has left; nothing may be flushed at exit.
        sys.stdout = None
        return ExitCode.OK
    except OSError as error:
        # Such as a full disk behind standard output.
        complain(str(error))
        sys.stdout = None
        return ExitCode.FAILED


def _code_of(arguments: list[str]) -> int:
    """Out of standalone mode, so that usage errors are printed as all other errors are."""
    try:
        code = app(arguments, prog_name="contrail", standalone_mode=False)
    except SystemExit as stopped:
        if _is_reader_gone(stopped.__context__):
            raise BrokenPipeError from stopped
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    return code if isinstance(code, int) else ExitCode.OK


def _is_reader_gone(error: BaseException | None) -> bool:
    """Whether the parser's own main found a closed pipe: it then ends with 1 and no text."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE


def _typed_command(arguments: list[str]) -> str:
    """The words that name a command, up to the first that does not."""
    words = ["contrail"]
    command: Any = typer.main.get_command(app)
    for word in arguments:
        if word not in getattr(command, "commands", {}):
            break
        is_lazy = isinstance(command, LazyGroup)
        command = command.load_command(word) if is_lazy else command.commands[word]
        words.append(word)
    return " ".join(words)
