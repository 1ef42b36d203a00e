"""``contrail broker status`` and ``config`` on running brokers."""

from __future__ import annotations

import pytest

from contrail.testing import LocalCluster
from tests.cli.running import contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.status")
def test_one_broker_or_all_are_shown(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    rows = valid_json("broker-status", "broker", "status", "all", *at)
    assert [row["broker"] for row in rows] == ["broker-a", "broker-b"]
    assert rows[0]["values"]["brokerVersionDesc"] == rows[0]["version"]
    (by_address,) = valid_json("broker-status", "broker", "status", rows[1]["address"], *at)
    assert by_address["broker"] == "broker-b"
    text = done("broker", "status", "broker-a", *at).out
    assert "takes messages" in text and "putMessageTimesTotal" in text
    assert "broker-b" in done("broker", "status", *at).out


def test_settings_are_shown_with_when_a_change_counts(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    rows = {
        row["setting"]: row
        for row in valid_json("broker-config", "broker", "config", "broker-a", *at)
    }
    assert rows["brokerPermission"]["applies"] == "at once"
    assert rows["listenPort"]["applies"] == "after a restart"
    assert rows["listenPort"]["value"] == str(cluster.brokers[0].port)
    text = done("broker", "config", "broker-a", "traceOn", *at).out
    assert "traceOn" in text and "listenPort" not in text


@pytest.mark.proves("cli.commands.status")
def test_a_setting_is_changed_after_the_plan_was_agreed_to(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    change = ["broker", "config", "all", "--set", "shortPollingTimeMills=777", *at]
    planned = done(*change, "--dry-run").err
    assert "broker-b: shortPollingTimeMills 1000 -> 777" in planned
    plan = valid_json("dry-run", *change, "--dry-run")["plan"]
    assert "broker-b: shortPollingTimeMills 1000 -> 777" in "".join(plan)
    assert contrail(*change).code == 2
    rows = valid_json("broker-config", *change, "--yes")
    told = [(row["broker"], row["before"], row["value"]) for row in rows]
    assert told == [("broker-a", "1000", "777"), ("broker-b", "1000", "777")]
    (row,) = valid_json(
        "broker-config", "broker", "config", "broker-b", "shortPollingTimeMills", *at
    )
    assert (row["value"], row["before"]) == ("777", None)


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    for command in ("status", "config"):
        one_line(contrail("broker", command, "broker-x", *at), 5, "'broker-x'", "broker-a")
        one_line(contrail("broker", command, "broker-a", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
        one_line(contrail("broker", command, "--ctx", "nowhere", "broker-a"), 5, "'nowhere'")
    config = ["broker", "config", "broker-a", "--yes", *at]
    one_line(contrail(*config, "--set", "listenPort=1"), 1, "NO_PERMISSION", "restart")
    one_line(contrail(*config, "--set", "brokerPermission=99"), 1, "from 0 to 7")
    one_line(contrail(*config, "--set", "traceOnn=true"), 5, "did you mean traceOn?")
    one_line(contrail(*config, "--set", "traceOn"), 2, "NAME=VALUE")
    one_line(contrail("broker", "config", "broker-a", "odd", *at), 5, "no setting 'odd'")


def test_a_flag_of_the_broker_to_be_run_is_not_lost_before_a_command() -> None:
    misplaced = contrail("broker", "-n", "127.0.0.1:1", "status", "all")
    one_line(misplaced, 2, "--namesrv must stand behind `contrail broker status`")
