"""``contrail ctx``, and how a command finds its cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from contrail.cli.target import target
from contrail.testing import LocalCluster
from tests.cli.running import contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.contexts")
def test_the_first_context_is_in_use_and_another_can_be(cluster: LocalCluster) -> None:
    done("ctx", "add", "here", cluster.namesrv)
    done("ctx", "add", "there", "192.0.2.1:9876;192.0.2.2:9876")
    assert done("topic", "list").code == 0
    rows = valid_json("ctx-list", "ctx", "list")
    assert [(row["name"], row["current"]) for row in rows] == [("here", True), ("there", False)]
    done("ctx", "use", "there")
    assert valid_json("ctx-show", "ctx", "show")["namesrv"] == "192.0.2.1:9876;192.0.2.2:9876"
    assert done("topic", "list", "--ctx", "here").code == 0


@pytest.mark.proves("cli.commands.contexts")
def test_options_are_stronger_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done("ctx", "add", "one", "one:9876")
    assert target(None, None).namesrv == "one:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "two:9876")
    assert target(None, None).namesrv == "two:9876"
    assert target(None, "one").namesrv == "one:9876"
    assert target("three:9876", None).namesrv == "three:9876"


def test_a_context_is_forgotten() -> None:
    done("ctx", "add", "one", "one:9876")
    done("ctx", "remove", "one")
    assert valid_json("ctx-list", "ctx", "list") == []
    assert valid_json("ctx-show", "ctx", "show") is None
    assert target(None, None).namesrv == "127.0.0.1:9876"


def test_changes_are_printed_as_json() -> None:
    one = valid_json("ctx-add", "ctx", "add", "one", "one:9876")
    assert (one["namesrv"], one["current"]) == ("one:9876", True)
    assert valid_json("ctx-add", "ctx", "add", "two", "two:9876", "--tls")["current"] is False
    assert valid_json("ctx-use", "ctx", "use", "two")["tls"] is True
    removed = valid_json("ctx-remove", "ctx", "remove", "one")
    assert removed == {"name": "one", "current": "two", "removed": True}


def test_wrong_input_is_one_line() -> None:
    one_line(contrail("ctx", "use", "nowhere"), 5, "'nowhere'", "contrail ctx add nowhere")
    one_line(contrail("ctx", "remove", "nowhere"), 5, "'nowhere'")
    one_line(contrail("ctx", "add", "bad", "no-port"), 2, "no-port")
    one_line(contrail("topic", "list", "--ctx", "nowhere"), 5, "'nowhere'")
    one_line(contrail("topic", "list", "--ctx", "a", "-n", "b:1"), 2, "--namesrv and --ctx")


def test_a_file_that_holds_no_contexts_is_named(tmp_path: Path) -> None:
    (tmp_path / "contexts.json").write_text(json.dumps(["something", "else"]))
    one_line(contrail("topic", "list"), 2, "contexts.json", "mend or delete it")


def test_shells_that_add_at_once_lose_nothing() -> None:
    names = [f"c{number}" for number in range(12)]
    command = [sys.executable, "-m", "contrail.cli", "ctx", "add"]
    shells = [
        subprocess.Popen([*command, name, f"{name}:9876"], stdout=subprocess.DEVNULL)
        for name in names
    ]
    assert [shell.wait(60) for shell in shells] == [0] * len(names)
    assert {row["name"] for row in valid_json("ctx-list", "ctx", "list")} == set(names)
