"""``contrail dlq`` against a live cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer, SendReceipt
from contrail.client.admin_messages import MessageAdmin, _Pulled
from contrail.model.topic import Perm
from contrail.protocol.json_style import MessageQueue
from contrail.testing import LocalCluster, eventually
from tests.cli.messages import bury, make_group, make_topic, put, stored
from tests.cli.running import check_json, contrail, done, one_line, valid_json

NOBODY = "127.0.0.1:9"


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return make_topic(cluster)


@pytest.fixture
def group(cluster: LocalCluster, topic: str) -> str:
    """With three dead letters of a topic."""
    name = make_group(cluster)
    for number, tag in enumerate(("paid", "paid", "void")):
        given = {"region": "eu"}
        put(cluster, Message(topic, b"m%d" % number, tag, [f"k{number}"], given, "user-1"))
    bury(cluster, name, topic)
    return name


def replayed(cluster: LocalCluster, topic: str) -> list[bytes]:
    """The messages of a topic that were added since the start."""
    found = stored(cluster, topic)
    return [one.body for one in found if "CONTRAIL_REPLAY_COUNT" in one.properties]


@pytest.mark.proves("cli.commands.dlq")
def test_groups_with_dead_letters_are_listed(cluster: LocalCluster, group: str) -> None:
    rows = valid_json("dlq-list", "dlq", "list", "-n", cluster.namesrv)
    (row,) = [row for row in rows if row["group"] == group]
    assert row["count"] == 3
    assert 0 < row["oldest_timestamp_ms"] <= row["newest_timestamp_ms"]
    lines = done("dlq", "list", "-n", cluster.namesrv).out.splitlines()
    assert [line.split()[1] for line in lines if line.split()[:1] == [group]] == ["3"]


@pytest.mark.proves("cli.commands.dlq")
def test_letters_are_shown_with_origin_reason_and_body(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    show = ("dlq", "show", group, "-n", cluster.namesrv)
    letters = valid_json("dlq-show", *show)
    assert sorted(one["body"] for one in letters) == ["m0", "m1", "m2"]
    assert {(one["origin_topic"], one["reason"]) for one in letters} == {(topic, "given-up")}
    firsts = {one.offset_message_id for one in stored(cluster, topic)}
    assert {one["origin_message_id"] for one in letters} == firsts
    text = done(*show).out
    assert topic in text and "given-up" in text and "k2" in text
    assert sorted(done(*show, "-f", "%b\\n").out.split()) == ["m0", "m1", "m2"]


def test_letters_are_chosen_by_tag_key_id_time_and_count(cluster: LocalCluster, group: str) -> None:
    def bodies(*arguments: str) -> list[str]:
        shown = done("dlq", "show", group, *arguments, "-f", "%b\\n", "-n", cluster.namesrv)
        return sorted(shown.out.split())

    letters = valid_json("dlq-show", "dlq", "show", group, "-n", cluster.namesrv)
    first = next(one for one in letters if one["body"] == "m0")
    assert bodies("--tag", "void") == ["m2"]
    assert bodies("--tag", "void", "--tag", "paid") == ["m0", "m1", "m2"]
    assert bodies("--key", "k1", "--key", "k9") == ["m1"]
    for name in ("message_id", "origin_message_id", "offset_message_id"):
        assert bodies("--id", first[name]) == ["m0"]
    assert bodies("--since", "2099-01-01") == []
    assert bodies("--until", "2020-01-01") == []
    assert len(bodies("--since", "2020-01-01", "--until", "2099-01-01")) == 3
    assert len(bodies("-c", "2")) == 2


@pytest.mark.proves("cli.commands.dlq")
def test_letters_go_back_to_where_they_came_from(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    finished = valid_json("dlq-replay", "dlq", "replay", group, "--yes", "-n", cluster.namesrv)
    assert (finished["replayed"], finished["skipped"], finished["failed"]) == (3, 0, 0)
    assert {one["topic"] for one in finished["messages"]} == {topic}
    assert sorted(replayed(cluster, topic)) == [b"m0", b"m1", b"m2"]
    copies = [one for one in stored(cluster, topic) if "CONTRAIL_REPLAY_COUNT" in one.properties]
    (copy,) = [one for one in copies if one.body == b"m1"]
    assert (copy.tags, copy.keys, copy.reconsume_times) == ("paid", ["k1"], 0)
    assert copy.properties["region"] == "eu" and copy.properties["__SHARDINGKEY"] == "user-1"
    assert "RETRY_TOPIC" not in copy.properties
    assert len({one.queue for one in copies}) == 1


def test_some_letters_go_to_another_topic_at_a_rate(cluster: LocalCluster, group: str) -> None:
    other = make_topic(cluster)
    began_s = time.monotonic()
    finished = done(
        *("dlq", "replay", group, "--tag", "paid", "--to-topic", other, "--rate", "10"),
        *("--yes", "-n", cluster.namesrv),
    )
    assert time.monotonic() - began_s >= 0.1
    assert sorted(replayed(cluster, other)) == [b"m0", b"m1"]
    *lines, summary = finished.out.splitlines()
    assert len(lines) == 2 and all(f" -> {other} broker-" in line for line in lines)
    assert summary == "replayed 2, skipped 0, failed 0"


def test_no_letter_is_replayed_without_consent(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    planned = done("dlq", "replay", group, "--limit", "2", "--dry-run", "-n", cluster.namesrv)
    assert planned.err == f"dead letters to topic {topic}: 2\n" and planned.out == ""
    replay = ("dlq", "replay", group, "-n", cluster.namesrv)
    plan = valid_json("dry-run", *replay, "--limit", "2", "--dry-run")["plan"]
    assert plan == [f"dead letters to topic {topic}: 2"]
    plan = valid_json("dry-run", *replay, "--tag", "nobody's", "--dry-run")["plan"]
    assert plan == ["no dead letter fits"]
    refused = contrail(*replay)
    assert refused.code == 2 and refused.err.endswith("say --yes\n")
    assert replayed(cluster, topic) == []


def test_refused_letters_are_printed_and_counted(
    cluster: LocalCluster, group: str, topic: str
) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.update_topic(topic, perm=Perm.READ)
        eventually(lambda: admin.topic_route(topic).queues[0].perm == Perm.READ, "the sealed topic")
    finished = contrail("dlq", "replay", group, "--yes", "-n", cluster.namesrv)
    one_line(finished, 1, "3 of 3 dead letters were not replayed")
    *lines, summary = finished.out.splitlines()
    assert len(lines) == 3 and all(line.startswith("failed ") for line in lines)
    assert summary == "replayed 0, skipped 0, failed 3"


@pytest.mark.parametrize("as_json", [True, False])
def test_an_interrupted_replay_prints_the_letters_already_sent(
    cluster: LocalCluster, group: str, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    send = Producer.send
    sent: list[SendReceipt] = []

    def send_one(self: Producer, message: Message) -> SendReceipt:
        if sent:
            raise KeyboardInterrupt
        sent.append(send(self, message))
        return sent[0]

    monkeypatch.setattr(Producer, "send", send_one)
    flags = ["--json"] if as_json else []
    finished = contrail("dlq", "replay", group, "--yes", "-n", cluster.namesrv, *flags)
    assert finished.code == 130
    if not as_json:
        one, unsure, summary = finished.out.splitlines()
        assert one.endswith(sent[0].message_id) and unsure.startswith("interrupted ")
        assert summary == "replayed 1, skipped 0, failed 0"
        return
    check_json("dlq-replay", finished.json)
    assert finished.json["replayed"] == 1
    outcomes = [(one["outcome"], one["message_id"]) for one in finished.json["messages"]]
    assert outcomes == [("replayed", sent[0].message_id), ("interrupted", None)]


def test_letters_behind_one_that_cannot_be_read_are_not_left_out_silently(
    cluster: LocalCluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(
        self: MessageAdmin, queue: MessageQueue, queue_offset: int, count_max: int
    ) -> _Pulled:
        return _Pulled([], queue_offset)

    monkeypatch.setattr(MessageAdmin, "_pull", stuck)
    for command in (["show"], ["replay", "--yes"]):
        finished = contrail("dlq", *command, group, "-n", cluster.namesrv)
        one_line(finished, 2, f"%DLQ%{group}", "cannot be read at offset 0")


def test_browsing_beyond_the_end_ends_there(cluster: LocalCluster, topic: str) -> None:
    put(cluster, Message(topic, b"only"))
    with Admin(cluster.namesrv) as admin:
        queues = admin.queues(topic)
        found = [one.body for queue in queues for one in admin.browse(queue, start=0, end=50)]
    assert found == [b"only"]


@pytest.mark.proves("cli.commands.dlq")
def test_letters_are_written_to_a_file(
    cluster: LocalCluster, group: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"
    export = ("dlq", "export", group, str(path), "-n", cluster.namesrv)
    assert done(*export).out.endswith(f"{path}: 3\n")
    letters = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for letter in letters:
        check_json("dlq-export", letter)
    assert sorted(letter["body"] for letter in letters) == ["m0", "m1", "m2"]
    one_line(contrail(*export), 2, str(path), "exists")
    few = tmp_path / "few.jsonl"
    arguments = ("--limit", "1", "--tag", "paid", "-n", cluster.namesrv)
    done("dlq", "export", group, str(few), *arguments)
    assert len(few.read_text().splitlines()) == 1


def test_the_result_of_an_export_is_printed_as_json(
    cluster: LocalCluster, group: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "dead.jsonl")
    export = ("dlq", "export", group, path, "-n", cluster.namesrv)
    told = valid_json("dlq-export-summary", *export)
    assert told == {"group": group, "file": path, "count": 3}


def test_letters_are_written_to_standard_output(cluster: LocalCluster, group: str) -> None:
    export = ("dlq", "export", group, "-", "-n", cluster.namesrv)
    letters = [json.loads(line) for line in done(*export).out.splitlines()]
    for letter in letters:
        check_json("dlq-export", letter)
    assert sorted(letter["body"] for letter in letters) == ["m0", "m1", "m2"]
    assert not Path("-").exists()
    one_line(contrail(*export, "--json"), 2, "FILE - and --json")


@pytest.mark.proves("cli.commands.every-command")
@pytest.mark.parametrize("command", [["show"], ["replay", "--yes"], ["export"]])
def test_wrong_input_is_told_in_one_line(
    cluster: LocalCluster, command: list[str], tmp_path: Path
) -> None:
    rest = [str(tmp_path / "x.jsonl")] if command == ["export"] else []
    where = ("-n", cluster.namesrv)
    one_line(contrail("dlq", *command, "nobody", *rest, *where), 5, "'nobody'", "dlq list")
    wrong = contrail("dlq", *command, "nobody", *rest, "--since", "noon", *where)
    one_line(wrong, 2, "--since 'noon'")
    one_line(contrail("dlq", *command, "nobody", *rest, "-n", NOBODY), 4, NOBODY)
    assert not (tmp_path / "x.jsonl").exists()


def test_other_wrong_input_is_told_in_one_line(cluster: LocalCluster, group: str) -> None:
    where = ("-n", cluster.namesrv)
    one_line(contrail("dlq", "list", "-n", NOBODY), 4, NOBODY)
    for rate in ("0", "nan", "inf"):
        one_line(contrail("dlq", "replay", group, "--rate", rate, *where), 2, f"--rate {rate}")
    same = ("--to-topic", f"%DLQ%{group}", "--yes")
    one_line(contrail("dlq", "replay", group, *same, *where), 2, f"--to-topic '%DLQ%{group}'")
    one_line(contrail("dlq", "replay", group, "--to-topic", "nowhere", *where), 5, "'nowhere'")
    one_line(contrail("dlq", "show", group, "-f", "%z", *where), 2, "%z")
    one_line(contrail("dlq", "show", group, "--json", "-f", "%b", *where), 2, "--json and --format")
    one_line(contrail("dlq", "export", group, "/nowhere/x", *where), 2, "/nowhere/x")


@pytest.mark.proves("apache.notes.dead-letter-perm")
def test_closed_dead_letters_name_the_setting_and_the_command_that_opens_them(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    group = make_group(cluster)
    put(cluster, *(Message(topic, b"m%d" % number) for number in range(4)))
    setting = ("broker", "config", "all", "--yes", "-n", cluster.namesrv, "--set")
    done(*setting, "contrailDeadLetterPerm=2")
    try:
        with Admin(cluster.namesrv) as admin:
            for message in stored(cluster, topic):
                admin.send_back(group, message, delay_level=-1)
            eventually(lambda: admin.dead_letter_topic(group) is not None, "the dead letter topic")
            eventually(lambda: len(admin.topic_route(f"%DLQ%{group}").queues) == 2, "both brokers")
    finally:
        done(*setting, "contrailDeadLetterPerm=6")
    words = (group, "contrailDeadLetterPerm", f"contrail dlq open {group}")
    for command in (["show"], ["replay", "--yes"], ["export", str(tmp_path / "letters")]):
        name, *rest = command
        one_line(contrail("dlq", name, group, *rest, "-n", cluster.namesrv), 1, *words)
    rows = valid_json("dlq-list", "dlq", "list", "-n", cluster.namesrv)
    (row,) = [row for row in rows if row["group"] == group]
    assert (row["count"], len(row["closed_on"])) == (4, 2)
    opened = valid_json("dlq-open", "dlq", "open", group, "-n", cluster.namesrv)
    assert opened["opened_on"] == row["closed_on"]
    assert "already" in done("dlq", "open", group, "-n", cluster.namesrv).out
    letters = valid_json("dlq-show", "dlq", "show", group, "-n", cluster.namesrv)
    assert sorted(one["body"] for one in letters) == ["m0", "m1", "m2", "m3"]


def test_a_group_without_dead_letters_cannot_open_them(cluster: LocalCluster) -> None:
    one_line(contrail("dlq", "open", "nobody", "-n", cluster.namesrv), 5, "nobody")
