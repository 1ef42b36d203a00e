"""The page about ``contrail mqadmin`` names every command of Apache's tool, as it is here."""

from __future__ import annotations

import re
from pathlib import Path

from contrail.cli.mqadmin.app import COMMANDS
from contrail.cli.mqadmin.options import Command
from contrail.cli.mqadmin.out_of_scope import OUT_OF_SCOPE
from contrail.protocol.codes import RequestCode

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli" / "mqadmin.md"


def rows(heading: str) -> dict[str, str]:
    """The rows of the table below a heading, by the command in their first cell."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    found = [line for line in text.splitlines() if line.startswith("| `")]
    return {line.split("`")[1]: line for line in found}


def options_cell(command: Command) -> str:
    """Required ones are bold, and so are those of which one is required."""
    needed = {*command.one_of, *command.any_of}
    cells = []
    for one in command.options:
        shown = f"`-{one.letter}` {one.long}" if one.letter else f"`--{one.long}`"
        cells.append(f"**{shown}**" if one.required or one.key in needed else shown)
    return ", ".join(cells)


def expected_row(command: Command) -> str:
    codes = ", ".join(str(code) for code in command.codes)
    return f"| `{command.name}` | {command.help} | {options_cell(command)} | {codes} |"


def test_every_command_of_ours_is_documented_with_its_options_and_requests() -> None:
    assert rows("Commands") == {name: expected_row(one) for name, one in COMMANDS.items()}


def test_every_command_that_is_not_ours_is_documented_with_the_reason() -> None:
    expected = {name: f"| `{name}` | {reason} |" for name, reason in OUT_OF_SCOPE.items()}
    assert rows("Not part of Contrail") == expected


def test_every_command_of_apache_is_ours_or_is_said_not_to_be() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n### Commands of Apache's tool\n")[2]
    apache = set(re.findall(r"`(\w+)`", text.partition("\n#")[0]))
    # It is in Apache's sources, but its tool does not offer it any more.
    assert apache | {"resetOffsetByTimeOld"} == set(COMMANDS) | set(OUT_OF_SCOPE)
    assert not set(COMMANDS) & set(OUT_OF_SCOPE)


def test_every_request_code_that_is_named_is_one() -> None:
    known = {code.value for code in RequestCode}
    wrong = {one.name: set(one.codes) - known for one in COMMANDS.values()}
    assert {name: codes for name, codes in wrong.items() if codes} == {}
