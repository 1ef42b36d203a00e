"""``contrail timer`` and ``contrail tx`` against a live cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contrail import Admin, Message, Producer
from contrail.cli.output import time_text
from contrail.client.blocking.admin import Admin as BlockingAdmin
from contrail.clock import SystemClock
from contrail.errors import BrokerRefused
from contrail.insight.pending_timers import delays_by_level, due_in_slot_ms
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import ResponseCode
from contrail.testing import LocalCluster, eventually
from tests.cli.messages import fresh, make_topic, put, stored
from tests.cli.running import contrail, done, one_line, valid_json
from tests.e2e.asking import Asker

NOBODY = "127.0.0.1:9"
HOUR_MS = 3_600_000


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return make_topic(cluster)


def waiting(cluster: LocalCluster, topic: str) -> list[dict[str, object]]:
    listed = valid_json("timer-list", "timer", "list", "--topic", topic, "-n", cluster.namesrv)
    assert listed["waiting_count"] == len(listed["messages"])
    messages: list[dict[str, object]] = listed["messages"]
    return messages


def unsealed(handle: str | None) -> str:
    return RecallHandle.decode(str(handle))._replace(seal="").encode()


# timer


@pytest.mark.proves(
    "cli.commands.timer-and-tx",
    "console.facts.timers",
    "broker.system-names.paged-reads",
    "broker.small-rules.timer-list",
)
def test_messages_that_wait_are_listed_by_their_time(cluster: LocalCluster, topic: str) -> None:
    now_ms = SystemClock().now_ms()
    late, soon, level, over = put(
        cluster,
        Message(topic, b"late", deliver_at=now_ms + 2 * HOUR_MS, tags="t", keys=["k"]),
        Message(topic, b"soon", delay=HOUR_MS / 1000),
        Message(topic, b"level", delay_level=17),
        Message(topic, b"over", deliver_at=now_ms - HOUR_MS),
    )
    first, second, third = waiting(cluster, topic)
    assert [first["message_id"], second["message_id"]] == [soon.message_id, level.message_id]
    assert third["message_id"] == late.message_id
    assert abs(int(str(first["due_timestamp_ms"])) - now_ms - HOUR_MS) < 60_000
    assert (first["delay_level"], second["delay_level"]) == (None, 17)
    assert (third["tags"], third["keys"]) == ("t", ["k"])
    # As the broker gave them, without its seal: `timer recall` needs none on its host.
    assert [one["recall_handle"] for one in (first, second, third)] == [
        *(unsealed(soon.recall_handle), None, unsealed(late.recall_handle)),
    ]
    assert third["due_timestamp_ms"] == now_ms + 2 * HOUR_MS
    text = done("timer", "list", "--topic", topic, "-n", cluster.namesrv).out
    assert time_text(now_ms + 2 * HOUR_MS) in text
    assert "level 17" in text and "its time" in text and over.message_id not in text


@pytest.mark.proves("broker.small-rules.timer-list")
@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELIVER_MS": "60345"}, 60_345),
        ({"TIMER_DELAY_MS": "1345"}, 60_345),
        ({"TIMER_DELAY_SEC": "2"}, 61_000),
        # Stored again on the way: the store time is not the producer's any more.
        ({"TIMER_DELAY_SEC": "9", "TIMER_DELIVER_MS": "60345", "TIMER_ROLL_TIMES": "1"}, 60_345),
        ({"TIMER_DELAY_SEC": "900", "TIMER_ROLL_TIMES": "1"}, 60_001),
        ({"TIMER_DELIVER_MS": "soon"}, 60_001),
        ({}, 60_001),
    ],
)
def test_a_timed_message_is_due_at_the_millisecond_it_asked_for(
    properties: dict[str, str], due_ms: int
) -> None:
    assert due_in_slot_ms(properties, 59_000, 60_000) == due_ms


def test_brokers_count_waiting_messages_by_topic(cluster: LocalCluster, topic: str) -> None:
    put(cluster, *(Message(topic, b"x", delay=3600.0) for _ in range(3)))

    def counts() -> list[int]:
        listed = valid_json("timer-list", "timer", "list", "-n", cluster.namesrv)
        return [broker["count_by_topic"].get(topic, 0) for broker in listed["brokers"]]

    # Brokers count a message once their timer has taken it, a little after it is stored.
    eventually(lambda: sum(counts()) == 3, "the brokers' counts")
    assert len(counts()) == 2
    listed = valid_json("timer-list", "timer", "list", "-n", cluster.namesrv)
    assert sum(sum(one["count_by_horizon_s"].values()) for one in listed["brokers"]) >= 3
    few = done("timer", "list", "--topic", topic, "-c", "1", "-n", cluster.namesrv)
    assert "2 more wait" in few.err
    unread = done("timer", "list", "--topic", topic, "--scan", "1", "-n", cluster.namesrv)
    assert "more timed messages: read on with --scan" in unread.err


@pytest.mark.proves("cli.commands.timer-and-tx")
@pytest.mark.parametrize("by", ["handle", "id", "unsealed handle"])
def test_a_message_is_taken_back(cluster: LocalCluster, topic: str, by: str) -> None:
    gone, kept = put(
        cluster, Message(topic, b"gone", delay=3600.0), Message(topic, b"kept", delay=3600.0)
    )
    handle = str(gone.recall_handle)
    which = {"handle": handle, "id": gone.message_id, "unsealed handle": unsealed(handle)}[by]
    recall = ("timer", "recall", which, "-n", cluster.namesrv)
    planned = done(*recall, "--dry-run")
    assert gone.message_id in planned.err and len(waiting(cluster, topic)) == 2
    assert gone.message_id in valid_json("dry-run", *recall, "--dry-run")["plan"][0]
    refused = contrail(*recall)
    assert refused.code == 2 and refused.err.endswith("say --yes\n")
    if by == "id":
        assert gone.message_id in done(*recall, "--yes").out
    else:
        recalled = valid_json("timer-recall", *recall, "--yes")
        assert (recalled["topic"], recalled["message_id"]) == (topic, gone.message_id)
    eventually(
        lambda: [one["message_id"] for one in waiting(cluster, topic)] == [kept.message_id],
        "the recall",
    )


def test_messages_of_one_id_are_listed_and_taken_back_one_by_one(
    cluster: LocalCluster, topic: str
) -> None:
    asker = Asker(cluster)
    properties = {"UNIQ_KEY": f"{topic}-same", "TIMER_DELAY_MS": "3600000"}
    sent = [asker.send(topic, body, properties=properties) for body in (b"gone", b"kept")]
    eventually(lambda: len(waiting(cluster, topic)) == 2, "both wait")
    handle = sent[0].fields["recallHandle"]
    done("timer", "recall", handle, "--yes", "-n", cluster.namesrv)
    eventually(lambda: len(waiting(cluster, topic)) == 1, "the recall")


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_timer_input_is_told_in_one_line(cluster: LocalCluster, topic: str) -> None:
    where = ("-n", cluster.namesrv)
    (level,) = put(cluster, Message(topic, b"x", delay_level=18))
    recall = ("timer", "recall", "--yes")
    one_line(contrail(*recall, "nobody", *where), 5, "'nobody'", "timer list")
    one_line(contrail(*recall, level.message_id, *where), 1, level.message_id, "delay level 18")
    one_line(contrail("timer", "list", "-n", NOBODY), 4, NOBODY)
    one_line(contrail(*recall, "nobody", "-n", NOBODY), 4, NOBODY)


def test_brokers_too_old_to_count_timers_are_read_all_the_same(
    cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cluster, Message(topic, b"x", delay=3600.0))

    def old(self: BlockingAdmin) -> object:
        raise unsupported()

    monkeypatch.setattr(BlockingAdmin, "timer_counts", old)
    listed = valid_json("timer-list", "timer", "list", "--topic", topic, "-n", cluster.namesrv)
    assert len(listed["messages"]) == 1 and listed["brokers"] == []


def unsupported() -> BrokerRefused:
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return BrokerRefused("no such request", code=code, remark="request type not supported")


def test_delays_are_read_from_the_setting() -> None:
    assert delays_by_level("1s 5m 2h 1d x 3") == {
        1: 1_000,
        2: 300_000,
        3: 7_200_000,
        4: 86_400_000,
    }


# tx


@pytest.fixture
def half(cluster: LocalCluster, topic: str) -> Iterator[str]:
    """The id of an open transaction."""
    with Producer(fresh("shop"), cluster.namesrv) as producer:
        with producer.transaction(Message(topic, b"half")) as transaction:
            transaction.unknown()
        yield transaction.transaction_id


def open_ids(cluster: LocalCluster, topic: str) -> list[str]:
    rows = valid_json("tx-list", "tx", "list", "--topic", topic, "-n", cluster.namesrv)
    return [row["transaction_id"] for row in rows]


@pytest.mark.proves("cli.commands.timer-and-tx")
def test_open_transactions_are_listed(cluster: LocalCluster, topic: str, half: str) -> None:
    (row,) = valid_json("tx-list", "tx", "list", "--topic", topic, "-n", cluster.namesrv)
    assert row["transaction_id"] == half and row["topic"] == topic
    assert row["producer_group"].startswith("shop-") and row["check_count"] == 0
    text = done("tx", "list", "-n", cluster.namesrv).out
    assert half in text and topic in text


@pytest.mark.proves("cli.commands.timer-and-tx")
@pytest.mark.parametrize(
    ("command", "word", "bodies"),
    [("commit", "committed", [b"half"]), ("rollback", "rolled back", [])],
)
def test_a_transaction_is_decided_only_with_consent(
    cluster: LocalCluster, topic: str, half: str, command: str, word: str, bodies: list[bytes]
) -> None:
    decide = ("tx", command, half, "-n", cluster.namesrv)
    assert half in done(*decide, "--dry-run").err
    assert half in valid_json("dry-run", *decide, "--dry-run")["plan"][0]
    refused = contrail(*decide)
    assert refused.code == 2 and refused.err.endswith("say --yes\n")
    assert open_ids(cluster, topic) == [half]
    assert done(*decide, "--yes").out.startswith(f"{word}: transaction {half}")
    eventually(lambda: open_ids(cluster, topic) == [], "the decision")
    eventually(lambda: [one.body for one in stored(cluster, topic)] == bodies, "what it is for")
    one_line(contrail(*decide, "--yes"), 5, half, "tx list")


@pytest.mark.parametrize(
    ("command", "decision"), [("commit", "committed"), ("rollback", "rolled back")]
)
def test_a_decision_is_printed_as_json(
    cluster: LocalCluster, topic: str, half: str, command: str, decision: str
) -> None:
    told = valid_json(f"tx-{command}", "tx", command, half, "--yes", "-n", cluster.namesrv)
    assert (told["transaction_id"], told["topic"]) == (half, topic)
    assert told["decision"] == decision


def test_many_transactions_are_read_page_by_page(cluster: LocalCluster, topic: str) -> None:
    with Producer(fresh("shop"), cluster.namesrv) as producer:
        for _ in range(3):
            with producer.transaction(Message(topic, b"half")) as transaction:
                transaction.unknown()
    few = done("tx", "list", "-c", "1", "-n", cluster.namesrv)
    assert "more: see them with --count" in few.err
    assert len(open_ids(cluster, topic)) == 3
    for one in open_ids(cluster, topic):
        done("tx", "rollback", one, "--yes", "-n", cluster.namesrv)


def test_wrong_transactions_are_told_in_one_line(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("-n", cluster.namesrv)
    for command in ("commit", "rollback"):
        one_line(contrail("tx", command, "nobody", "--yes", *where), 5, "'nobody'", "tx list")
        one_line(contrail("tx", command, "nobody", "--yes", "-n", NOBODY), 4, NOBODY)
    one_line(contrail("tx", "list", "-n", NOBODY), 4, NOBODY)

    def apache(self: Admin, broker: str, **_: int) -> object:
        raise unsupported()

    monkeypatch.setattr(Admin, "transactions", apache)
    one_line(contrail("tx", "list", *where), 1, "LIST_TRANSACTIONS", "Apache's")
