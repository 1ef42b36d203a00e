"""Spark finds the source without registration, and names the fix when it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_rocketmq
from contrail.errors import OptionInvalid, PipelineError
from contrail.pipeline.batch_reader import BatchReader, FilteringBatchReader
from contrail.pipeline.columns import default_schema
from contrail.pipeline.source import RocketMqSource
from pyspark_rocketmq import DefaultSource, check, register

OPTIONS = {"namesrvaddr": "127.0.0.1:9876", "subscribe": "orders"}


@pytest.mark.proves("spark.source.found")
def test_spark_and_we_mean_the_same_source(spark: SparkSession) -> None:
    assert DefaultSource is RocketMqSource
    assert DefaultSource.name() == "rocketmq"
    frame = spark.read.format("rocketmq").options(**OPTIONS, includeHeaders="true").load()
    assert frame.schema == default_schema(include_properties=True)
    assert frame.columns[-1] == "properties"
    register(spark)
    again = spark.read.format("rocketmq").options(**OPTIONS).load()
    assert again.schema == default_schema(include_properties=False)


@pytest.mark.proves("spark.source.found")
def test_the_door_is_light() -> None:
    """Spark imports it for every unknown format, in every user's program."""
    script = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import pyspark_rocketmq\n"
        "print(' '.join(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "contrail",
        "contrail.errors",
        "contrail.pipeline",
        "contrail.pipeline.source",
        "contrail.pipeline.spoken_errors",
        "pyspark_rocketmq",
    ]


@pytest.mark.proves("spark.source.found")
def test_an_interpreter_without_the_package_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(spark)
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'x'\" >&2; exit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(other))
    expected = f"{other}.*No module named 'x'.*Set PYSPARK_PYTHON={sys.executable}"
    with pytest.raises(PipelineError, match=expected):
        check(spark)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(PipelineError, match=r"'python3'.*no such program on the PATH"):
        check(spark)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="'python3'"):
        check(spark)
    monkeypatch.setenv("PYSPARK_PYTHON", "./env/bin/python")
    with pytest.raises(PipelineError, match="one name on the driver and on the executors"):
        check(spark)


def test_another_interpreter_that_has_the_package_is_as_good(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(other))
    check(spark)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    register(spark)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(tmp_path / "missing"))
    with pytest.raises(PipelineError, match="missing"):
        register(spark)
    monkeypatch.undo()
    register(spark)


def test_a_connect_session_is_left_to_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", os.devnull)

    class Connected:
        """A session of a Connect client, without a JVM beside it."""

    check(Connected())  # type: ignore[arg-type]


def test_filters_reach_only_a_reader_that_was_asked_to_take_them() -> None:
    schema = default_schema(include_properties=False)
    plain = DefaultSource(OPTIONS).reader(schema)
    taking = DefaultSource({**OPTIONS, "pushdown": "true"}).reader(schema)
    assert type(plain) is BatchReader
    assert type(taking) is FilteringBatchReader


def test_overwriting_is_refused_on_both_sides() -> None:
    source = DefaultSource({"namesrvaddr": "127.0.0.1:9876", "topic": "orders"})
    schema = default_schema(include_properties=False)
    with pytest.raises(OptionInvalid, match="messages that are stored stay"):
        source.writer(schema, overwrite=True)
    with pytest.raises(OptionInvalid, match="messages that are stored stay"):
        source.streamWriter(schema, overwrite=True)


def test_the_door_offers_the_names_it_lists() -> None:
    names = [
        "DefaultSource",
        "check",
        "commit_as_group",
        "register",
        "table_sink",
        "views",
        "watch",
    ]
    assert sorted(pyspark_rocketmq.__all__) == names
