"""Dead letters go back to where they came from, once, with an outcome for each of them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from contrail import Admin
from contrail.client.dead_letters import EXHAUSTED, GIVEN_UP, reason_of
from contrail.errors import OptionInvalid
from contrail.insight.copies import REPLAY_COUNT, REPLAYED_FROM, REPLAYED_ORIGIN_ID
from contrail.pipeline.jobs.replay import ReplaySettings, replay, with_reasons
from contrail.testing import LocalCluster, eventually
from tests.spark import job_child
from tests.spark.traffic import make_topic, orders, queues_of, send_rows

_names = itertools.count(1)


class Dead:
    """A topic, and a group that gives up some of its messages."""

    def __init__(self, cluster: LocalCluster, *, retries_max: int = 16) -> None:
        number = next(_names)
        self.cluster = cluster
        self.topic = make_topic(cluster, f"orders-{number}", queues=2)
        self.group = f"payers-{number}"
        with Admin(cluster.namesrv) as admin:
            admin.create_group(self.group, retry_count_max=retries_max)

    def bury(self, count: int, *, first: int = 0, delay_level: int = -1) -> list[bytes]:
        """Send messages and have the group give them up; their bodies."""
        landed = send_rows(self.cluster, orders(self.topic, count, first=first))
        with Admin(self.cluster.namesrv) as admin:
            for queue, place, _ in landed:
                message = admin.message_at(queue, place)
                admin.send_back(self.group, message, delay_level=delay_level)
            # The NameServer hears of a topic a moment after the message that made it.
            eventually(
                lambda: admin.dead_letter_topic(self.group) is not None, "the letters' route"
            )
        return [body for _, _, body in landed]

    def settings(self, folder: Path, **changes: object) -> dict[str, Any]:
        return {
            "group": self.group,
            "namesrv": self.cluster.namesrv,
            "checkpoint": str(folder / "checkpoint"),
            **changes,
        }

    def stored(self, topic: str | None = None) -> list[Any]:
        """All messages of the topic, by queue."""
        found = []
        with Admin(self.cluster.namesrv) as admin:
            for queue in queues_of(self.cluster, topic or self.topic):
                place = 0
                while messages := admin.messages_from(queue, place):
                    found += messages
                    place = messages[-1].queue_offset + 1
        return found

    def stored_count(self) -> int:
        with Admin(self.cluster.namesrv) as admin:
            return sum(one.queue_offset_max for one in admin.topic_stats(self.topic).queues)


def outcomes(folder: Path) -> list[dict[str, Any]]:
    steps = sorted((folder / "checkpoint" / "outcomes").iterdir())
    rows: Iterable[dict[str, Any]] = itertools.chain.from_iterable(
        ds.dataset(step).to_table().to_pylist() for step in steps
    )
    return sorted(rows, key=lambda row: row["queueOffset"])


@pytest.mark.proves("spark.jobs.resumed")
def test_a_killed_replay_sends_every_letter_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster)
    bodies = dead.bury(120)
    log = tmp_path / "log"
    # Slow enough that the kill comes before the end, however late this process is.
    command = job_child.job("replay", dead.settings(tmp_path, rate=4, step_rows=60))
    pid = job_child.start(command, log)
    job_child.wait_until(pid, lambda: dead.stored_count() >= len(bodies) + 75, log)
    job_child.kill(pid)
    assert dead.stored_count() < 2 * len(bodies)

    settings = ReplaySettings(**dead.settings(tmp_path, step_rows=60))
    summary = replay(settings, spark=spark)
    copies = [one for one in dead.stored() if REPLAYED_FROM in one.properties]
    assert sorted(one.body for one in copies) == sorted(bodies)
    told = outcomes(tmp_path)
    assert Counter(row["outcome"] for row in told) == {"replayed": len(bodies)}
    assert [row["queueOffset"] for row in told] == list(range(len(bodies)))
    # The step that the killed run finished is not done again, nor are its sends of the other.
    assert 15 <= int(str(summary.facts["already"])) < 60
    assert int(str(summary.facts["replayed"])) + int(str(summary.facts["already"])) == 60
    assert summary.facts["repeats"] == "brokers drop repeats"

    # The same checkpoint goes on with new letters, and with them only.
    new = dead.bury(3, first=500)
    assert replay(settings, spark=spark).facts["replayed"] == len(new)
    copies = [one for one in dead.stored() if REPLAYED_FROM in one.properties]
    assert sorted(one.body for one in copies) == sorted(bodies + new)


def test_a_replay_that_dies_before_it_notes_a_step_adds_no_message_the_second_time(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = Dead(cluster)
    bodies = dead.bury(20)
    settings = ReplaySettings(**dead.settings(tmp_path))

    def die(name: str) -> None:
        raise InterruptedError(name)

    with monkeypatch.context() as patched:
        patched.setattr("contrail.pipeline.jobs.copying.crashpoint", die)
        with pytest.raises(InterruptedError, match="step_sent"):
            replay(settings, spark=spark)
    assert dead.stored_count() == 2 * len(bodies)
    facts = replay(settings, spark=spark).facts
    assert (facts["replayed"], facts["already"]) == (0, 20)
    assert dead.stored_count() == 2 * len(bodies)


def test_a_copy_says_where_it_came_from_and_begins_its_retries_anew(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster)
    dead.bury(4)
    originals = {one.body: one for one in dead.stored()}
    replay(ReplaySettings(**dead.settings(tmp_path)), spark=spark)
    copies = [one for one in dead.stored() if REPLAYED_FROM in one.properties]
    for copy in copies:
        origin = originals[copy.body]
        assert (copy.tags, copy.keys, copy.reconsume_times) == (origin.tags, origin.keys, 0)
        assert copy.properties["region"] == origin.properties["region"]
        assert copy.properties[REPLAYED_FROM].startswith(f"%DLQ%{dead.group}/broker-a/0/")
        assert copy.properties[REPLAYED_ORIGIN_ID] == origin.offset_message_id
        assert copy.properties[REPLAY_COUNT] == "1"
        assert not {"RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "DELAY"} & copy.properties.keys()
    assert len(copies) == 4


@pytest.mark.proves("spark.jobs.replay")
def test_letters_that_are_not_asked_for_are_skipped_and_say_why(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster)
    dead.bury(12)
    chosen: dict[str, Any] = {"tags": ("paid",), "where": "properties['region'] = 'us'"}
    planned = replay(ReplaySettings(**dead.settings(tmp_path, **chosen, dry_run=True)), spark=spark)
    assert not (tmp_path / "checkpoint").exists()
    summary = replay(ReplaySettings(**dead.settings(tmp_path, **chosen)), spark=spark)
    # Odd numbers are paid, multiples of three are from the us: 3 and 9.
    assert [(row["origin"], row["reason"], row["messages"]) for row in planned.table] == [
        (dead.topic, GIVEN_UP, 2)
    ]
    assert (summary.facts["replayed"], summary.facts["skipped"]) == (2, 10)
    assert Counter(row["reason"] for row in outcomes(tmp_path)) == {
        None: 2,
        "its tags was not asked for": 6,
        "the condition does not hold for it": 4,
    }


def test_letters_without_a_topic_wait_until_a_run_finds_one(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster)
    bodies = dead.bury(8)
    settings = ReplaySettings(**dead.settings(tmp_path, tags=("paid",)))
    with Admin(cluster.namesrv) as admin:
        admin.delete_topic(dead.topic)
    for _ in range(2):
        facts = replay(settings, spark=spark).facts
        assert (facts["replayed"], facts["without a topic"]) == (0, 4)
    make_topic(cluster, dead.topic, queues=2)
    new = dead.bury(2, first=100)
    facts = replay(settings, spark=spark).facts
    # Half of all letters are paid, the new ones as well.
    assert (facts["replayed"], facts["without a topic"], facts["skipped"]) == (5, 0, 1)
    copies = [one.body for one in dead.stored() if REPLAYED_FROM in one.properties]
    assert sorted(copies) == sorted(bodies[4:] + new[1:])
    assert replay(settings, spark=spark).facts["replayed"] == 0


def test_exhausted_letters_are_told_from_given_up_ones_and_sent_elsewhere(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster, retries_max=0)
    # No retry is allowed: the broker makes a sent-back message a dead letter.
    dead.bury(5, delay_level=0)
    elsewhere = make_topic(cluster, f"{dead.topic}-again", queues=1)
    settings = dead.settings(tmp_path, to_topic=elsewhere, reasons=(EXHAUSTED,))
    assert replay(ReplaySettings(**settings), spark=spark).facts["replayed"] == 5
    assert len(dead.stored(elsewhere)) == 5


@pytest.mark.proves("house.folded.dead-letter-replays")
@pytest.mark.parametrize("asked", [None, 3])
def test_the_job_reports_the_reason_of_a_letter_as_the_command_does(
    spark: SparkSession, asked: int | None
) -> None:
    limits = ("", "3", "20", "-1", "3\n", "9" * 10, "9" * 40, "٣")
    letters = [
        ({"MAX_RECONSUME_TIMES": limit} if limit else {}, times)
        for limit in limits
        for times in (0, 3, 4, 16, 17, 20, 21)
    ]
    frame = spark.createDataFrame(letters, "properties map<string,string>, reconsumeTimes int")
    settings = ReplaySettings(group="g", namesrv="n", dry_run=True, retries_max=asked)
    told = [row["reason"] for row in with_reasons(settings, frame, 16).collect()]
    if asked is None:
        assert told == [reason_of(properties, times, 16) for properties, times in letters]
    else:
        assert told == [EXHAUSTED if times > asked else GIVEN_UP for _, times in letters]


@pytest.mark.proves("spark.jobs.replay")
def test_a_rate_is_kept_by_all_tasks_together(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    dead = Dead(cluster)
    dead.bury(30)
    began_s = time.monotonic()
    replay(ReplaySettings(**dead.settings(tmp_path, rate=15)), spark=spark)
    # The last of them waits until all before it have had their time.
    assert time.monotonic() - began_s >= 27 / 15
    assert dead.stored_count() == 60


def test_a_group_without_dead_letters_is_named(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(OptionInvalid, match="group 'lucky' has no dead letters"):
        replay(
            ReplaySettings(
                group="lucky", namesrv=cluster.namesrv, checkpoint=str(tmp_path / "checkpoint")
            ),
            spark=spark,
        )
    with pytest.raises(OptionInvalid, match="reason 'bad luck': give exhausted or given-up"):
        ReplaySettings(group="g", namesrv="x", dry_run=True, reasons=("bad luck",))
    with pytest.raises(OptionInvalid, match="'%RETRY%g': brokers take no batches"):
        ReplaySettings(group="g", namesrv="x", dry_run=True, to_topic="%RETRY%g")
