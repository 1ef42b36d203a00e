"""``contrail group`` on a running cluster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from contrail import Admin, Message, Producer, PushConsumer
from contrail.errors import ClientError, SomeFailed
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster, eventually
from tests.cli.running import check_json, contrail, done, one_line, valid_json

_SEND_TIMEOUT_MS = 30_000


def filled(cluster: LocalCluster, topic: str, each: int = 3) -> None:
    """A topic of one queue on each of two brokers."""
    done("topic", "create", topic, "--queues", "1", "-n", cluster.namesrv)
    with Producer("filling", cluster.namesrv, send_timeout_ms=_SEND_TIMEOUT_MS) as producer:
        for broker in cluster.brokers:
            for _ in range(each):
                queue = MessageQueue(topic, broker.name, 0)
                producer.send(Message(topic, b"filling", tags="a"), queue=queue)


def places(cluster: LocalCluster, group: str, topic: str) -> list[int | None]:
    with Admin(cluster.namesrv) as admin:
        return list(admin.committed_offsets(group, topic).values())


def test_a_group_is_created_and_changed_by_options(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    made = valid_json("group-create", "group", "create", "made", "--retry-max", "3", *at)
    assert [one["retry_count_max"] for one in made["settings"].values()] == [3, 3]
    changed = ["group", "create", "made", "--orderly", "--no-consume", "--no-broadcast"]
    told = valid_json("group-create", *changed, "--broker", "broker-b", *at)["settings"]
    assert told.keys() == {"broker-b"}
    assert told["broker-b"]["retry_count_max"] == 3
    assert told["broker-b"]["consume_message_orderly"] and not told["broker-b"]["consume_enable"]
    described = valid_json("group-describe", "group", "describe", "made", *at)
    assert described["settings_differ"] and described["members"] == []
    assert "different settings" in done("group", "describe", "made", *at).out


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_groups_are_listed_with_members_and_lag(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "listed")
    done("group", "create", "listed_offline", *at)
    done("group", "seek", "listed_offline", "--to", "earliest", "--topic", "listed", "--yes", *at)
    rows = {row["group"]: row for row in valid_json("group-list", "group", "list", *at)}
    assert rows["listed_offline"]["lag"] == 6 and rows["listed_offline"]["members"] == 0
    assert rows["listed_offline"]["topics"] == ["listed"]
    assert "CID_RMQ_SYS_TRANS" not in rows
    assert "listed_offline" in done("group", "list", "--cluster", "DefaultCluster", *at).out
    assert "CID_RMQ_SYS_TRANS" in done("group", "list", "--internal", *at).out


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_members_subscriptions_and_disagreements_are_shown(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "argued")
    with (
        PushConsumer("arguing", cluster.namesrv, instance_name="one") as one,
        PushConsumer("arguing", cluster.namesrv, instance_name="two") as two,
    ):
        for consumer, expression in ((one, "a"), (two, "b")):
            consumer.on_message(lambda message: None)
            consumer.subscribe("argued", expression)
        told: dict[str, object] = {}

        def is_told() -> bool:
            told.update(valid_json("group-describe", "group", "describe", "arguing", *at))
            return bool(told["disagreements"]) and any(
                queue["client_id"]
                for queue in told["queues"]  # type: ignore[attr-defined]
            )

        eventually(is_told)
        assert len(told["members"]) == 2  # type: ignore[arg-type]
        assert told["model"] == "CLUSTERING"
        (argued,) = [row for row in told["disagreements"] if row["topic"] == "argued"]  # type: ignore[attr-defined]
        assert sorted(member["expression"] for member in argued["members"]) == ["a", "b"]
        text = done("group", "describe", "arguing", *at).out
        assert "members disagree about topic argued" in text and "argued" in text
        refused = contrail("group", "delete", "arguing", "--yes", *at)
        one_line(refused, 1, "2 members on line", "--force")


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_lag_is_shown_by_queue(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "lagging")
    done("group", "create", "laggards", *at)
    done("group", "seek", "laggards", "--to", "earliest", "--topic", "lagging", "--yes", *at)
    told = valid_json("group-lag", "group", "lag", "laggards", *at)
    assert told["lag"] == 6
    assert [(row["broker"], row["lag"]) for row in told["queues"]] == [
        ("broker-a", 3),
        ("broker-b", 3),
    ]
    assert "lag of laggards: 6" in done("group", "lag", "laggards", "--topic", "lagging", *at).out


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_seek_goes_to_both_ends_a_time_and_an_offset(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "sought")
    done("group", "create", "seekers", *at)
    seek = ["group", "seek", "seekers", "--topic", "sought", *at]
    told = valid_json("group-seek", *seek, "--to", "latest", "--yes")
    assert [(row["consumer_offset_before"], row["consumer_offset"]) for row in told["queues"]] == [
        (None, 3),
        (None, 3),
    ]
    planned = done(*seek, "--to", "earliest", "--dry-run").err
    assert "nobody on line" in planned and "sought broker-a queue 0: 3 -> 0" in planned
    plan = valid_json("group-seek-plan", *seek, "--to", "earliest", "--dry-run")
    assert (plan["group"], plan["to"]) == ("seekers", "earliest")
    assert [(row["consumer_offset_before"], row["consumer_offset"]) for row in plan["queues"]] == [
        (3, 0),
        (3, 0),
    ]
    assert places(cluster, "seekers", "sought") == [3, 3]
    done("group", "seek", "seekers", "--to", "earliest", "--yes", *at)
    assert places(cluster, "seekers", "sought") == [0, 0]
    done(*seek, "--to", "2", "--queue", "broker-b:0", "--yes")
    assert places(cluster, "seekers", "sought") == [0, 2]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    done(*seek, "--to", tomorrow, "--yes")
    assert places(cluster, "seekers", "sought") == [3, 3]
    done(*seek, "--to", "@2020-01-01T00:00", "--yes")
    assert places(cluster, "seekers", "sought") == [0, 0]


def test_seek_moves_a_group_whose_members_are_on_line(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "replayed")
    seen: list[bytes] = []
    with PushConsumer("replaying", cluster.namesrv, consume_from_where="first") as consumer:
        consumer.on_message(lambda message: seen.append(message.body))
        consumer.subscribe("replayed")
        # A message may come more than once.
        eventually(lambda: len(seen) >= 6)
        before = len(seen)
        done("group", "seek", "replaying", "--to", "earliest", "--topic", "replayed", "--yes", *at)
        eventually(lambda: len(seen) >= before + 6)


def test_seek_shows_only_queues_that_brokers_moved(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "half")
    done("group", "create", "halves", *at)
    seek = ["group", "seek", "halves", "--topic", "half", "--yes", *at]
    done(*seek, "--to", "latest")
    first = MessageQueue("half", "broker-a", 0)

    def pass_over(self: Admin, group: str, topic: str) -> dict[MessageQueue, int]:
        return {first: 0}

    def refuse(self: Admin, *place: object) -> dict[MessageQueue, int]:
        raise ClientError("the group has members")

    monkeypatch.setattr(Admin, "reset_to_begin", pass_over)
    with monkeypatch.context() as on_line:
        on_line.setattr(Admin, "reset_to_offset", refuse)
        told = contrail(*seek, "--to", "earliest", "--json")
        one_line(told, 1, "1 of 2 queues", "half broker-b:0", "has members")
        check_json("group-seek", told.json)
        rows = told.json["queues"]
        assert [(row["consumer_offset"], row["moved"]) for row in rows] == [(0, True), (3, False)]
        assert "broker-b" not in contrail(*seek, "--to", "earliest").out
    # No member is online: queues that the broker skipped are moved one by one.
    done(*seek, "--to", "earliest")
    assert places(cluster, "halves", "half") == [3, 0]


def test_seek_prints_the_moved_queues_when_a_broker_fails(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["-n", cluster.namesrv]
    done("group", "create", "stopped", *at)
    for topic in ("stop1", "stop2"):
        filled(cluster, topic)
        done("group", "seek", "stopped", "--topic", topic, "--to", "latest", "--yes", *at)
    begin = Admin.reset_to_begin

    def fail_later(self: Admin, group: str, topic: str) -> dict[MessageQueue, int]:
        moved = begin(self, group, topic)
        if topic == "stop1":
            return moved
        partial = {queue: place for queue, place in moved.items() if queue.broker_name[-1] == "a"}
        raise SomeFailed("broker-b is gone", failures={}, partial=partial)

    monkeypatch.setattr(Admin, "reset_to_begin", fail_later)
    told = contrail("group", "seek", "stopped", "--to", "earliest", "--yes", "--json", *at)
    one_line(told, 1, "1 of 4 queues", "stop2 broker-b:0", "broker-b is gone")
    assert [row["moved"] for row in told.json["queues"]] == [True, True, True, False]


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_clone_puts_another_group_where_the_first_one_is(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "cloned")
    done("group", "create", "origin", "--retry-max", "7", *at)
    done("group", "seek", "origin", "--to", "latest", "--topic", "cloned", "--yes", *at)
    planned = done("group", "clone", "origin", "copy", "--dry-run", *at).err
    assert "cloned broker-a queue 0: none -> 3" in planned and "copy is created" in planned
    plan = valid_json("group-clone-plan", "group", "clone", "origin", "copy", "--dry-run", *at)
    assert [row["consumer_offset"] for row in plan["queues"]] == [3, 3]
    assert sorted(plan["created_on"]) == ["broker-a", "broker-b"]
    told = valid_json("group-clone", "group", "clone", "origin", "copy", "--yes", *at)
    assert [row["consumer_offset"] for row in told["queues"]] == [3, 3]
    assert places(cluster, "copy", "cloned") == [3, 3]
    settings = valid_json("group-describe", "group", "describe", "copy", *at)["settings"]
    assert [one["retry_count_max"] for one in settings.values()] == [7, 7]
    assert (
        "cloned" in done("group", "clone", "origin", "copy", "--topic", "cloned", "--yes", *at).out
    )


@pytest.mark.proves("cli.commands.group", "console.facts.same")
def test_deleting_shows_the_loss_and_asks(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "forgotten")
    done("group", "create", "doomed", *at)
    done("group", "seek", "doomed", "--to", "latest", "--topic", "forgotten", "--yes", *at)
    planned = done("group", "delete", "doomed", "--topics", "--dry-run", *at).err
    assert "its offsets on forgotten are lost" in planned and "%DLQ%doomed" in planned
    plan = valid_json("dry-run", "group", "delete", "doomed", "--dry-run", *at)["plan"]
    assert "its offsets on forgotten are lost" in "".join(plan)
    assert contrail("group", "delete", "doomed", *at).code == 2
    kept = valid_json("group-delete", "group", "delete", "doomed", "--keep-offsets", "--yes", *at)
    assert kept["brokers"] == ["broker-a", "broker-b"] and not kept["offsets"]
    assert places(cluster, "doomed", "forgotten") == [3, 3]
    deleted = valid_json("group-delete", "group", "delete", "doomed", "--topics", "--yes", *at)
    assert deleted["brokers"] == [] and deleted["offsets"] and deleted["topics"]
    one_line(contrail("group", "describe", "doomed", *at), 5, "'doomed'", "group create doomed")


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    for command in (
        ["describe", "nobody"],
        ["lag", "nobody"],
        ["seek", "nobody", "--to", "latest", "--yes"],
        ["clone", "nobody", "anybody", "--yes"],
        ["delete", "nobody", "--yes"],
    ):
        one_line(contrail("group", *command, *at), 5, "'nobody'", "contrail group list")
        one_line(contrail("group", *command, "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("group", "list", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("group", "create", "a b", *at), 2, "'a b'")
    one_line(contrail("group", "create", "x", "--broker", "gone", *at), 5, "'gone'")
    one_line(contrail("group", "clone", "x", "x", *at), 2, "name another group")


def test_a_place_that_is_none_is_named(cluster: LocalCluster) -> None:
    at = ["-n", cluster.namesrv]
    filled(cluster, "places")
    done("group", "create", "placed", *at)
    seek = ["group", "seek", "placed", "--yes", *at]
    one_line(contrail(*seek, "--to", "yesterday"), 2, "--to 'yesterday'", "2026-")
    one_line(contrail(*seek, "--to", "5"), 2, "--topic")
    one_line(contrail(*seek, "--to", "latest"), 5, "has not consumed anything yet", "--topic")
    one_line(contrail(*seek, "--to", "latest", "--topic", "nowhere"), 5, "'nowhere'")
    on_topic = [*seek, "--topic", "places"]
    one_line(contrail(*on_topic, "--to", "1"), 2, "--queue broker-a:0")
    one_line(contrail(*on_topic, "--to", "1", "--queue", "7"), 2, "--queue '7'")
    one_line(contrail(*on_topic, "--to", "1", "--queue", "broker-a:7"), 5, "broker-a:7")
    one_line(contrail(*on_topic, "--to", "99", "--queue", "broker-a:0"), 2, "99", "0 to 3")
    one_line(contrail("group", "lag", "placed", "--topic", "nowhere", *at), 5, "'nowhere'")


@pytest.mark.proves("broker.system-names.operator-s-request")
def test_groups_and_topics_of_the_system_cannot_be_changed(cluster: LocalCluster) -> None:
    group = "CID_RMQ_SYS_TRANS"
    topics = (f"%RETRY%{group}", f"%DLQ%{group}", "SCHEDULE_TOPIC_XXXX", "rmq_sys_mine")
    lines = [["group", "create", group], ["group", "delete", group, "--dry-run"]]
    lines += [["topic", "create", topic] for topic in topics]
    lines += [["topic", "delete", topic, "--dry-run"] for topic in topics]
    for line in lines:
        refused = contrail(*line, "-n", cluster.namesrv)
        one_line(refused, 2, "belongs to the system")
        assert refused.out == "", refused
