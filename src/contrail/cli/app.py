"""The root of the ``contrail`` command: a table of groups, and the way to run one.

Nothing heavy is imported here: the help of the root, and the way to a command, cost no more than
Python itself. The framework comes with the command that is called (`contrail.cli.root`).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NamedTuple

from contrail import __version__

_COMPLETION_VARIABLE = "_CONTRAIL_COMPLETE"
_COMPLETION_FLAGS = ("--install-completion", "--show-completion")
_HELP_FLAGS = ("--help", "-h")
_VERSION_FLAG = "--version"
_HELP_WORD = "help"
_HELP_OF_HELP = """Usage: contrail help [COMMAND]...

Show the help of a command: `contrail help topic create` is `contrail topic create --help`.
Without a command, show all commands."""
_FAILED = 1
_COMMAND_UNKNOWN = 2
_INTERRUPTED = 130


class LazyCommand(NamedTuple):
    """Where a command lives and what ``contrail --help`` says about it."""

    module: str
    attribute: str
    help: str


def _group(name: str, help: str) -> LazyCommand:
    return LazyCommand(f"contrail.cli.{name}", "app", help)


# By purpose; each heading's commands in the order of the help.
SECTIONS = {
    "Servers": {
        "dev": _group("dev", "A NameServer and a broker in one process, to try things out."),
        "namesrv": _group("namesrv", "Run a NameServer: brokers register, clients ask for routes."),
        "broker": _group("broker", "Run a broker, or see, configure and drain running ones."),
        "console": _group("console", "Run the web console's server, and keep its accounts."),
    },
    "Messages": {
        "send": _group("send", "Send messages: from arguments, standard input or files."),
        "consume": _group("consume", "Receive messages as a member of a group."),
        "tail": _group("tail", "Show messages of a topic without touching any group."),
        "message": _group("message", "Get a message, find some by key, draw the trace of one."),
        "dlq": _group("dlq", "Dead letters: list, show, replay, export, open."),
        "timer": _group("timer", "Messages that wait for their time: list, recall."),
        "tx": _group("tx", "Open transactions: list, commit, roll back."),
    },
    "Administration": {
        "topic": _group("topic", "Topics: create, list, describe, grow, shrink, delete."),
        "group": _group(
            "consumer_group", "Consumer groups: list, describe, lag, seek, clone, delete."
        ),
        "client": _group("client", "Connected producers and consumers: list, show."),
        "cluster": _group("cluster", "The brokers of a cluster and how they are."),
        "replication": _group("replication", "Masters and slaves: how far they are; their secret."),
        "acl": _group("acl", "Users and rights of brokers with access control."),
        "audit": _group("audit", "Who changed users and rights, and who was refused."),
        "ctx": _group("ctx", "Named clusters, so that no address is typed twice."),
        "mqadmin": _group("mqadmin.app", "Apache's mqadmin commands under their own names."),
    },
    "Watching": {
        "top": _group("top", "A live view of rates, lag and clients."),
        "doctor": _group("doctor", "Explain in words what is wrong, and how to mend it."),
        "check": _group("check", "Lag, dead letters and disk for monitors, by exit code."),
        "bench": _group("bench", "Load a cluster and measure rates and latency."),
    },
    "Data": {
        "pipeline": _group("pipeline.app", "Move, keep and read messages at scale with Spark."),
        "store": _group("store", "Look into a store folder: inspect, verify, dump."),
    },
    "About": {
        "version": _group("version", "Show versions, compiled kernels and optional parts."),
    },
}
COMMANDS = {name: row for section in SECTIONS.values() for name, row in section.items()}


def main() -> None:
    """The ``contrail`` program."""
    _require_streams()
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before the command has begun, and even before its imports.
        code = _INTERRUPTED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code. An error of ours becomes one line."""
    if not os.environ.get(_COMPLETION_VARIABLE):
        if arguments[:1] == [_HELP_WORD]:
            if arguments[1:2] and arguments[1] in (_HELP_WORD, *_HELP_FLAGS):
                return _say(_HELP_OF_HELP)
            # `help topic create` is what `topic create --help` is.
            arguments = [*arguments[1:], _HELP_FLAGS[0]]
        if not arguments or arguments[0] in _HELP_FLAGS:
            return _say(help_text())
        if arguments[0] == _VERSION_FLAG:
            return _say(f"contrail {__version__}")
        if arguments[0] not in COMMANDS and arguments[0] not in _COMPLETION_FLAGS:
            print(_unknown(arguments[0]), file=sys.stderr)
            return _COMMAND_UNKNOWN
    root = import_module("contrail.cli.root")
    return int(root.run(arguments))


def _require_streams() -> None:
    """Open /dev/null in place of standard streams that were closed at the start.

    Else the first file or socket that it opens would be taken for its output.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor, which is this stream's.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _say(text: str) -> int:
    try:
        print(text, flush=True)
        return 0
    except BrokenPipeError:
        # The reader, such as `head`, has left; nothing may be flushed at exit.
        sys.stdout = None
        return 0
    except OSError as error:
        print(f"contrail: {error}", file=sys.stderr)
        sys.stdout = None
        return _FAILED


def help_text() -> str:
    """The text of ``contrail --help``."""
    lines = [
        "Usage: contrail COMMAND [ARGUMENTS]",
        "",
        "Contrail: a NameServer and a broker for Apache RocketMQ's clients, and tools for both.",
    ]
    for heading, rows in SECTIONS.items():
        lines += ["", heading]
        lines += [f"  {name:<11} {row.help}" for name, row in rows.items()]
    lines.append(f"  {_HELP_WORD:<11} Show the help of a command, as `contrail help topic create`.")
    lines += [
        "",
        "Options",
        "  --install-completion   Install completion for the current shell.",
        "  --show-completion      Print the completion script of the current shell.",
        "  --version              Show the version of Contrail; `contrail version` tells more.",
        "  --help                 Show this; every command has it, with its options.",
        "",
        "New here? `contrail dev` starts everything on this machine and says what to try.",
    ]
    return "\n".join(lines)


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    is_option = name.startswith("-")
    flags = (*_COMPLETION_FLAGS, *_HELP_FLAGS, _VERSION_FLAG)
    near = get_close_matches(name, [*COMMANDS, _HELP_WORD, *flags], n=1, cutoff=0.7)
    meant = f"; did you mean {near[0]}? See" if near else "; see"
    what = f"option {name}" if is_option else f"command {name!r}"
    line = " ".join(f"there is no {what}{meant}".split())
    return f"contrail: {line} `contrail --help`"
