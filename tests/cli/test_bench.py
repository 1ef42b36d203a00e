"""``contrail bench``: load on a live cluster, counted and timed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from contrail.testing import LocalCluster
from tests.cli.diagnosed import Site
from tests.cli.running import check_json, contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.client-top-bench")
@pytest.mark.parametrize(
    ("mode", "batch"), [("sync", "1"), ("async", "1"), ("oneway", "1"), ("sync", "10")]
)
def test_as_many_messages_are_sent_as_were_asked_for(
    cluster: LocalCluster, mode: str, batch: str
) -> None:
    with Site(cluster) as site:
        load = ("--count", "95", "--size", "100", "--concurrency", "4")
        result = valid_json(
            "bench-send",
            *("bench", "send", site.topic, "-n", cluster.namesrv, *load),
            *("--mode", mode, "--batch", batch),
        )
        assert (result["messages"], result["failures"], result["interrupted"]) == (95, 0, False)
        latency = result["latency"]
        assert 0 < latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
        if mode != "oneway":
            assert site.admin.topic_stats(site.topic).count == 95


def test_a_rate_is_kept_and_progress_goes_to_standard_error(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        load = ("--seconds", "1.3", "--rate", "40", "--threads", "2")
        finished = done("bench", "send", site.topic, "-n", cluster.namesrv, *load)
        assert "msg/s" in finished.err and "p99" in finished.err
        assert "latency p999 ms" in finished.out
        assert 1 <= site.admin.topic_stats(site.topic).count <= 54


@pytest.mark.proves("cli.commands.client-top-bench")
def test_consumption_is_measured_from_the_birth_of_messages(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(30)
        result = valid_json(
            "bench-consume",
            *("bench", "consume", site.topic, "-g", site.group, "-n", cluster.namesrv),
            *("--count", "30", "--seconds", "120", "--earliest"),
        )
        assert result["messages"] == 30
        assert 0 <= result["latency"]["p50_ms"] <= result["latency"]["max_ms"]


@pytest.mark.parametrize("what", ["send", "consume"])
def test_a_load_that_is_interrupted_tells_its_figures(cluster: LocalCluster, what: str) -> None:
    with Site(cluster) as site:
        site.send(5)
        group = () if what == "send" else ("-g", site.group, "--earliest")
        load = subprocess.Popen(
            [
                *(sys.executable, "-m", "contrail.cli", "bench", what, site.topic, *group),
                *("--seconds", "600", "--json", "-n", cluster.namesrv),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert load.stderr is not None
        # A line each second; figures above 0 mean that messages went through.
        told = (line for line in load.stderr if "msg/s" in line and " 0 msg/s" not in line)
        assert next(told, None) is not None, "it ended by itself"
        load.send_signal(signal.SIGINT)
        out, err = load.communicate(timeout=60)
    assert load.returncode == 130 and "Traceback" not in err
    result = json.loads(out)
    check_json(f"bench-{what}", result)
    assert result["interrupted"] and result["messages"] > 0 and result["seconds"] < 600


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    on = ("-n", cluster.namesrv)
    one_line(contrail("bench", "send", "nothing", *on), 5, "'nothing'")
    one_line(contrail("bench", "consume", "nothing", "-g", "g", *on), 5, "'nothing'")
    one_line(contrail("bench", "send", "t", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    batches = ("--batch", "5", "--mode", "oneway")
    one_line(contrail("bench", "send", "t", *on, *batches), 2, "--batch 5 with --mode oneway")
