"""``contrail mqadmin``: find the command, read its options, run it."""

from __future__ import annotations

from difflib import get_close_matches

import typer

from contrail.cli.mqadmin import (
    brokers,
    browsing,
    clusters,
    consumers,
    export,
    group_changes,
    namesrv,
    offsets,
    queries,
    sending,
    stats,
    topic_changes,
    topics,
)
from contrail.cli.mqadmin.options import Call, Command, Option, read_line
from contrail.cli.mqadmin.out_of_scope import OUT_OF_SCOPE
from contrail.cli.target import target
from contrail.errors import ConfigError

app = typer.Typer(add_completion=False)

# In the order of the list, by subject.
FAMILIES: dict[str, tuple[Command, ...]] = {
    "Topics": (*topics.COMMANDS, *topic_changes.COMMANDS),
    "Consumer groups and clients": (*consumers.COMMANDS, *group_changes.COMMANDS),
    "Offsets": offsets.COMMANDS,
    "Messages": (*queries.COMMANDS, *browsing.COMMANDS, *sending.COMMANDS),
    "Clusters and brokers": (*clusters.COMMANDS, *brokers.COMMANDS, *stats.COMMANDS),
    "NameServers": namesrv.COMMANDS,
    "Export": export.COMMANDS,
}
COMMANDS = {one.name: one for family in FAMILIES.values() for one in family}
_HELP = ("help", "-h", "--help")
# The options after the name are the command's: the framework must not parse them.
_RAW = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}


@app.command(context_settings=_RAW)
def mqadmin(ctx: typer.Context) -> None:
    """Apache's mqadmin commands under their own names: NAME and its options, or help NAME."""
    words = list(ctx.args)
    if not words or words in ([word] for word in _HELP):
        print(list_text())
    elif words[0] in _HELP:
        print(help_text(_find(words[1])))
    else:
        _run(_find(words[0]), words[1:])


def _run(command: Command, words: list[str]) -> None:
    values = read_line(command, words)
    if "h" in values:
        print(help_text(command))
        return
    cluster = target(values.get("n"), values.get("ctx"))
    with cluster.admin() as admin:
        command.run(Call(values, cluster), admin)


def _find(name: str) -> Command:
    """The command by its name in any case, as Apache's tool does.

    Raises:
        ConfigError: there is no such command, or it is not part of Contrail.
    """
    for command in COMMANDS.values():
        if command.name.lower() == name.lower():
            return command
    for known, reason in OUT_OF_SCOPE.items():
        if known.lower() == name.lower():
            raise ConfigError(f"mqadmin {known} is not part of Contrail: {reason}")
    near = get_close_matches(name, COMMANDS, n=1)
    meant = f"; did you mean {near[0]}?" if near else ";"
    raise ConfigError(f"mqadmin has no command {name!r}{meant} `contrail mqadmin` lists them")


def list_text() -> str:
    """All commands, by subject."""
    lines = ["Usage: contrail mqadmin NAME [OPTIONS]"]
    for family, commands in FAMILIES.items():
        lines += ["", family, *(f"  {one.name:<26} {one.help}" for one in commands)]
    return "\n".join([*lines, "", "`contrail mqadmin help NAME` shows the options of one."])


def help_text(command: Command) -> str:
    """A command and its options."""
    lines = [f"Usage: contrail mqadmin {command.name} [OPTIONS]", "", f"  {command.help}", ""]
    return "\n".join([*lines, *(_option_line(command, one) for one in command.all_options)])


def _option_line(command: Command, option: Option) -> str:
    shown = option.shown + (" <value>" if option.takes_value else "")
    note = " (required)" if option.required else ""
    if option.key in command.one_of or option.key in command.any_of:
        others = [key for key in (*command.one_of, *command.any_of) if key != option.key]
        note = f" (this or {' or '.join(f'-{key}' for key in others)})"
    return f"  {shown:<44} {option.help}{note}"
