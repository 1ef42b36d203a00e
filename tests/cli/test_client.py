"""``contrail client``: connected clients, and a consumer's running info."""

from __future__ import annotations

from typing import Any

import pytest

from contrail import Message, Producer
from contrail.testing import LocalCluster, eventually
from tests.cli.diagnosed import Site
from tests.cli.running import contrail, done, one_line, valid_json


@pytest.mark.proves("cli.commands.client-top-bench")
def test_producers_and_consumers_are_listed_with_their_groups(cluster: LocalCluster) -> None:
    on = ("-n", cluster.namesrv)
    payer = Producer("payers", cluster.namesrv, instance_name="payer")
    with Site(cluster) as site, site.members((site.topic, "*")) as (member,), payer as producer:
        producer.send(Message(site.topic, b"paid"))
        found: dict[tuple[str, str], dict[str, Any]] = {}

        def are_known() -> bool:
            """Each broker gets the client's heartbeat at its own time."""
            rows = valid_json("client-list", "client", "list", *on)
            found.update({(row["kind"], row["group"]): row for row in rows})
            known_by = found["consumer", site.group]["brokers"]
            return ("producer", "payers") in found and len(known_by) == 2

        eventually(are_known, "both clients")
        assert "payers" in done("client", "list", *on).out
        assert found["producer", "payers"]["client_id"] == producer.client_id
        consumer = found["consumer", site.group]
        assert (consumer["client_id"], consumer["language"]) == (member.client_id, "PYTHON")
        assert consumer["brokers"] == ["broker-a", "broker-b"]
        assert consumer["release"].startswith("V5_")
        mine = valid_json("client-list", "client", "list", *on, "--group", site.group)
        assert mine == [consumer]
        shown = valid_json("client-show", "client", "show", producer.client_id, *on)
        assert (shown["produces_for"], shown["consumes_for"]) == (["payers"], [])


@pytest.mark.proves("cli.commands.client-top-bench")
def test_a_consumer_shows_its_queues_rates_and_settings(cluster: LocalCluster) -> None:
    with Site(cluster) as site, site.members((site.topic, "red || blue")) as (member,):
        site.send(6, tags="red")
        show = ("client", "show", member.client_id, "-n", cluster.namesrv)

        def consumed() -> int:
            (one,) = valid_json("client-show", *show)["consumes_for"]
            return sum(row["consumer_offset"] for row in one["queues"])

        eventually(lambda: consumed() == 6, "all six messages")
        (one,) = valid_json("client-show", *show)["consumes_for"]
        assert one["group"] == site.group and one["message_model"] == "CLUSTERING"
        expressions = {row["topic"]: row["expression"] for row in one["subscriptions"]}
        assert expressions[site.topic] == "red || blue"
        assert one["properties"]["PROP_CONSUMEORDERLY"] == "false"
        told = done(*show, "--stack").out
        assert f"{site.topic} broker-a:0" in told and "PROP_CONSUME_TYPE" in told
        assert "MainThread\n" in told and "tests/cli/test_client.py" in told


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    on = ("-n", cluster.namesrv)
    one_line(contrail("client", "list", *on, "--group", "nobody"), 5, "'nobody'")
    one_line(contrail("client", "show", "nobody", *on), 5, "'nobody'", "contrail client list")
    one_line(contrail("client", "list", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("client", "show", "x", "-n", "no-port"), 2, "no-port")
