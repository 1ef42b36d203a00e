"""``contrail doctor`` on groups and topics: each fault is made on a live cluster, and found."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from contrail.insight.findings import FINDINGS
from contrail.model.topic import Perm
from contrail.protocol.codes import RequestCode
from contrail.runtime.files import FileSystem
from contrail.testing import LocalCluster, eventually
from tests.cli.diagnosed import Site, diagnosed, mend
from tests.cli.running import contrail, done, one_line


@pytest.fixture(autouse=True)
def half_empty_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However full the disk of this machine is."""
    monkeypatch.setattr(FileSystem, "usage_ratio", lambda self, folder: 0.5)


def test_all_is_well_with_a_group_that_consumes(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send()
        with site.members((site.topic, "*")):
            eventually(lambda: not site.admin.lag(site.group).total, "no lag")
            eventually(lambda: site.diagnosed() == {}, "health")
            told = done("doctor", "-n", cluster.namesrv, "--group", site.group)
    assert told.out.startswith("All well: 2 brokers and 1 groups.")


@pytest.mark.proves("cli.commands.doctor")
def test_a_group_without_members_is_found_with_its_waiting_messages(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.commit(0)
        site.send(3)
        found = site.diagnosed()["group-offline"]
        assert found["severity"] == "error" and "3 messages wait" in found["text"]
        # The waiting messages are the application's: the fix skips none of them.
        assert found["fix"] == f"contrail tail {site.topic} -o -10 -e -n {cluster.namesrv}"
        # Told of all groups, and of the topic's, as well.
        assert "group-offline" in diagnosed(cluster, "--topic", site.topic)
        told = contrail("doctor", "-n", cluster.namesrv)
        assert told.code == 1 and f"Group {site.group} has no member online" in told.out


def test_members_that_do_not_subscribe_to_a_topic_that_waits(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        other = f"{site.topic}-other"
        site.admin.create_topic(other, queues=1)
        site.commit(0, other)
        site.send(5, topic=other)
        with site.members((site.topic, "*")) as (member,):
            found = site.until_diagnosed("not-subscribed")
            assert f"5 messages of topic {other}" in found["text"]
            assert f"members: {member.client_id}" in found["evidence"]
            mend(found, "--yes")
            assert "not-subscribed" not in site.diagnosed()


def test_more_members_than_queues(cluster: LocalCluster) -> None:
    one_queue = Site(cluster, broker="broker-a")
    with one_queue as site, site.members(*[(site.topic, "*")] * 2) as members:
        found = site.until_diagnosed("members-idle")
        assert "2 members for the 1 queues" in found["text"]
        assert any(one.client_id in found["evidence"][0] for one in members)
        assert found["fix"].startswith(f"contrail topic grow {site.topic} --queues 2 ")


def test_members_that_subscribe_to_different_topics_leave_queues_without_an_owner(
    cluster: LocalCluster,
) -> None:
    with Site(cluster, queues=2) as site:
        other = f"{site.topic}-other"
        site.admin.create_topic(other, queues=2)
        site.send(8)
        with site.members((site.topic, "*"), (other, "*")) as (first, second):
            found = site.until_diagnosed("subscriptions-disagree")
            assert sorted(found["evidence"]) == [
                f"{first.client_id}: {site.topic} (all tags)",
                f"{second.client_id}: {other} (all tags)",
            ]
            assert found["fix"].startswith("contrail client show ")
            mend(found)
            orphans = site.until_diagnosed("queue-without-owner")
            assert "dealt to a member that does not subscribe" in orphans["cause"]
            mend(orphans)


@pytest.mark.proves("cli.commands.doctor")
def test_members_that_subscribe_to_different_tags_are_found_with_each_expression(
    cluster: LocalCluster,
) -> None:
    with Site(cluster) as site, site.members((site.topic, "a || b"), (site.topic, "c")) as members:
        found = site.until_diagnosed("subscriptions-disagree")
        assert sorted(found["evidence"]) == [
            f"{members[0].client_id}: {site.topic} tags a || b",
            f"{members[1].client_id}: {site.topic} tags c",
        ]


def test_members_that_disagree_about_the_message_model(
    cluster: LocalCluster, tmp_path: Any
) -> None:
    options: list[dict[str, Any]] = [
        {},
        {"message_model": "BROADCASTING", "offset_folder": tmp_path},
    ]
    with Site(cluster) as site:
        wanted = [(site.topic, "*")] * 2
        with site.members(*wanted, options=options) as (first, second):
            found = site.until_diagnosed("models-disagree")
            assert sorted(found["evidence"]) == [
                f"BROADCASTING: {second.client_id}",
                f"CLUSTERING: {first.client_id}",
            ]
            mend(found)


@pytest.mark.proves("cli.commands.doctor")
def test_a_handler_that_waits_for_ever(cluster: LocalCluster) -> None:
    ended = threading.Event()
    with Site(cluster) as site:
        site.send()
        try:
            with site.members((site.topic, "*"), handler=lambda _: ended.wait(240)) as (member,):
                found = site.until_diagnosed("consumer-blocked")
                assert member.client_id in found["text"]
                assert "handler waits" in found["cause"]
                assert (
                    f"client show {member.client_id} --group {site.group} --stack" in found["fix"]
                )
                mend(found)
                ended.set()
        finally:
            ended.set()


def test_a_consumer_that_is_paused(cluster: LocalCluster) -> None:
    with Site(cluster) as site, site.members((site.topic, "*")) as (member,):
        queues = set(site.admin.queues(site.topic))
        eventually(lambda: queues <= set(member.assigned_queues()), "its queues")
        member.pause()
        site.send()
        found = site.until_diagnosed("member-not-pulling")
        assert member.client_id in found["text"] and "paused" in found["cause"]
        mend(found)


def test_a_group_that_may_not_consume(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.admin.update_group(site.group, consume_enable=False)
        found = site.diagnosed()["consume-disabled"]
        assert "consumeEnable is false" in found["cause"]
        assert found["evidence"] == [
            "consumeEnable=false on broker-a",
            "consumeEnable=false on broker-b",
        ]
        mend(found)
        assert "consume-disabled" not in site.diagnosed()


def test_offsets_past_the_end_of_the_queues(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(2)
        site.commit(1_000)
        found = site.diagnosed()["offset-beyond-end"]
        assert "at 1,000, the queue ends at" in found["evidence"][0]
        mend(found, "--yes")
        assert "offset-beyond-end" not in site.diagnosed()


def test_tags_that_no_message_has(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(3, tags="paid")
        site.send(1)
        with site.members((site.topic, "Paid")):
            found = site.until_diagnosed("filter-matches-nothing")
            assert "wants only Paid" in found["text"] and "case counts" in found["cause"]
            assert found["evidence"] == ["1 messages with no tag", "3 messages with tag paid"]
            mend(found)


def test_dead_letters_that_grow(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(2)
        with site.members((site.topic, "*"), handler=lambda message: message.dead_letter()):
            found = site.until_diagnosed("dlq-growing")
            # Messages are given up independently: this one need not be the first.
            eventually(lambda: "body 0" in mend(found).out, "its dead letter")
        assert "handlers fail" in found["cause"]


def test_a_queue_whose_lock_a_dead_member_holds(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.send(4)
        queues = site.commit(0)
        for broker in cluster.brokers:
            held = [
                {"topic": one.topic, "brokerName": one.broker_name, "queueId": one.queue_id}
                for one in queues
                if one.broker_name == broker.name
            ]
            wanted = {"consumerGroup": site.group, "clientId": "dead", "mqSet": held}
            code, body = RequestCode.LOCK_BATCH_MQ, json.dumps(wanted).encode()
            assert cluster.caller.call(broker.address, code, {}, body).code == 0
        with site.members((site.topic, "*"), options=[{"orderly": True}]) as (member,):
            found = site.until_diagnosed("queue-not-locked")
            assert "not get the locks of 2 queues" in found["text"]
            assert "still holds the locks" in found["cause"]
            assert member.client_id in mend(found).out


def test_a_topic_that_may_not_be_read_or_written(cluster: LocalCluster) -> None:
    with Site(cluster) as site:
        site.commit(0)
        site.admin.update_topic(site.topic, perm=Perm.WRITE, broker="broker-a")
        site.admin.update_topic(site.topic, perm=Perm.READ, broker="broker-b")
        found = diagnosed(cluster, "--topic", site.topic)
        assert "may not be read on broker broker-a" in found["topic-unreadable"]["text"]
        assert "may not be written on broker broker-b" in found["topic-unwritable"]["text"]
        mend(found["topic-unreadable"])
        mend(found["topic-unwritable"])
        mended = diagnosed(cluster, "--topic", site.topic)
        assert not mended.keys() & {"topic-unreadable", "topic-unwritable"}


def test_a_topic_that_no_broker_has(cluster: LocalCluster) -> None:
    with Site(cluster) as site, site.members((site.topic, "*")) as (member,):
        member.subscribe(f"{site.topic}-typo")
        found = site.until_diagnosed("topic-missing")
        assert f"No broker has topic {site.topic}-typo" in found["text"]
        mend(found)
        assert "topic-missing" not in site.diagnosed()


def test_a_topic_that_is_on_some_brokers_only(cluster: LocalCluster) -> None:
    with Site(cluster, broker="broker-a") as site:
        found = diagnosed(cluster, "--topic", site.topic)["topic-on-some-brokers"]
        assert "queues on broker-a and none on broker-b" in found["text"]
        mend(found)
        assert "topic-on-some-brokers" not in diagnosed(cluster, "--topic", site.topic)


def test_every_finding_is_documented() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "cli" / "doctor.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [line.split("`")[1] for line in lines if line.startswith("| `")]
    assert [finding for finding in FINDINGS if finding not in rows] == []


@pytest.mark.proves("cli.commands.every-command")
def test_wrong_input_is_one_line(cluster: LocalCluster) -> None:
    doctor = ("doctor", "-n", cluster.namesrv)
    one_line(contrail(*doctor, "--group", "nobody"), 5, "'nobody'", "contrail group list")
    one_line(contrail(*doctor, "--topic", "nothing"), 5, "'nothing'", "contrail topic list")
    one_line(contrail("doctor", "-n", "127.0.0.1:1"), 4, "127.0.0.1:1")
    one_line(contrail("doctor", "-n", "no-port"), 2, "no-port")
