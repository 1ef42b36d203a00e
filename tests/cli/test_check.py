"""``contrail check``: the exit codes, the line and the figures that monitors read."""

from __future__ import annotations

import pytest

from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster, eventually
from tests.cli.diagnosed import Site
from tests.cli.running import Finished, check_json, contrail

OK, WARNING, CRITICAL, UNKNOWN = range(4)


def checked(cluster: LocalCluster, what: str, *arguments: str) -> Finished:
    """Run a check; whatever it says, it is one line on standard output."""
    finished = contrail("check", what, "-n", cluster.namesrv, *arguments)
    assert finished.err == "" and finished.out.count("\n") == 1, finished
    return finished


@pytest.mark.proves("cli.commands.check")
def test_lag_is_judged_by_two_limits(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.commit(0)
        site.send(7)
        lag = ("lag", "--group", site.group)
        fine = checked(cluster, *lag, "--warn", "7", "--crit", "9")
        assert fine.code == OK
        assert fine.out == (f"LAG OK - lag: {site.group} 7 | '{site.group}'=7;7;9;0;\n")
        assert checked(cluster, *lag, "--warn", "6", "--crit", "9").code == WARNING
        late = checked(cluster, *lag, "--topic", site.topic, "--warn", "2", "--crit", "6")
        assert late.code == CRITICAL and late.out.startswith("LAG CRITICAL - ")
        everyone = checked(cluster, "lag", "--warn", "6", "--crit", "1000", "--json")
        check_json("check-lag", everyone.json)
        assert everyone.json["status"] == "WARNING"
        assert site.group in [one["name"] for one in everyone.json["metrics"]]


@pytest.mark.proves("cli.commands.check")
def test_dead_letters_are_counted(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        limits = ("--warn", "0", "--crit", "5")
        assert checked(cluster, "dlq", "--group", site.group, *limits).code == OK
        site.send(2)
        with site.members((site.topic, "*"), handler=lambda message: message.dead_letter()):
            dlq = ("dlq", "--group", site.group, *limits)
            eventually(lambda: "'=2;" in checked(cluster, *dlq).out, "both dead letters")
            assert checked(cluster, *dlq).code == WARNING
        all_groups = checked(cluster, "dlq", *limits, "--json")
        check_json("check-dlq", all_groups.json)
        assert all_groups.json["code"] == WARNING == all_groups.code


@pytest.mark.proves("cli.commands.check")
def test_disks_are_measured_in_percent(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Site(cluster) as site:
        site.send(8)
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.85)
    full = checked(cluster, "disk", "--warn", "80%", "--crit", "90%")
    assert full.code == WARNING
    assert "'broker-a'=85%;80;90;0; 'broker-b'=85%;80;90;0;" in full.out
    assert checked(cluster, "disk", "--warn", "85", "--crit", "90").code == OK
    critical = checked(cluster, "disk", "--warn", "50%", "--crit", "84.9%", "--json")
    check_json("check-disk", critical.json)
    assert (critical.code, critical.json["status"]) == (CRITICAL, "CRITICAL")


@pytest.mark.proves("cli.commands.every-command")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("lag", "--group", "nobody", "--warn", "1", "--crit", "2"), "'nobody'"),
        (("dlq", "--group", "nobody", "--warn", "1", "--crit", "2"), "'nobody'"),
        (("lag", "--topic", "nothing", "--warn", "1", "--crit", "2"), "'nothing'"),
        (("lag", "--warn", "1"), "--crit LIMIT"),
        (("lag", "--warn", "many", "--crit", "2"), "--warn 'many' is no limit"),
        (("disk", "--warn", "80", "--crit", "90k"), "--crit '90k' is no limit: write it as 80%"),
        (("disk", "--warn", "90%", "--crit", "80%"), "--warn 90% is above --crit 80%"),
        (("disk", "--warn", "98%", "--crit", "990%"), "--crit 990% is above 100%"),
    ],
)
def test_a_check_without_an_answer_is_unknown(
    cluster: LocalCluster, arguments: tuple[str, ...], words: str
) -> None:
    finished = checked(cluster, *arguments)
    assert finished.code == UNKNOWN
    assert f"{arguments[0].upper()} UNKNOWN - " in finished.out and words in finished.out


def test_a_cluster_that_is_away_is_unknown() -> None:
    for what in ("lag", "dlq", "disk"):
        finished = contrail("check", what, "-n", "127.0.0.1:1", "--warn", "1", "--crit", "2")
        assert finished.code == UNKNOWN and "127.0.0.1:1" in finished.out, finished
        assert finished.err == "" and finished.out.count("\n") == 1
