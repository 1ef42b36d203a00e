"""The requests of Apache's dashboard, page by page: Apache's own classes read the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrail.model import fastjson
from contrail.testing import eventually
from tests.interop.java_shell import JavaShell
from tests.interop.mqadmin import CLUSTER_NAME
from tests.interop.target import Broker, Cluster, open_cluster

TOPIC = "Orders"
READERS = "OrderReaders"
WRITERS = "OrderWriters"
FAILING = "FailingReaders"
KEYS = [f"order-{number}" for number in range(12)]
QUEUE_COUNT = 4
PAGE_COUNT = 1000
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


class Dashboard(JavaShell):
    """Sends the requests of a dashboard page."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        super().__init__("DashboardPages", [namesrv], folder)

    def __call__(self, action: str, *words: str) -> Any:
        answer: Any = fastjson.loads(self.exchange([action, *words]))
        assert not (isinstance(answer, dict) and "failed" in answer), answer
        return answer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    traced = {"traceTopicEnable": "true"}
    with open_cluster(tmp_path_factory.mktemp("cluster"), properties=traced) as running:
        yield running


@pytest.fixture(scope="module")
def ask(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with Dashboard(cluster.namesrv, tmp_path_factory.mktemp("dashboard")) as dashboard:
        yield dashboard


@pytest.fixture(scope="module")
def sent(ask: Dashboard) -> list[dict[str, Any]]:
    """Messages of a topic with the producer's receipts; all are consumed."""
    _create(ask, TOPIC)
    told: list[dict[str, Any]] = ask("hold.producer", WRITERS, TOPIC, *KEYS)
    assert {one["status"] for one in told} == {"SEND_OK"}
    ask("hold.consumer", READERS, TOPIC)
    eventually(lambda: _consumed(ask))
    return told


@pytest.fixture(scope="module")
def letters(ask: Dashboard) -> list[dict[str, Any]]:
    """Dead letters: messages that a group failed to consume at its only attempt."""
    _create(ask, "Doomed")
    ask("hold.producer", "DoomedWriters", "Doomed", "doomed-1", "doomed-2")
    ask("hold.failing", FAILING, "Doomed")
    found: list[dict[str, Any]] = []

    def both() -> bool:
        ask("hold.commit")
        answer = ask("dlq.page", FAILING)
        found[:] = answer if isinstance(answer, list) else []
        return len(found) == 2

    eventually(both)
    return found


@pytest.fixture
def broker(cluster: Cluster) -> Broker:
    return cluster.brokers[0]


def _create(ask: Dashboard, topic: str) -> None:
    assert ask("topic.create", topic) == "created"
    eventually(lambda: len(ask("topic.route", topic).get("queueDatas", ())) == 2)


def _consumed(ask: Dashboard) -> bool:
    ask("hold.commit")
    return _lag(ask("consumer.progress", READERS)) == 0


def _lag(answer: Any) -> int | None:
    """A group's lag; None while it has not consumed a message."""
    rows = {name: row for name, row in answer.get("rows", {}).items() if name.startswith(TOPIC)}
    left = sum(row["brokerOffset"] - row["consumerOffset"] for row in rows.values())
    return left if sum(row["brokerOffset"] for row in rows.values()) == len(KEYS) else None


def _client_of(ask: Dashboard, group: str) -> str:
    (client,) = ask("consumer.connection", group)["connectionSet"]
    return str(client["clientId"])


@pytest.mark.proves("cli.administration.dashboard")
def test_the_cluster_page_shows_every_broker_and_its_counts(
    cluster: Cluster, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    shown = ask("cluster.list")
    names = sorted(broker.name for broker in cluster.brokers)
    assert sorted(shown["clusterInfo"]["clusterAddrTable"][CLUSTER_NAME]) == names
    table = shown["clusterInfo"]["brokerAddrTable"]
    assert {name: table[name]["brokerAddrs"]["0"] for name in names} == {
        broker.name: broker.address for broker in cluster.brokers
    }
    assert set(shown["runtime"]) == {broker.address for broker in cluster.brokers}
    # These are the figures of the page's columns.
    wanted = {
        "brokerVersionDesc", "putTps", "getTransferredTps", "msgPutTotalTodayMorning",
        "msgPutTotalTodayNow", "msgGetTotalTodayMorning", "msgGetTotalTodayNow",
        "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning",
    }  # fmt: skip
    for figures in shown["runtime"].values():
        assert wanted <= figures.keys()
    puts = sum(int(one["msgPutTotalTodayNow"]) for one in shown["runtime"].values())
    assert puts >= len(sent)


def test_the_cluster_page_shows_the_settings_of_a_broker(broker: Broker, ask: Dashboard) -> None:
    shown = ask("cluster.brokerConfig", broker.address)
    assert (shown["brokerName"], shown["brokerClusterName"]) == (broker.name, CLUSTER_NAME)
    assert shown["traceTopicEnable"] == "true"


@pytest.mark.proves("cli.administration.consume-directly")
def test_the_home_page_shows_the_rates_of_topics_and_groups(
    cluster: Cluster, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    address = {broker.name: broker.address for broker in cluster.brokers}
    there = address[str(sent[0]["queue"]).split("/")[0]]
    items = [
        ("TOPIC_PUT_NUMS", TOPIC),
        ("TOPIC_PUT_SIZE", TOPIC),
        ("GROUP_GET_NUMS", f"{TOPIC}@{READERS}"),
        ("GROUP_GET_SIZE", f"{TOPIC}@{READERS}"),
        ("BROKER_PUT_NUMS", CLUSTER_NAME),
        ("BROKER_GET_NUMS", CLUSTER_NAME),
    ]
    for name, key in items:
        shown = ask("home.stats", there, name, key)
        assert {"statsMinute", "statsHour", "statsDay"} <= shown.keys()
        assert shown["statsMinute"]["sum"] >= 0
    assert ask("home.stats", there, "TOPIC_PUT_NUMS", "Untouched") == {"refused": 1}
    assert ask("home.servers") == [cluster.namesrv]


def test_the_topic_page_lists_topics_with_their_settings(
    broker: Broker, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    assert {TOPIC, f"%RETRY%{READERS}", "TBW102"} <= set(ask("topic.list"))
    whole = ask("topic.configs", broker.address)[TOPIC]
    alone = ask("topic.config", broker.address, TOPIC)
    for shown in (whole, alone):
        assert (shown["topicName"], shown["readQueueNums"], shown["perm"]) == (TOPIC, 4, 6)
    assert ask("topic.config", broker.address, "NobodyKnowsIt") == {"refused": 17}


def test_the_topic_page_shows_routes_and_the_reach_of_each_queue(
    cluster: Cluster, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    route = ask("topic.route", TOPIC)
    assert {one["brokerName"] for one in route["brokerDatas"]} == {"broker-a", "broker-b"}
    stats = ask("topic.stats", TOPIC)
    assert len(stats) == 2 * QUEUE_COUNT
    assert sum(row["maxOffset"] - row["minOffset"] for row in stats.values()) == len(sent)
    assert ask("topic.route", "NobodyKnowsIt") == {"refused": 17}


def test_the_topic_page_shows_consumer_groups_and_their_offsets(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    assert READERS in ask("topic.groups", TOPIC)
    shown = ask("topic.progress", TOPIC, READERS)
    assert len(shown["rows"]) == 2 * QUEUE_COUNT
    assert shown["total"] == 0


@pytest.mark.proves("cli.administration.dashboard")
def test_the_topic_page_creates_sends_and_deletes(ask: Dashboard) -> None:
    _create(ask, "ByPage")
    told = ask("topic.send", "ByPage", "page-key", "from the page")
    assert told["status"] == "SEND_OK"
    (found,) = ask("message.page", "ByPage")
    assert (found["keys"], found["tags"], found["body"]) == ("page-key", "TagA", "from the page")
    assert found["id"] == told["id"]
    assert ask("topic.delete", "ByPage") == "deleted"
    assert "ByPage" not in ask("topic.list")
    assert ask("topic.stats", "ByPage") == {"refused": 17}


def test_the_topic_page_sends_in_a_transaction(ask: Dashboard) -> None:
    _create(ask, "Settled")
    assert ask("topic.sendTransaction", "Settled", "tx", "settled")["status"] == "SEND_OK"
    eventually(lambda: [one["body"] for one in ask("message.page", "Settled")] == ["settled"])


@pytest.mark.proves("cli.administration.consume-directly")
def test_the_topic_page_resets_a_group_and_skips_its_lag(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    assert ask("consumer.update", "Resetters", "16") == "updated"
    to_the_start = ask("topic.reset", TOPIC, "Resetters", "0")
    assert set(to_the_start.values()) == {0}
    to_the_end = ask("topic.reset", TOPIC, "Resetters", "-1")
    assert sum(to_the_end.values()) == len(sent)
    assert ask("topic.progress", TOPIC, "Resetters")["total"] == 0
    assert ask("topic.reset", TOPIC, "NobodysGroup/", "0") == {"refused": 26}


@pytest.mark.proves("cli.administration.dashboard")
def test_the_consumer_page_lists_groups_with_their_progress(
    broker: Broker, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    assert {READERS, "TOOLS_CONSUMER"} <= set(ask("consumer.list"))
    assert _lag(ask("consumer.progress", READERS)) == 0
    here = ask("consumer.progressOf", READERS, broker.address)
    assert {name.split()[1].split("/")[0] for name in here["rows"]} == {broker.name}


@pytest.mark.proves("cli.administration.consume-directly")
def test_the_consumer_page_shows_clients_and_their_running_info(
    broker: Broker, ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    for shown in (
        ask("consumer.connection", READERS),
        ask("consumer.connectionAt", READERS, broker.address),
    ):
        assert (shown["consumeType"], shown["messageModel"]) == (
            "CONSUME_PASSIVELY",
            "CLUSTERING",
        )
        assert shown["subscriptionTable"][TOPIC]["subString"] == "*"
        (client,) = shown["connectionSet"]
        assert (client["language"], client["clientId"].split("@")[1]) == ("JAVA", READERS)
    running = ask("consumer.running", READERS, _client_of(ask, READERS))
    assert running["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert {one["topic"] for one in running["subscriptions"]} == {TOPIC, f"%RETRY%{READERS}"}
    assert running["queues"] >= 2 * QUEUE_COUNT
    assert running["threads"] is True
    assert ask("consumer.running", READERS, "nobody@1") == {"refused": 1}
    assert ask("consumer.connectionAt", "AbsentReaders", broker.address) == {"refused": 206}


def test_the_consumer_page_sets_shows_and_deletes_a_group(broker: Broker, ask: Dashboard) -> None:
    assert ask("consumer.update", "Passing", "7") == "updated"
    shown = ask("consumer.config", "Passing", broker.address)
    assert (shown["groupName"], shown["retryMaxTimes"]) == ("Passing", 7)
    assert ask("consumer.delete", "Passing") == "deleted"
    assert ask("consumer.config", "Passing", broker.address) == {}
    assert "Passing" not in ask("consumer.list")


@pytest.mark.proves("cli.administration.dashboard")
def test_the_producer_page_shows_the_clients_of_a_group(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    (client,) = ask("producer.connection", WRITERS, TOPIC)["connectionSet"]
    assert client["clientId"].split("@")[1] == WRITERS
    assert client["clientAddr"].startswith("127.0.0.1:")
    assert "refused" in ask("producer.connection", "NobodyWrites", TOPIC)


@pytest.mark.proves("cli.administration.dashboard")
def test_the_message_page_finds_by_id_by_key_and_by_time(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    first = sent[0]
    eventually(lambda: "refused" not in ask("message.view", TOPIC, first["id"]))
    shown = ask("message.view", TOPIC, first["id"])
    assert (shown["keys"], shown["body"]) == (KEYS[0], f"body-{KEYS[0]}")
    assert shown["properties"]["UNIQ_KEY"] == first["id"]
    by_key = ask("message.byKey", TOPIC, KEYS[3])
    assert [one["id"] for one in by_key] == [sent[3]["id"]]
    by_time = ask("message.page", TOPIC)
    assert {one["id"] for one in by_time} == {one["id"] for one in sent}
    assert ask("message.view", TOPIC, "0" * 32) == {"refused": 208}


@pytest.mark.proves("cli.administration.consume-directly")
def test_the_message_page_shows_the_consuming_groups_and_consumes_again(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    tracks = ask("message.track", TOPIC, sent[0]["id"])
    assert f"{READERS} CONSUMED" in tracks
    client = _client_of(ask, READERS)
    again = ask("message.directly", TOPIC, sent[0]["offsetId"], READERS, client)
    assert (again["consumeResult"], again["order"]) == ("CR_SUCCESS", False)


def test_the_trace_page_shows_the_sender_of_a_message(
    ask: Dashboard, sent: list[dict[str, Any]]
) -> None:
    wanted = f"Pub {WRITERS} success"
    eventually(lambda: wanted in ask("message.trace", TRACE_TOPIC, sent[0]["id"]))


def test_the_dlq_page_lists_dead_letters(ask: Dashboard, letters: list[dict[str, Any]]) -> None:
    assert sorted(one["body"] for one in letters) == ["body-doomed-1", "body-doomed-2"]
    for letter in letters:
        assert letter["topic"] == f"%DLQ%{FAILING}"
        assert letter["properties"]["RETRY_TOPIC"] == "Doomed"
    assert ask("dlq.page", "NeverFailing") == {"refused": 17}


@pytest.mark.proves("cli.administration.dashboard")
def test_the_dlq_page_resends_a_dead_letter(ask: Dashboard, letters: list[dict[str, Any]]) -> None:
    again = ask("dlq.resend", FAILING, letters[0]["id"])
    assert again["consumeResult"] == "CR_SUCCESS"


def test_a_table_that_ends_one_behind_a_piece_is_complete(broker: Broker, ask: Dashboard) -> None:
    before = len(ask("topic.configs", broker.address))
    ask("topic.createMany", broker.address, str(PAGE_COUNT + 1 - before))
    assert len(ask("topic.configs", broker.address)) == PAGE_COUNT + 1
