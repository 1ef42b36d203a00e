"""Usage errors: one line that names the input, the allowed values and the help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import contrail as package
from contrail.cli.app import COMMANDS
from contrail.cli.mqadmin.app import COMMANDS as MQADMIN_COMMANDS
from contrail.cli.root import LazyGroup, app
from contrail.cli.words import PHRASES, in_words
from tests.cli.running import check_json, contrail, one_line

FLAG = "--no-such-option"


def walked(words: list[str], command: Any) -> Iterator[list[str]]:
    yield words
    for name, child in getattr(command, "commands", {}).items():
        yield from walked([*words, name], child)


def every_command() -> list[list[str]]:
    root = typer.main.get_command(app)
    assert isinstance(root, LazyGroup)
    found = [line for name in COMMANDS for line in walked([name], root.load_command(name))]
    return [*found, *(["mqadmin", name] for name in MQADMIN_COMMANDS)]


EVERY = every_command()
CHECKS = [words for words in EVERY if words[0] == "check"]


def test_all_commands_are_looked_at() -> None:
    assert len(EVERY) > 120 and ["group", "seek"] in EVERY
    assert CHECKS == [["check"], ["check", "lag"], ["check", "dlq"], ["check", "disk"]]
    assert {words[0] for words in EVERY} == COMMANDS.keys()


@pytest.mark.proves("cli.commands.every-command")
@pytest.mark.parametrize("words", [one for one in EVERY if one not in CHECKS], ids=" ".join)
def test_an_unknown_option_is_one_line(words: list[str]) -> None:
    finished = contrail(*words, FLAG)
    one_line(finished, 2, FLAG, "`contrail " + words[0])
    assert finished.out == ""


@pytest.mark.parametrize("words", CHECKS, ids=" ".join)
def test_a_check_that_is_written_wrongly_is_unknown(words: list[str]) -> None:
    finished = contrail(*words, FLAG)
    assert (finished.code, finished.err) == (3, "")
    assert finished.out == (
        f"{words[-1].upper()} UNKNOWN - there is no option {FLAG}; "
        f"see `contrail {' '.join(words)} --help`\n"
    )


def test_a_check_that_does_not_exist_is_unknown() -> None:
    finished = contrail("check", "lga", "--warn", "1")
    assert (finished.code, finished.err, finished.out.count("\n")) == (3, "", 1)
    assert "'lga'" in finished.out and "'lag'" in finished.out
    assert contrail("check").code == 3


def test_a_check_for_programs_tells_its_mistake_as_json() -> None:
    finished = contrail("check", "lag", "--json", FLAG)
    check_json("check-lag", finished.json)
    assert (finished.code, finished.json["status"]) == (3, "UNKNOWN")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("topic create t --queues 0", "--queues 0: it must be 1 or more"),
        ("topic create t --queues many", "--queues many: give a whole number"),
        ("topic create t --queues", "'--queues' requires an argument"),
        ("topic create", "TOPIC is missing (the topic's name)"),
        ("topic create t --queue 3", "there is no option --queue; did you mean --queues?"),
        ("bench send t --seconds 0", "--seconds 0: it must be 0.1 or more"),
        ("bench send t --seconds x", "--seconds x: give a number"),
        ("bench send t --threads 10001", "--concurrency 10001: it must be 10000 or less"),
        ("bench send t --mode {x}", "--mode {x}: '{x}' is not one of 'sync', 'async', 'oneway'"),
        ("group seek g", "--to is missing (earliest, latest, a time"),
        ("topic list --json=3", "'--json' does not take a value"),
    ],
)
def test_a_refused_value_is_named_with_the_allowed_ones(line: str, told: str) -> None:
    words = line.split()
    one_line(contrail(*words), 2, told, f"`contrail {words[0]} {words[1]} --help`")


def test_words_too_many_and_unknown_commands_are_one_line() -> None:
    one_line(contrail("topic", "list", "extra"), 2, "extra", "`contrail topic list --help`")
    one_line(contrail("topic", "creat"), 2, "'creat'", "'create'", "`contrail topic --help`")
    one_line(contrail("zzz"), 2, "there is no command 'zzz'; see `contrail --help`")
    one_line(contrail("tpoic"), 2, "'tpoic'; did you mean topic? See `contrail --help`")
    one_line(contrail(FLAG), 2, f"there is no option {FLAG}; see `contrail --help`")
    one_line(contrail("a\nb"), 2)
    one_line(contrail("topic", "list", "--a\nb"), 2)


def test_a_bare_group_shows_its_help() -> None:
    finished = contrail("topic")
    assert (finished.code, finished.err) == (2, "")
    assert "Usage: contrail topic" in finished.out
    assert contrail("topic", "--help").code == 0


# Errors of the client and the jobs.


def sources() -> str:
    """The code that is spoken of, with its texts in one piece."""
    root = Path(package.__file__).parent
    files = [*(root / "client").rglob("*.py"), *(root / "pipeline").rglob("*.py")]
    return "\n".join(re.sub(r'"\n\s+f?"', "", one.read_text(encoding="utf-8")) for one in files)


def test_each_phrase_is_one_that_the_rooms_below_say() -> None:
    text = sources()
    assert [phrase for phrase in PHRASES if phrase not in text] == []


def test_a_phrase_for_programs_becomes_one_for_the_command_line() -> None:
    told = in_words("no NameServer answered: x. Start one, or correct namesrv=")
    assert told == "no NameServer answered: x. Start one, or name another by --namesrv or --ctx"
    assert in_words("as it is") == "as it is"


def test_an_unreachable_cluster_is_reported_in_terms_of_options() -> None:
    finished = contrail("topic", "list", "-n", "127.0.0.1:1")
    one_line(finished, 4, "127.0.0.1:1", "--namesrv")
    assert "namesrv=" not in finished.err
    checked = contrail("check", "lag", "--warn", "1", "--crit", "2", "-n", "127.0.0.1:1")
    assert "--namesrv" in checked.out and "namesrv=" not in checked.out


def test_an_invalid_address_is_reported_with_its_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one_line(contrail("topic", "list", "-n", "nowhere"), 2, "--namesrv: 'nowhere' is no address")
    one_line(contrail("topic", "list", "-n", ";"), 2, "--namesrv ';' has no address")
    contexts = Path(tmp_path / "contexts.json")
    text = '{"current": "prod", "contexts": {"prod": {"namesrv": "nowhere"}}}'
    contexts.write_text(text, encoding="utf-8")
    one_line(contrail("topic", "list"), 2, "context prod: 'nowhere' is no address")
    monkeypatch.setenv("NAMESRV_ADDR", "elsewhere")
    one_line(contrail("topic", "list"), 2, "NAMESRV_ADDR: 'elsewhere' is no address")
