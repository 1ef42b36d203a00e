"""The root of the command line: exit codes, help, completion and output of all commands."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from contrail import Admin, __version__
from contrail.cli import app as program
from contrail.cli.exits import CommandFailed, ExitCode, NotFound, exit_code_of
from contrail.cli.output import print_rows
from contrail.errors import (
    BrokerRefused,
    CallTimedOut,
    ClientError,
    ConfigError,
    ContrailError,
    NameServerUnreachable,
    NoBroker,
    RouteMissing,
)
from contrail.protocol.codes import ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.cli.running import contrail, one_line


def caused(by: Exception) -> ContrailError:
    error = ClientError("broker-a does not answer")
    error.__cause__ = by
    return error


def refused(code: ResponseCode) -> ContrailError:
    return BrokerRefused("broker-a refused", code=code, remark="")


@pytest.mark.proves("cli.commands.exit-codes")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no such context"), ExitCode.NOT_FOUND),
        (RouteMissing("no route", topic="orders"), ExitCode.NOT_FOUND),
        (refused(ResponseCode.TOPIC_NOT_EXIST), ExitCode.NOT_FOUND),
        (refused(ResponseCode.NO_PERMISSION), ExitCode.FAILED),
        (NameServerUnreachable("nobody there"), ExitCode.UNREACHABLE),
        (NoBroker("nobody registered"), ExitCode.UNREACHABLE),
        (CallTimedOut("no answer"), ExitCode.UNREACHABLE),
        (caused(CallTimedOut("no answer")), ExitCode.UNREACHABLE),
        (CommandFailed("in part"), ExitCode.FAILED),
        (ConfigError("a bad setting"), ExitCode.UNUSABLE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_a_failure_has_the_exit_code_of_its_kind(error: ContrailError, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_an_interrupt_before_anything_began_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "run", interrupted)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == ExitCode.INTERRUPTED


def completed(words: str) -> list[str]:
    """The completions offered after these words."""
    environment = {
        **os.environ,
        "_CONTRAIL_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    command = [sys.executable, "-m", "contrail.cli"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.stdout.split()


@pytest.mark.proves("cli.commands.completion")
def test_commands_and_options_are_completed() -> None:
    assert {"topic", "group", "send", "dev"} <= set(completed("contrail "))
    assert completed("contrail topic sh") == ["shrink"]
    assert "--queues" in completed("contrail topic create --qu")


def test_topics_and_groups_are_completed(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("completed-topic")
        admin.create_group("completed-group")
    at = f"-n {cluster.namesrv}"

    def offers(words: str, *names: str) -> bool:
        found = completed(words)
        assert set(found) <= set(names)
        return found == list(names)

    # Brokers have a second to answer, and a busy machine may let it pass: then nothing is offered.
    eventually(
        lambda: offers(f"contrail topic describe {at} compl", "completed-topic"), "the topic"
    )
    eventually(
        lambda: "completed-topic" in completed(f"contrail check lag {at} --topic "), "topics"
    )
    eventually(lambda: offers(f"contrail group seek {at} compl", "completed-group"), "the group")
    assert completed("contrail topic describe -n 127.0.0.1:1 compl") == []
    assert completed("contrail topic describe -n nowhere compl") == []


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
def test_the_version_is_one_line() -> None:
    finished = contrail("--version")
    assert (finished.code, finished.out) == (0, f"contrail {__version__}\n")


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.parametrize(
    "words", ["", "help", "topic", "topic create", "store dump", "broker drain"]
)
def test_help_prints_the_same_as_the_flag(words: str) -> None:
    by_flag = contrail(*words.split(), "--help")
    by_word = contrail("help", *words.split())
    assert by_flag.code == by_word.code == 0
    assert by_flag.out == by_word.out and "Usage: " in by_word.out


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
def test_help_has_help_of_its_own() -> None:
    told = contrail("help", "help").out
    assert told.startswith("Usage: contrail help [COMMAND]...")
    assert "`contrail help topic create`" in told
    assert contrail("help", "help", "help").out == told


def test_help_of_an_unknown_command_is_one_line() -> None:
    one_line(contrail("help", "tpoic"), 2, "'tpoic'", "did you mean topic?")
    one_line(contrail("help", "topic", "craete"), 2, "craete")


def test_the_root_tells_of_help_and_version() -> None:
    text = contrail("--help").out
    assert "\n  help " in text and "--version" in text
    assert "Usage: contrail mqadmin topicRoute" in contrail("help", "mqadmin", "topicRoute").out


def test_an_unknown_command_names_the_nearest() -> None:
    finished = contrail("tpoic", "list")
    assert finished.code == 2
    assert "did you mean topic?" in finished.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "shrink", "orders", "--queues", "1", "--timeout", "99999999999999d"],
        ["broker", "drain", "broker-a", "--timeout", "99999999999999d"],
    ],
)
def test_a_time_that_is_too_long_is_one_line(arguments: list[str], cluster: LocalCluster) -> None:
    one_line(contrail(*arguments, "-n", cluster.namesrv), 2, "99999999999999d", "is too long")


def test_a_time_before_all_messages_is_refused(cluster: LocalCluster) -> None:
    for time in ("0001-01-01", "1969-12-31T23:59"):
        seek = ["group", "seek", "g", "--topic", "t", "--to", time, "--yes"]
        one_line(contrail(*seek, "-n", cluster.namesrv), 2, time, "before 1970")


def test_an_output_that_is_full_is_one_line(cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "contrail.cli", "topic", "list", "--internal"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "-n", cluster.namesrv], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("contrail: ") and done.stderr.count("\n") == 1


PROGRAM = [sys.executable, "-m", "contrail.cli"]


@pytest.mark.parametrize(
    "words", ["--help", "--version", "topic --help", "mqadmin", "broker config all", "version"]
)
def test_a_reader_that_has_left_is_no_failure(cluster: LocalCluster, words: str) -> None:
    environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv}
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [*PROGRAM, *words.split()], stdout=closed, stderr=subprocess.PIPE, env=environment
        )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_traceback(cluster: LocalCluster, streams: str) -> None:
    line = f'exec "$@" {streams}'
    command = ["sh", "-c", line, "sh", *PROGRAM, "broker", "status", "-n", cluster.namesrv]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("broker-a" in done.stdout) == (" >" not in f" {streams}")


@pytest.mark.parametrize("words", ["--help", "--version", "mqadmin"])
def test_a_full_disk_behind_the_first_words_is_one_line(words: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("contrail: ") and done.stderr.count("\n") == 1


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "is_table"), [("60", True), ("34", False)])
def test_a_table_too_wide_for_the_terminal_is_printed_row_by_row(
    monkeypatch: pytest.MonkeyPatch, columns: str, is_table: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    shown = _Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    rows = [
        {"broker": "broker-a", "address": "127.0.0.1:10911", "messages": 12_345},
        {"broker": "broker-b", "address": "127.0.0.1:10921", "messages": 7},
    ]
    print_rows(rows, ["broker", "address", "messages"], empty="none")
    lines = [line.split() for line in shown.getvalue().splitlines() if line.strip()]
    assert (["broker-a", "127.0.0.1:10911", "12,345"] in lines) == is_table
    assert (["address", "127.0.0.1:10921"] in lines) != is_table
    assert all(len(line) <= int(columns) for line in shown.getvalue().splitlines())
