"""``contrail cluster`` on a running cluster."""

from __future__ import annotations

import pytest

from contrail import Admin, Message, Producer, __version__
from contrail.cli.broker_figures import print_figures
from contrail.client.admin_values import BrokerAddress
from contrail.insight.brokers import figures_of, totals_of
from contrail.testing import LocalCluster
from contrail.testing.cluster import free_port
from tests.cli.running import check_json, contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.status", "cli.small-rules.server-start")
def test_every_broker_is_shown_with_its_figures_and_there_are_totals(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "figures", "--queues", "1", *at)
    with Producer("figures", cluster.namesrv) as producer:
        for _ in range(4):
            producer.send(Message("figures", b"one"))
    told = valid_json("cluster-status", "cluster", "status", *at)
    rows = {row["broker"]: row for row in told["brokers"]}
    assert rows["broker-a"]["address"] == cluster.brokers[0].address
    assert rows["broker-a"]["perm"] == "rw" and rows["broker-a"]["takes_messages"]
    assert 0 < rows["broker-a"]["disk_used_ratio"] < 1
    assert (told["totals"]["brokers"], told["totals"]["put_count_today"]) == (2, 4)
    assert told["name_servers"] == [cluster.namesrv]
    versions = (rows["broker-a"]["contrail_version"], rows["broker-a"]["version"])
    assert versions == (__version__, "V5_3_3")
    text = done("cluster", "status", "--cluster", "DefaultCluster", *at).out
    assert "broker-b" in text and "total" in text and "2 brokers" in text
    assert f"contrail {__version__} (V5_3_3)" in text


def test_a_broker_of_apaches_shows_its_own_version_alone(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(cluster.namesrv) as admin:
        row = admin.run(figures_of, admin.brokers()[0], 0)
    print_figures([{**row, "contrail_version": None}])
    assert "V5_3_3" in (out := capsys.readouterr().out) and "(V5_3_3)" not in out


def test_a_broker_that_does_not_answer_is_shown_all_the_same(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = BrokerAddress("DefaultCluster", "broker-z", 0, f"127.0.0.1:{free_port()}")
    with Admin(cluster.namesrv) as admin:
        row = admin.run(figures_of, gone, 0)
    assert gone.address in row["error"] and row["perm"] is None
    totals = totals_of([row])
    check_json("cluster-status", {"name_servers": [], "brokers": [row], "totals": totals})
    assert totals["unreachable"] == 1
    print_figures([row], totals)
    assert "does not answer" in capsys.readouterr().out


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    unknown = contrail("cluster", "status", "--cluster", "none", "-n", cluster.namesrv)
    one_line(unknown, 5, "'none'", "DefaultCluster")
    one_line(contrail("cluster", "status", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("cluster", "status", "--ctx", "nowhere"), 5, "'nowhere'")
