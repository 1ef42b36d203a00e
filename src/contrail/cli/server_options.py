"""Shared options and files of ``contrail namesrv`` and ``contrail broker``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from contrail.cli.logs import LogFormat, LogLevel
from contrail.errors import ConfigError
from contrail.protocol.bodies.properties_text import parse_properties, render_properties

ConfigFile = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="A properties file, as RocketMQ's are."),
]
ListenAddress = Annotated[
    str | None,
    typer.Option("--listen", metavar="ADDR", help="listenAddress: the address to bind to."),
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", help="listenPort; 0 takes a free one."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting by its name; repeatable."),
]
PrintConfig = Annotated[
    bool,
    typer.Option("-p", "--print-config", help="Print all settings as they would be, and end."),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="How log lines are written.")
]
LogLevelOption = Annotated[
    LogLevel, typer.Option("--log-level", help="The least important line to write.")
]
LogFile = Annotated[
    Path | None,
    typer.Option("--log-file", metavar="FILE", help="Log to a file, rotated; else to stderr."),
]


def read_properties(path: Path) -> dict[str, str]:
    """The settings in a properties file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return parse_properties(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the settings in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"the settings in {path} are not UTF-8 text: {error}") from error


def given(values: Mapping[str, object | None]) -> dict[str, str]:
    """The settings of the options that were given."""
    return {name: str(value) for name, value in values.items() if value is not None}


def print_settings(settings: Mapping[str, str], notes: Iterable[str]) -> None:
    """Print a file for ``-c`` on standard output, and remarks about it on standard error."""
    for note in notes:
        typer.echo(f"contrail: {note}", err=True)
    typer.echo(render_properties(settings), nl=False)
