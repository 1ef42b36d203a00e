"""The Spark session of a job, and the errors without Spark or Java."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import OptionInvalid, PipelineError
from contrail.pipeline.jobs import session


class Builder:
    """Records the calls of ``SparkSession.builder``."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.place: str | None = None

    def appName(self, name: str) -> Builder:
        return self

    def master(self, master: str) -> Builder:
        self.place = master
        return self

    def remote(self, url: str) -> Builder:
        self.place = f"remote {url}"
        return self

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Builder:
        return self


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()

    class Session:
        builder = made

    monkeypatch.setattr(session, "SparkSession", Session)
    monkeypatch.setattr(session, "_register_source", lambda spark: None)
    monkeypatch.setattr(session, "java_version", lambda program: 17)
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    # Put back what the session sets for its workers.
    monkeypatch.setenv("PYSPARK_PYTHON", "as-before")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "as-before")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return made


def opened(master: str | None = None, conf: Mapping[str, str] | None = None) -> Any:
    return session.open_session("test", master=master, conf=conf)


def test_without_a_master_spark_runs_in_this_process(builder: Builder) -> None:
    opened()
    assert builder.place == "local[*]"
    assert builder.settings["spark.sql.session.timeZone"] == "UTC"
    assert builder.settings["spark.driver.host"] == "127.0.0.1"


def test_a_master_is_passed_unchanged(builder: Builder) -> None:
    opened("spark://there:7077")
    assert builder.place == "spark://there:7077"
    assert "spark.driver.host" not in builder.settings


@pytest.mark.proves("spark.clusters.masters")
def test_executors_of_a_master_use_the_python_of_their_packed_environment(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", "/usr/bin")
    opened("spark://there:7077", {"spark.archives": "/x/contrail-env.tar.gz#env"})
    name = os.environ["PYSPARK_PYTHON"]
    assert name == os.path.basename(name)
    assert Path(shutil.which(name) or "").samefile(sys.executable)
    first = f"./env/bin:{Path(sys.executable).parent}:"
    assert os.environ["PATH"] == f"{first}/usr/bin"
    assert builder.settings["spark.executorEnv.PATH"].startswith(f"{first}/usr/local/")
    assert builder.settings["spark.archives"] == "/x/contrail-env.tar.gz#env"


def test_executors_without_a_packed_environment_keep_their_path(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", "/usr/bin")
    opened("spark://there:7077", {"spark.archives": "/x/words.zip"})
    assert Path(shutil.which(os.environ["PYSPARK_PYTHON"]) or "").samefile(sys.executable)
    assert "spark.executorEnv.PATH" not in builder.settings


def test_a_python_that_is_named_is_used_on_both_sides(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.environ["PATH"]
    opened("spark://there:7077", {"spark.archives": "/x/contrail-env.tar.gz#env"})
    assert os.environ["PYSPARK_PYTHON"] == "as-before"
    assert os.environ["PATH"] == before
    assert "spark.executorEnv.PATH" not in builder.settings


def test_a_connect_session_is_given_no_settings_of_its_server(builder: Builder) -> None:
    """Spark refuses each such setting with a warning of three lines."""
    opened("sc://there", {"spark.sql.shuffle.partitions": "8"})
    assert builder.settings == {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
    }


def test_a_connect_address_needs_no_java_here(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "java_version", lambda program: None)
    opened("sc://there")
    assert builder.place == "remote sc://there"


@pytest.mark.parametrize("variable", ["SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"])
def test_a_master_of_the_environment_is_left(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    opened()
    assert builder.place is None


def test_given_settings_override_those_of_the_job(builder: Builder) -> None:
    opened(conf={"spark.ui.enabled": "true", "spark.executor.memory": "3g"})
    assert builder.settings["spark.ui.enabled"] == "true"
    assert builder.settings["spark.executor.memory"] == "3g"


@pytest.mark.parametrize(
    ("found", "told"), [(None, "no Java was found"), (11, "is Java 11")], ids=["none", "too old"]
)
@pytest.mark.usefixtures("builder")
def test_without_java_seventeen_the_error_has_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, found: int | None, told: str
) -> None:
    monkeypatch.setattr(session, "java_version", lambda program: found)
    with pytest.raises(PipelineError, match=told) as refused:
        opened()
    assert "sudo apt-get install openjdk-17-jre-headless" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_spark_that_does_not_start_is_one_line(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("connection refused\n  at java.net.Socket")

    monkeypatch.setattr(builder, "getOrCreate", refuse)
    with pytest.raises(PipelineError) as refused:
        opened("spark://there:7077")
    assert str(refused.value) == "Spark does not start at spark://there:7077: connection refused"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n', 17),
        ('JAVA_VERSION="1.8.0_292"\n', 8),
        ('JAVA_VERSION="21"\n', 21),
        ("not a java", 0),
    ],
)
def test_the_release_of_a_java_is_read(tmp_path: Path, text: str, version: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    assert session.java_version(str(tmp_path / "bin" / "java")) == 0
    (tmp_path / "release").write_text(text, encoding="utf-8")
    assert session.java_version(str(tmp_path / "bin" / "java")) == version


def test_a_missing_java_has_no_release(tmp_path: Path) -> None:
    assert session.java_version(str(tmp_path / "java")) is None


class Given:
    """A session of the caller; ``sources`` are registered with it."""

    def __init__(self) -> None:
        self.stopped = False
        self.sources: list[Any] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.sources.append(source)

    def stop(self) -> None:
        self.stopped = True


def test_a_given_session_learns_the_format_and_is_left_open() -> None:
    given: Any = Given()
    with session.job_session(given, "test") as spark:
        assert spark is given
    assert [source.name() for source in given.sources] == ["rocketmq"]
    assert not given.stopped


def test_an_existing_session_is_used_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    active: Any = Given()
    monkeypatch.setattr(session.SparkSession, "getActiveSession", lambda: active)
    with session.job_session(None, "test") as spark:
        assert spark is active
    assert not active.stopped


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[1]", "local[*]", "local[4, 2]", "local-cluster[2,1,1024]", "yarn"),
        *("spark://a:7077", "spark://a:7077,b:7077", "spark://[::1]:7077"),
        *("k8s://https://k:6443", "sc://a", "sc://a:15002/;token=x", "sc://[::1]:15002", None, ""),
    ],
)
def test_an_address_of_a_master_is_accepted(master: str | None) -> None:
    session.SessionToOpen("x", master=master)


@pytest.mark.parametrize(
    "master",
    [
        *("nonsense", "locl[2]", "local[0]", "local[]", "local[x]", "local [2]", "spark:/a:7077"),
        *("spark://a", "spark://", "spark://a:x", "sparc://a:7077", "sc://", "k8s://", "http://a"),
        *("spark://a:7077,", " local", "yarn-client", "mesos://a:5050"),
    ],
)
def test_an_invalid_master_is_refused_before_spark_is_started(
    master: str, builder: Builder
) -> None:
    with pytest.raises(OptionInvalid, match="is none: give local"):
        session.SessionToOpen("x", master=master)
    with pytest.raises(OptionInvalid, match="is none: give local"):
        session.open_session("x", master=master)
    assert builder.place is None
