"""The shared part of ``contrail pipeline``: exit codes, one line for an error, summaries."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from pyspark.errors import PySparkRuntimeError
from typer.testing import CliRunner

from contrail.cli.pipeline import shared
from contrail.cli.pipeline.app import JOBS
from contrail.cli.root import app
from contrail.errors import (
    ConfigError,
    ContrailError,
    DataLost,
    JobFailed,
    NameServerUnreachable,
    NotThere,
    OptionInvalid,
    RouteMissing,
)
from contrail.pipeline.jobs import session
from contrail.pipeline.jobs.progress import Pace
from contrail.pipeline.jobs.summary import Summary
from tests.cli.running import check_json


@dataclass(frozen=True)
class Settings:
    dry_run: bool = False


class FakeSpark:
    def __init__(self) -> None:
        self.opened = False
        self.stopped = False

    def open(self, *_: object, **__: object) -> FakeSpark:
        self.opened = True
        return self

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    made = FakeSpark()
    monkeypatch.setattr(session, "open_session", made.open)
    return made


def job(settings: Settings, *, spark: Any, progress: Any = None) -> Summary:
    return Summary("job", "planned" if settings.dry_run else "done", {"rows": 1_234}, [{"n": 1}])


def ended(work: Callable[[], None]) -> int:
    with pytest.raises(typer.Exit) as exit_:
        work()
    return exit_.value.exit_code


@pytest.mark.proves("spark.jobs.commands")
def test_a_missing_spark_is_one_line_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "find_spec", lambda name: None)
    answer = CliRunner().invoke(app, ["pipeline", "migrate", "a", "b"])
    assert answer.exit_code == 2
    assert "pip install contrail-mq[spark]" in answer.output
    assert len(answer.output.strip().splitlines()) == 1


def test_a_job_without_a_checkpoint_is_refused_with_the_flag() -> None:
    answer = CliRunner().invoke(app, ["pipeline", "migrate", "a", "b", "--yes"])
    assert answer.exit_code == 2
    assert "--checkpoint DIR" in answer.output


@pytest.mark.usefixtures("spark")
def test_a_summary_is_printed_for_people_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    shared.run(job, Settings(), shared.Running())
    text = capsys.readouterr().out
    assert "job: done" in text and "1,234" in text
    shared.run(job, Settings(), shared.Running(as_json=True))
    told = json.loads(capsys.readouterr().out)
    assert told["facts"] == {"rows": 1_234}
    for command in JOBS:
        check_json(f"pipeline-{command}", told)


def test_a_job_that_needs_consent_is_refused_without_a_terminal(
    spark: FakeSpark, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    code = ended(lambda: shared.run(job, Settings(), shared.Running(confirm=True)))
    assert code == 2
    assert "then say --yes" in capsys.readouterr().err
    assert not spark.opened


def test_a_session_is_opened_when_the_job_needs_it_and_stopped_after_it(spark: FakeSpark) -> None:
    def needing(settings: Settings, *, spark: Any, progress: Any) -> Summary:
        assert not spark.opened().stopped
        return job(settings, spark=spark)

    shared.run(needing, Settings(), shared.Running())
    assert spark.stopped
    spark.opened = spark.stopped = False
    shared.run(job, Settings(), shared.Running())
    assert not spark.opened and not spark.stopped


@pytest.mark.usefixtures("spark")
def test_a_dry_run_asks_for_no_consent(capsys: pytest.CaptureFixture[str]) -> None:
    shared.run(job, Settings(dry_run=True), shared.Running(confirm=True))
    assert "job: planned" in capsys.readouterr().out


@pytest.mark.proves("spark.scale.exit-codes")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailed("differs"), 1),
        (OptionInvalid("no such thing"), 2),
        (ConfigError("no such topic"), 2),
        (KeyboardInterrupt(), 130),
        (NotThere("no such topic"), 5),
        (RouteMissing("no route", topic="orders"), 5),
        (NameServerUnreachable("no NameServer answered"), 4),
        (DataLost("gone"), 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_is_one_line(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        with shared.failures():
            raise error

    assert ended(fail) == code
    told = capsys.readouterr().err
    assert told.startswith("contrail: ")
    assert len(told.splitlines()) == 1
    if isinstance(error, ContrailError):
        assert str(error) in told


def test_a_failure_of_spark_is_one_line_and_a_bug_is_not_hidden(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(error: Exception) -> Callable[[], None]:
        def work() -> None:
            with shared.failures():
                raise error

        return work

    for told, code in (
        ("contrail.errors.RouteMissing: topic 'x' has no route", 5),
        ("contrail.errors.NameServerUnreachable: no NameServer answered", 4),
        ("contrail.errors.OptionInvalid: tags: no", 2),
        ("contrail.errors.DataLost: gone", 1),
        ("contrail.errors.SomethingElse: x", 1),
    ):
        assert ended(fail(PySparkRuntimeError(f"[X] Traceback\n{told}\n at y"))) == code
    capsys.readouterr()
    assert ended(fail(PySparkRuntimeError("it broke\n  at org.apache.spark"))) == 1
    assert capsys.readouterr().err == "contrail: it broke\n"
    with pytest.raises(ZeroDivisionError):
        fail(ZeroDivisionError())()


def test_the_line_of_a_contrail_error_in_sparks_output_is_found() -> None:
    page = (
        "[STREAM_FAILED] Query terminated\n  File x.py\n"
        "contrail.errors.DataLost: orders broker-a:0 has lost 1 to 5\n  at org.apache\n"
    )
    assert shared.spark_line(page) == "orders broker-a:0 has lost 1 to 5"


def test_a_failed_worker_of_spark_is_reported_by_its_last_python_line() -> None:
    page = (
        "An error occurred while calling o165.collectToPython.\n"
        ": org.apache.spark.SparkException: \nError from python worker:\n"
        "  Traceback (most recent call last):\n"
        "  ModuleNotFoundError: No module named 'contrail'\n"
        "PYTHONPATH was:\n  /x\n\tat org.apache.spark\n"
    )
    assert shared.spark_line(page) == (
        "Spark's Python failed: ModuleNotFoundError: No module named 'contrail'"
    )


def test_the_name_of_a_call_is_not_the_reason_of_its_failure() -> None:
    page = (
        "An error occurred while calling o47.load.\n"
        ": java.io.IOException: Cannot run program\n\tat x\n"
    )
    assert shared.spark_line(page) == "java.io.IOException: Cannot run program"


@pytest.mark.usefixtures("spark")
def test_a_setting_of_spark_must_have_a_name_and_a_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = ended(lambda: shared.run(job, Settings(), shared.Running(conf=["spark.x"])))
    assert code == 2
    assert "--conf 'spark.x' is not NAME=VALUE" in capsys.readouterr().err


def test_the_first_interrupt_asks_the_job_to_stop_and_the_second_ends_it() -> None:
    before = signal.getsignal(signal.SIGINT)
    waiting: AbstractContextManager[Any] = shared.interrupts()
    with waiting as asked:
        assert not asked.is_set()
        signal.raise_signal(signal.SIGINT)
        assert asked.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_progress_bar_accepts_all_progress_of_a_job() -> None:
    with shared.shown_progress() as progress:
        progress.at(1)
        progress.begin("copying", 10)
        progress.at(5, lag=3)
        progress.note("[half] done")
        progress.begin("verifying", None)
        progress.end()
        progress.end()


@pytest.mark.proves("spark.scale.jobs-progress")
def test_the_bar_shows_the_rate_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0, 2_000))
    monkeypatch.setattr(shared, "monotonic_ms", lambda: next(moments))
    with shared.shown_progress() as progress:
        progress.begin("copying", 10_000)
        progress.at(0, lag=9)
        progress.at(4_000, lag=6)
        (task,) = progress._bar.tasks
        assert task.fields["facts"] == "lag 6, 2,000/s, 0:00:03 left"
    assert shared.pace_texts(Pace(None, None)) == []


@pytest.mark.proves("spark.scale.jobs-log")
@pytest.mark.usefixtures("spark")
def test_a_job_logs_its_rounds_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    def copying(settings: Settings, *, spark: Any, progress: Any) -> Summary:
        progress.begin("copying", 2)
        progress.at(2, batch=1)
        return job(settings, spark=spark)

    shared.run(copying, Settings(), shared.Running(as_json=True, log_rounds=True))
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert {"job": "copying", "stage": "copying", "done": 2, "batch": 1}.items() <= json.loads(
        line
    ).items()
    assert json.loads(shown.out)["outcome"] == "done"
