"""``contrail pipeline``: commands without Spark, the choice of the cluster, exit codes, SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from contrail import Admin, MessageQueue
from contrail.cli.root import app
from contrail.pipeline.jobs import session
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, orders, send_rows

NOBODY = "127.0.0.1:1"
TOPIC = "commanded"
JAVA = ("java", "org.apache", "py4j", "Traceback", "Exception", "WARN", "ERROR")


@pytest.fixture(scope="module")
def topic(cluster: LocalCluster) -> str:
    send_rows(cluster, orders(make_topic(cluster, TOPIC, queues=2), 40))
    return TOPIC


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing may start Spark, and no context or variable of this machine counts."""

    def started(*_: object, **__: object) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "open_session", started)
    monkeypatch.setattr(session.SparkSession, "getActiveSession", started)
    monkeypatch.setenv("CONTRAIL_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def contrail(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def pipeline(folder: Path, *arguments: str) -> Result:
    """A job's command; ``@`` in an argument is a folder of the test's."""
    return contrail("pipeline", *(one.replace("@", f"{folder}/") for one in arguments))


def jobs(topic: str) -> dict[str, list[str]]:
    return {
        "migrate": [
            "migrate",
            topic,
            f"{topic}-wide",
            "--queues",
            "2",
            "--checkpoint",
            "@c",
            "--yes",
        ],
        "archive": ["archive", "@archive", topic],
        "dedupe": [
            "dedupe",
            topic,
            f"{topic}-once",
            "--queues",
            "2",
            "--checkpoint",
            "@d",
            "--yes",
        ],
        "replay": ["replay", "no-such-group", "--checkpoint", "@r", "--yes"],
        "sql": ["sql", f"select count(*) from topic.`{topic}`"],
        "report": ["report", topic, "--out", "@report"],
    }


@pytest.mark.proves("spark.migration.before-spark")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", list(jobs("")))
def test_an_unreachable_name_server_is_exit_code_4_before_spark(tmp_path: Path, job: str) -> None:
    answer = pipeline(tmp_path, *jobs("orders")[job], "--namesrv", NOBODY)
    assert answer.exit_code == 4, answer.output
    assert NOBODY in answer.output
    assert len(answer.output.strip().splitlines()) == 1


@pytest.mark.proves("spark.migration.before-spark")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", list(jobs("")))
def test_a_topic_that_is_not_there_is_exit_code_5_before_spark(
    tmp_path: Path, cluster: LocalCluster, job: str
) -> None:
    answer = pipeline(tmp_path, *jobs("nobody-made-it")[job], "--namesrv", cluster.namesrv)
    assert answer.exit_code == 5, answer.output
    assert len(answer.output.strip().splitlines()) == 1


@pytest.mark.proves("spark.migration.before-spark")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    "arguments",
    [
        ["migrate", TOPIC, TOPIC, "--checkpoint", "@c", "--yes"],
        ["migrate", TOPIC, "x", "--option", "nothing", "--checkpoint", "@c", "--yes"],
        ["migrate", TOPIC, "x", "--conf", "nothing", "--checkpoint", "@c", "--yes"],
        ["archive", "@a", TOPIC, "--option", "no.such.option=1"],
        ["sql", "select 1", "--output", "parquet"],
        ["dedupe", TOPIC, TOPIC, "--checkpoint", "@c", "--yes"],
    ],
)
def test_arguments_that_cannot_be_used_are_exit_code_2_before_spark(
    tmp_path: Path, cluster: LocalCluster, topic: str, arguments: list[str]
) -> None:
    answer = pipeline(tmp_path, *arguments, "--namesrv", cluster.namesrv)
    assert answer.exit_code == 2, answer.output


REFUSED = {
    "a blank name": (["@T", ""], 2, "blank"),
    "a name with a space": (["@T", "or ders"], 2, "may hold only letters"),
    "a long name": (["@T", "x" * 128], 2, "127"),
    "a topic of the system": (["@T", "rmq_sys_mine"], 2, "belongs to the system"),
    "the topic of delays": (["@T", "SCHEDULE_TOPIC_XXXX"], 2, "belongs to the system"),
    "the template": (["@T", "TBW102"], 2, "belongs to the system"),
    "a retry topic": (["@T", "%RETRY%g"], 2, "retry topic"),
    "too many queues": (["@T", "new", "--queues", "70000"], 2, "65535"),
    "a source of the system": (["SELF_TEST_TOPIC", "new"], 2, "belongs to the system"),
    "a source that is closed": (["unreadable", "new"], 2, "may not be read"),
    "a target that is closed": (["@T", "unwritable"], 2, "may not be written"),
    "an empty key": (["@T", "new", "--key", ""], 2, "key is ''"),
    "a key of blanks": (["@T", "new", "--key", " "], 2, "key is ' '"),
    "no master": (["@T", "new", "--master", "locl[2]"], 2, "master 'locl[2]' is none"),
    "another checkpoint": (["@T", "new", "--checkpoint", "@other"], 2, "to the job restore"),
    "no checkpoint": (["@T", "new", "--checkpoint", "@foreign"], 2, "something else in it"),
}


@pytest.mark.proves("spark.migration.dry-run-refusals")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", ["migrate", "dedupe"])
@pytest.mark.parametrize("case", list(REFUSED))
def test_a_dry_run_refuses_the_same_as_the_run_in_the_same_words(
    tmp_path: Path, cluster: LocalCluster, topic: str, job: str, case: str
) -> None:
    arguments, code, told = REFUSED[case]
    make_closed_topics(cluster)
    Checkpoint(tmp_path / "other").claim("restore", {})
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear all")
    before = sorted(tmp_path.rglob("*"))
    usual = ["--queues", "2", "--checkpoint", "@c", "--yes", "--namesrv", cluster.namesrv]
    if "unwritable" in arguments:
        usual = usual[2:]
    # The last of an option that is given twice counts.
    given = [job, *usual, *(topic if one == "@T" else one for one in arguments)]
    planned = pipeline(tmp_path, *given, "--dry-run")
    done = pipeline(tmp_path, *given)
    assert (planned.exit_code, done.exit_code) == (code, code), planned.output + done.output
    assert planned.output == done.output
    assert told in planned.output
    assert sorted(tmp_path.rglob("*")) == before


def make_closed_topics(cluster: LocalCluster) -> None:
    with Admin(cluster.namesrv) as admin:
        admin.create_topic("unreadable", queues=1, perm=2)
        admin.create_topic("unwritable", queues=1, perm=4)


@pytest.mark.proves("spark.migration.dry-run-refusals")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("is_dry", [True, False])
def test_a_group_that_never_consumed_the_topic_is_exit_code_5(
    tmp_path: Path, cluster: LocalCluster, topic: str, is_dry: bool
) -> None:
    command = [*jobs(topic)["migrate"], "--groups", "nobody", "--namesrv", cluster.namesrv]
    answer = pipeline(tmp_path, *command, *(["--dry-run"] if is_dry else []))
    assert answer.exit_code == 5, answer.output
    assert "group nobody has no offsets on topic" in answer.output


@pytest.mark.proves("spark.migration.dry-run-refusals")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", list(jobs("")))
def test_an_invalid_master_is_exit_code_2_also_in_a_dry_run(
    tmp_path: Path, cluster: LocalCluster, topic: str, job: str
) -> None:
    command = [*jobs(topic)[job], "--namesrv", cluster.namesrv, "--master", "nonsense"]
    for more in ([], ["--dry-run"]):
        answer = pipeline(tmp_path, *command, *more)
        assert answer.exit_code == 2, answer.output
        assert "master 'nonsense' is none" in answer.output


@pytest.mark.proves("spark.migration.dry-run")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", ["migrate", "archive", "dedupe", "report"])
def test_a_dry_run_starts_no_spark(
    tmp_path: Path, cluster: LocalCluster, topic: str, job: str
) -> None:
    answer = pipeline(tmp_path, *jobs(topic)[job], "--dry-run", "--namesrv", cluster.namesrv)
    assert answer.exit_code == 0, answer.output
    assert f"{job}: planned" in answer.output


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize(
    "job",
    [
        ["archive", "@archive", TOPIC, "--broker", "broker-a"],
        ["report", TOPIC, "--out", "@report"],
    ],
    ids=lambda job: job[0],
)
def test_the_folder_around_a_store_will_do(
    tmp_path: Path, cluster: LocalCluster, topic: str, job: list[str]
) -> None:
    around = cluster.brokers[0].folder
    plans = [
        pipeline(tmp_path, *job, "--dry-run", "--json", "--store-path", str(folder))
        for folder in (around / "store", around)
    ]
    assert [plan.exit_code for plan in plans] == [0, 0], plans[1].output
    assert plans[0].output == plans[1].output
    assert topic in plans[1].output


@pytest.mark.proves("cli.small-rules.words-and-exit-codes")
def test_a_query_reads_the_store_in_the_folder_that_is_named(
    tmp_path: Path, cluster: LocalCluster, topic: str, no_spark: None
) -> None:
    answer = pipeline(
        *(tmp_path, "sql", "select 1 from store.nobody_made_it"),
        *("--store-path", str(cluster.brokers[0].folder)),
    )
    assert answer.exit_code == 5, answer.output
    assert str(cluster.brokers[0].folder / "store") in answer.output


@pytest.mark.proves("spark.migration.before-spark")
@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("job", ["migrate", "archive", "dedupe", "report"])
def test_the_context_in_use_and_a_named_one_are_the_cluster_that_is_meant(
    tmp_path: Path,
    cluster: LocalCluster,
    topic: str,
    job: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = [*jobs(topic)[job], "--dry-run"]
    assert contrail("ctx", "add", "nobody", NOBODY).exit_code == 0
    assert contrail("ctx", "add", "here", cluster.namesrv).exit_code == 0
    assert contrail("ctx", "use", "nobody").exit_code == 0
    answer = pipeline(tmp_path, *plan)
    assert answer.exit_code == 4 and NOBODY in answer.output
    # The stronger first: the option, the variable, the context in use.
    assert pipeline(tmp_path, *plan, "--ctx", "here").exit_code == 0
    assert pipeline(tmp_path, *plan, "--namesrv", cluster.namesrv).exit_code == 0
    assert pipeline(tmp_path, *plan, "--ctx", "nobody-made-it").exit_code == 5
    both = pipeline(tmp_path, *plan, "--ctx", "here", "--namesrv", cluster.namesrv)
    assert both.exit_code == 2
    assert contrail("ctx", "use", "here").exit_code == 0
    assert pipeline(tmp_path, *plan).exit_code == 0
    monkeypatch.setenv("NAMESRV_ADDR", NOBODY)
    assert pipeline(tmp_path, *plan).exit_code == 4


@pytest.mark.proves("spark.migration.before-spark")
def test_sigterm_is_one_line_and_its_own_exit_code(
    tmp_path: Path, cluster: LocalCluster, topic: str
) -> None:
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "contrail.cli", "pipeline", "migrate", topic, "followed"]
    command += ["--queues", "1", "--follow", "--checkpoint", str(tmp_path / "c"), "--yes"]
    command += ["--namesrv", cluster.namesrv, "--groups", "", "--master", "local[1]"]
    with log.open("wb") as output:
        job = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 400
        while not list((tmp_path / "c").glob("spark/copy/commits/[0-9]*")):
            assert job.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        before = len(log.read_text())
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == 143
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    # The JVM ends a moment later, and prints nothing either.
    time.sleep(2)
    told = log.read_text()[before:]
    lines = [line for line in told.splitlines() if line.strip()]
    assert lines == ["contrail: ended by SIGTERM; the same command with its --checkpoint goes on"]
    assert not any(word in told for word in JAVA)


@pytest.mark.proves("spark.migration.unknown-groups")
def test_a_group_that_one_broker_of_the_target_does_not_know_is_made_there(tmp_path: Path) -> None:
    """Offsets of a group that a broker does not know are refused."""
    settings = {"autoCreateSubscriptionGroup": "false"}
    with LocalCluster(brokers=2, properties=settings) as pair, Admin(pair.namesrv) as admin:
        send_rows(pair, orders(make_topic(pair, "halves", queues=1), 10))
        admin.create_group("half-known", broker="broker-a", retry_count_max=3)
        admin.commit_offset("half-known", MessageQueue("halves", "broker-a", 0), 2)
        answer = contrail(
            *("pipeline", "migrate", "halves", "whole", "--queues", "1", "--yes"),
            *("--checkpoint", str(tmp_path / "c"), "--namesrv", pair.namesrv),
            *("--master", "local[2]"),
        )
        assert answer.exit_code == 0, answer.output
        assert "half-known: set on 2 queues" in answer.output
        known = admin.group_configs()
        assert known["broker-b"]["half-known"].retry_count_max == 3
        places = admin.committed_offsets("half-known", "whole")
        assert len(places) == 2 and None not in places.values()
