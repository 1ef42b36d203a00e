"""``contrail topic`` on a running cluster."""

from __future__ import annotations

import time
from typing import Any

import pytest

from contrail import Admin, Message, Producer, PullConsumer
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster, eventually
from tests.cli.running import contrail, done, one_line, valid_json

_SEND_TIMEOUT_MS = 30_000


def filled(cluster: LocalCluster, topic: str, queues: int, each: int = 1) -> None:
    """A topic with ``each`` messages in every queue of both brokers."""
    done("topic", "create", topic, "--queues", str(queues), "-n", cluster.namesrv)
    with Producer("filling", cluster.namesrv, send_timeout_ms=_SEND_TIMEOUT_MS) as producer:
        for broker in cluster.brokers:
            for queue_id in range(queues):
                for _ in range(each):
                    queue = MessageQueue(topic, broker.name, queue_id)
                    producer.send(Message(topic, b"filling"), queue=queue)


@pytest.mark.proves("cli.commands.topic")
def test_a_topic_has_the_same_queues_on_every_broker_or_is_on_one(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    told = valid_json(
        "topic-create",
        *["topic", "create", "alike", "--queues", "3", "--cluster", "DefaultCluster"],
        *["--type", "delay", "--perm", "r", *at],
    )
    row = {
        "read_queues": 3,
        "write_queues": 3,
        "perm": "r",
        "order": False,
        "attributes": {"message.type": "DELAY"},
    }
    assert told["brokers"] == [{"broker": "broker-a", **row}, {"broker": "broker-b", **row}]
    attribute = ["--attribute", "contrail.dedupe.window.ms=5"]
    done("topic", "create", "alone", "--broker", "broker-b", *attribute, *at)
    told = valid_json("topic-route", "topic", "route", "alone", *at)
    assert [(one["broker"], one["read_queues"]) for one in told["brokers"]] == [("broker-b", 8)]


def test_creating_a_topic_again_changes_the_given_settings_and_keeps_the_rest(
    cluster: LocalCluster,
) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "again", "--queues", "2", "--perm", "r", "--broker", "broker-a", *at)
    done("topic", "create", "again", "--order", *at)
    told = valid_json("topic-describe", "topic", "describe", "again", *at)
    rows = {row["broker"]: row for row in told["brokers"]}
    assert (rows["broker-a"]["write_queues"], rows["broker-a"]["perm"]) == (2, "r")
    assert (rows["broker-b"]["write_queues"], rows["broker-b"]["perm"]) == (8, "rw")
    assert told["order_config"] == {"broker-a": 2, "broker-b": 8}
    refused = contrail("topic", "create", "again", "--queues", "1", *at)
    one_line(refused, 2, "has 2 queues on broker-a", "contrail topic shrink again --queues 1")


def test_topics_are_listed_with_kinds_and_counts(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "counted", 2, each=3)
    rows = {row["topic"]: row for row in valid_json("topic-list", "topic", "list", "--stats", *at)}
    assert (rows["counted"]["queues"], rows["counted"]["messages"]) == (4, 12)
    assert rows["counted"]["last_store_timestamp_ms"] > 0
    names = done("topic", "list", *at).out.split()
    assert "counted" in names and "TBW102" not in names
    kinds = {
        row["topic"]: row["kind"]
        for row in valid_json("topic-list", "topic", "list", "--internal", *at)
    }
    assert (kinds["counted"], kinds["TBW102"]) == ("normal", "system")
    assert "counted" in done("topic", "list", "--stats", "--cluster", "DefaultCluster", *at).out


@pytest.mark.proves("cli.commands.topic")
def test_describe_shows_brokers_queues_and_groups(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "described", 1, each=2)
    with Admin(cluster.namesrv) as admin:
        admin.create_group("describers")
        admin.commit_offset("describers", MessageQueue("described", "broker-a", 0), 1)
    told = valid_json("topic-describe", "topic", "describe", "described", *at)
    assert told["messages"] == 4 and told["groups"] == ["describers"]
    assert [row["queue_offset_max"] for row in told["queues"]] == [2, 2]
    text = done("topic", "describe", "described", *at).out
    assert "describers" in text and "queue_offset_max" in text and "broker-b" in text


@pytest.mark.proves("cli.commands.topic")
def test_a_topic_grows_and_never_shrinks_by_growing(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "grown", "--queues", "2", "--order", *at)
    finished = done("topic", "grow", "grown", "--queues", "5", "--broker", "broker-a", *at)
    assert "broker-a: 2 -> 5 queues" in finished.out and "other queues" in finished.err
    told = valid_json("topic-grow", "topic", "grow", "grown", "--queues", "6", *at)
    assert [row["write_queues_before"] for row in told["brokers"]] == [5, 2]
    with Admin(cluster.namesrv) as admin:
        assert len(admin.queues("grown")) == 12
    one_line(contrail("topic", "grow", "grown", "--queues", "3", *at), 2, "topic shrink grown")


@pytest.mark.proves("cli.commands.topic")
def test_a_topic_shrinks_in_two_steps_and_only_when_it_is_consumed(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "shrunk", 3, each=2)
    done("group", "create", "shrinkers", *at)
    done("group", "seek", "shrinkers", "--to", "earliest", "--topic", "shrunk", "--yes", *at)
    planned = done("topic", "shrink", "shrunk", "--queues", "1", "--dry-run", *at).err
    assert "3 -> 1 queues to write" in planned and "2 messages left (group shrinkers)" in planned
    shrinking = ["topic", "shrink", "shrunk", "--queues", "1", "--dry-run", *at]
    assert "3 -> 1 queues to write" in "".join(valid_json("dry-run", *shrinking)["plan"])
    shrink = ["topic", "shrink", "shrunk", "--queues", "1", "--yes", *at]
    told = valid_json("topic-shrink", *shrink)
    assert not told["done"] and len(told["left"]) == 4
    assert [(one["read_queues"], one["write_queues"]) for one in told["brokers"]] == [(3, 1)] * 2
    assert "2 messages left" in done(*shrink).out
    late = contrail(*shrink, "--wait", "--timeout", "0s")
    assert late.code == 1 and "2 messages left (group shrinkers)" in late.err.splitlines()[-1]
    done("group", "seek", "shrinkers", "--to", "latest", "--topic", "shrunk", "--yes", *at)
    assert "has 1 queues" in done(*shrink, "--wait", "--quiet", "1s").out
    with Admin(cluster.namesrv) as admin:
        assert len(admin.queues("shrunk")) == 2
    one_line(contrail(*shrink), 2, "has 1 queues or fewer already")


def test_messages_without_a_consuming_group_are_given_up_only_on_request(
    cluster: LocalCluster,
) -> None:
    filled(cluster, "abandoned", 2)
    shrink = ["topic", "shrink", "abandoned", "--queues", "1", "--yes", "-n", cluster.namesrv]
    assert "no group consumes the topic" in done(*shrink).out
    assert not valid_json("topic-shrink", *shrink)["done"]
    assert valid_json("topic-shrink", *shrink, "--abandon", "--quiet", "0s")["done"]


def test_unread_messages_of_a_group_count_although_its_members_read_other_topics(
    cluster: LocalCluster,
) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "turned", 2, each=3)
    done("topic", "create", "turned_to", "--queues", "1", *at)
    done("group", "create", "turners", *at)
    with Admin(cluster.namesrv) as admin, PullConsumer("turners", cluster.namesrv) as consumer:
        for name in ("broker-a", "broker-b"):
            admin.commit_offset("turners", MessageQueue("turned", name, 0), 3)
        admin.commit_offset("turners", MessageQueue("turned", "broker-a", 1), 1)
        consumer.subscribe("turned_to")
        eventually(lambda: "turned_to" in admin.group_connections("turners").subscriptions)
        assert admin.lag("turners", "turned").queues == ()
        shrink = ["topic", "shrink", "turned", "--queues", "1", "--yes", "--quiet", "0s", *at]
        for _ in range(2):
            told = valid_json("topic-shrink", *shrink)
            # Without an offset nothing is consumed.
            found = [(one["group"], one["broker"], one["messages"]) for one in told["left"]]
            assert found == [("turners", "broker-a", 2), ("turners", "broker-b", 3)]
            assert not told["done"]
        for name in ("broker-a", "broker-b"):
            admin.commit_offset("turners", MessageQueue("turned", name, 1), 3)
        assert valid_json("topic-shrink", *shrink)["done"]


def test_the_second_step_waits_until_nothing_arrives(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "stale", "--queues", "2", "--broker", "broker-a", *at)
    queue = MessageQueue("stale", "broker-a", 1)
    shrink = ["topic", "shrink", "stale", "--queues", "1", "--yes", "--abandon", *at]
    assert not valid_json("topic-shrink", *shrink)["done"]
    with Producer("stale-test", cluster.namesrv) as producer:
        # A producer that has not noticed sends between two looks at the queue.
        asked = Admin.queue_offset_max

        def late(self: Admin, asked_of: MessageQueue) -> int:
            reach = asked(self, asked_of)
            producer.send(Message("stale", b"late"), queue=queue)
            return reach

        with monkeypatch.context() as patched:
            patched.setattr(Admin, "queue_offset_max", late)
            ended = contrail(*shrink, "--quiet", "1s")
    assert ended.code == 1 and "messages arrived within 1 s" in ended.err
    with Admin(cluster.namesrv) as admin:
        assert len(admin.queues("stale")) == 2
    begun_s = time.monotonic()
    assert valid_json("topic-shrink", *shrink, "--quiet", "1s")["done"]
    assert time.monotonic() - begun_s >= 1.0


def test_queues_may_be_read_again_if_a_message_came_as_they_were_taken_away(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["-n", cluster.namesrv]
    done("topic", "create", "raced", "--queues", "2", "--broker", "broker-a", *at)
    queue = MessageQueue("raced", "broker-a", 1)
    shrink = ["topic", "shrink", "raced", "--queues", "1", "--yes", "--quiet", "0s", *at]
    assert not valid_json("topic-shrink", *shrink)["done"]
    updated = Admin.update_topic
    with Producer("raced-test", cluster.namesrv) as producer, monkeypatch.context() as patched:

        def raced(self: Admin, topic: str, **change: Any) -> object:
            if change.get("read_queues") == 1:
                producer.send(Message("raced", b"late"), queue=queue)
            return updated(self, topic, **change)

        patched.setattr(Admin, "update_topic", raced)
        ended = done(*shrink)
    assert "may be read again" in ended.err
    assert "queue 1 on broker-a: 1 messages left" in ended.out
    with Admin(cluster.namesrv) as admin:
        assert len(admin.queues("raced")) == 2


@pytest.mark.proves("cli.commands.topic")
def test_deleting_shows_the_loss_and_asks(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "doomed", 2)
    with Admin(cluster.namesrv) as admin:
        admin.create_group("mourners")
        admin.commit_offset("mourners", MessageQueue("doomed", "broker-a", 0), 1)
    planned = done("topic", "delete", "doomed", "--dry-run", *at).err
    assert "4 messages in 4 queues are lost" in planned and "group mourners" in planned
    plan = valid_json("dry-run", "topic", "delete", "doomed", "--dry-run", *at)["plan"]
    assert "4 messages in 4 queues are lost" in plan[0]
    refused = contrail("topic", "delete", "doomed", *at)
    assert refused.code == 2 and "say --yes" in refused.err
    deleted = valid_json("topic-delete", "topic", "delete", "doomed", "--yes", *at)
    assert deleted == {"topic": "doomed", "brokers": ["broker-a", "broker-b"], "deleted": True}
    one_line(contrail("topic", "describe", "doomed", *at), 5, "contrail topic create doomed")


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    for command in (
        ["describe", "nowhere"],
        ["route", "nowhere"],
        ["grow", "nowhere", "--queues", "9"],
        ["shrink", "nowhere", "--queues", "1", "--yes"],
        ["delete", "nowhere", "--yes"],
    ):
        is_taken_away = command[0] in ("shrink", "delete")
        hint = "contrail topic list" if is_taken_away else "contrail topic create nowhere"
        one_line(contrail("topic", *command, *at), 5, "'nowhere'", hint)
        one_line(contrail("topic", *command, "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("topic", "list", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("topic", "list", "--cluster", "none", *at), 5, "'none'", "DefaultCluster")
    one_line(contrail("topic", "create", "a b", *at), 2, "'a b'")
    for verb in ("create", "grow"):
        many = contrail("topic", verb, "x", "--queues", "99999999999", *at)
        one_line(many, 2, "--queues 99999999999", "65,535")
    one_line(contrail("topic", "create", "x", "--perm", "all", *at), 2, "--perm 'all'")
    one_line(contrail("topic", "create", "x", "--type", "odd", *at), 2, "--type 'odd'", "FIFO")
    one_line(contrail("topic", "create", "x", "--attribute", "odd", *at), 2, "NAME=VALUE")
    one_line(contrail("topic", "create", "x", "--attribute", "odd=1", *at), 1, "odd")
    one_line(contrail("topic", "create", "x", "--broker", "gone", *at), 5, "'gone'")
    one_line(contrail("topic", "create", "x", "--broker", "a", "--cluster", "b", *at), 2, "one of")


def test_a_duration_that_is_none_is_named(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    shrink = ["topic", "shrink", "x", "--queues", "1", "--yes", *at]
    one_line(contrail(*shrink, "--timeout", "soon"), 2, "--timeout 'soon'")
    one_line(contrail(*shrink, "--quiet", "soon"), 2, "--quiet 'soon'")
    done("topic", "create", "here", "--broker", "broker-a", "--queues", "2", *at)
    elsewhere = contrail("topic", "grow", "here", "--queues", "3", "--broker", "broker-b", *at)
    one_line(elsewhere, 5, "is not on broker-b", "contrail topic route here")
