"""Values that no option can use, tried on every number and name of every command.

Each must end with an exit code of the list and a line that a person can read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from contrail import Admin
from contrail.cli.exits import ExitCode
from contrail.cli.root import LazyGroup, app
from contrail.testing import LocalCluster
from tests.cli.running import contrail, one_line
from tests.cli.test_not_found import ID, leaves

NUMBERS = ("99999999999999999999", "nan", "1e400")
# A byte that is no UTF-8, as Python passes it on; and one that ends texts in C.
NAMES = ("\udcff", "a\x00b", "")
# Lines that run by themselves; a command that is not here needs nothing.
BASE: dict[str, list[str]] = {
    "consume": ["there", "-g", "members", "-e"],
    "tail": ["there", "-e"],
    "top": ["--once"],
    "send": ["there", "x"],
    "message get": [ID, "--topic", "there"],
    "message find": ["there", "k"],
    "message trace": [ID],
    "dlq show": ["members"],
    "dlq replay": ["members", "--yes"],
    "dlq export": ["members", "FOLDER/letters"],
    "dlq open": ["members"],
    "topic create": ["made"],
    "topic describe": ["there"],
    "topic route": ["there"],
    "topic grow": ["there", "--queues", "2"],
    "topic shrink": ["there", "--queues", "1", "--dry-run"],
    "topic delete": ["absent", "--yes"],
    "group describe": ["members"],
    "group lag": ["members"],
    "group seek": ["members", "--to", "latest", "--dry-run"],
    "group clone": ["members", "others", "--dry-run"],
    "group create": ["made"],
    "group delete": ["absent", "--yes"],
    "client show": ["absent"],
    "broker config": ["all"],
    "broker drain": ["broker-a", "--dry-run"],
    "broker undrain": ["broker-a"],
    "timer recall": [ID, "--yes"],
    "tx commit": [ID, "--yes"],
    "tx rollback": [ID, "--yes"],
    "ctx add": ["named", "127.0.0.1:1"],
    "ctx use": ["named"],
    "ctx show": ["named"],
    "ctx remove": ["named"],
    "bench send": ["there", "--count", "1"],
    "bench consume": ["there", "-g", "members", "--count", "1", "--seconds", "0.1"],
    "doctor": ["--watch", "0"],
    "store inspect": ["FOLDER"],
    "store verify": ["FOLDER"],
    "store recover": ["FOLDER"],
    "store dump": ["FOLDER"],
    **{f"check {name}": ["--warn", "1", "--crit", "2"] for name in ("lag", "dlq", "disk")},
}
SERVERS = ("dev", "namesrv", "broker", "console")
# Would run until it is ended: the count is that large.
ENDLESS = {("bench send", "--count"), ("bench consume", "--count")}
CODES = frozenset(ExitCode) - {ExitCode.INTERRUPTED}


def command_of(name: str) -> Any:
    command: Any = typer.main.get_command(app)
    for word in name.split():
        is_lazy = isinstance(command, LazyGroup)
        command = command.load_command(word) if is_lazy else command.commands[word]
    return command


def trials(name: str) -> Iterator[list[str]]:
    base = BASE.get(name, [])
    for parameter in command_of(name).params:
        if parameter.param_type_name == "argument":
            yield from ([value, *base[1:]] for value in NAMES)
        elif not getattr(parameter, "is_flag", False):
            option = max(parameter.opts, key=len)
            values = NUMBERS if _is_number(parameter) else NAMES
            if (name, option) not in ENDLESS:
                yield from ([*base, option, value] for value in values)


def _is_number(parameter: Any) -> bool:
    """Releases of Typer keep the kind of an option in different places."""
    kind = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    annotation = getattr(kind, "annotation", None) or kind
    return any(word in str(annotation).lower() for word in ("int", "float"))


def names() -> list[str]:
    found = [name for name in leaves() if name not in SERVERS and name != "mqadmin"]
    return [name for name in found if not name.startswith("pipeline ")]


@pytest.fixture(scope="module")
def at(cluster: LocalCluster) -> str:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("there", queues=1)
        admin.create_group("members")
    return cluster.namesrv


@pytest.mark.parametrize("name", names())
def test_no_value_ends_in_a_traceback(name: str, at: str, tmp_path: Path) -> None:
    is_of_a_cluster = name.split()[0] not in ("ctx", "store", "version")
    for words in trials(name):
        typed = [word.replace("FOLDER", str(tmp_path)) for word in words]
        named = ["-n", at] if is_of_a_cluster and "--namesrv" not in typed else []
        finished = contrail(*name.split(), *typed, *named)
        assert finished.code in CODES, (typed, finished)
        # Monitors read standard output.
        assert finished.code == 0 or (finished.err or finished.out).strip(), (typed, finished)
        if finished.code in (ExitCode.UNUSABLE, ExitCode.NOT_FOUND, ExitCode.UNREACHABLE):
            assert finished.err.count("\n") == 1, (typed, finished)


def names_something(name: str) -> bool:
    """Whether a command's first argument is the name of something; files and bodies are not."""
    if name in ("replication detach", "replication init", "replication replace"):
        return False
    if name in ("acl export", "acl import", "audit"):
        return False
    arguments = [one for one in command_of(name).params if one.param_type_name == "argument"]
    return bool(arguments) and arguments[0].nargs == 1 and not name.startswith("store ")


@pytest.mark.parametrize("name", [name for name in names() if names_something(name)])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_name_is_no_input(name: str, blank: str) -> None:
    finished = contrail(*name.split(), blank, *BASE.get(name, [])[1:])
    one_line(finished, ExitCode.UNUSABLE, "it is blank", f"contrail {name} --help")
