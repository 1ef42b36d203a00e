"""``contrail bench``: load on a live cluster, counted and timed."""

from __future__ import annotations

import pytest

from contrail.testing import LocalCluster
from tests.cli.diagnosed import Site
from tests.cli.running import contrail, done, one_line, valid_json


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
        assert (result["messages"], result["failures"]) == (95, 0)
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


def test_consumption_is_measured_from_the_birth_of_messages(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(30)
        result = valid_json(
            "bench-consume",
            *("bench", "consume", site.topic, "-g", site.group, "-n", cluster.namesrv),
            *("--count", "30", "--seconds", "30", "--earliest"),
        )
        assert result["messages"] == 30
        assert 0 <= result["latency"]["p50_ms"] <= result["latency"]["max_ms"]


def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    on = ("-n", cluster.namesrv)
    one_line(contrail("bench", "send", "nothing", *on), 5, "'nothing'")
    one_line(contrail("bench", "consume", "nothing", "-g", "g", *on), 5, "'nothing'")
    one_line(contrail("bench", "send", "t", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    batches = ("--batch", "5", "--mode", "oneway")
    one_line(contrail("bench", "send", "t", *on, *batches), 2, "--batch 5 with --mode oneway")
