"""Shared parts of the pipeline commands: options, running a job, printing.

Exit codes are those of every command; a Spark failure caused by an error of ours has that error's
code.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from contrail import errors
from contrail.cli.assignments import parse_pairs
from contrail.cli.exits import ExitCode, exit_code_of
from contrail.cli.output import complain
from contrail.cli.pipeline.ending import is_ending, quiet_end, wait_for_the_end
from contrail.cli.target import target
from contrail.clock import SystemClock, monotonic_ms
from contrail.errors import (
    ContrailError,
    DataLost,
    JobFailed,
    NotThere,
    PipelineError,
    RecordUndecodable,
    SinkRefused,
)
from contrail.pipeline.jobs.progress import Pace, PaceKeeper, RoundLines

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from contrail.pipeline.jobs.summary import Summary

_SPARK_PARTS = ("pyspark", "pyarrow", "pandas", "numpy")
_CLASS_OF_OURS = re.compile(r"contrail\.errors\.(\w+): ")
_CODES: tuple[tuple[tuple[type[ContrailError], ...], ExitCode], ...] = (
    ((errors.NoBroker, errors.NameServerUnreachable, errors.CallFailed), ExitCode.UNREACHABLE),
    ((NotThere, errors.RouteMissing, errors.BrokerUnknown), ExitCode.NOT_FOUND),
    ((errors.OptionInvalid, errors.ConfigError), ExitCode.UNUSABLE),
)
_FACT_OF_OURS = re.compile(r"contrail\.errors\.\w+: (.+)")
_FROM_A_WORKER = "Error from python worker:"
_PYTHON_FACT = re.compile(r"^ *([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
_CALL_OF_PY4J = re.compile(r"An error occurred while calling \S+")

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]
CheckpointFolder = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Folder of the job's progress; the same folder resumes it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master, or sc://host for Spark Connect; else Spark runs in this process.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; repeatable."),
]
LogRounds = Annotated[
    bool,
    typer.Option("--log-rounds", help="Write a JSON line for each round to standard error."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


@dataclass(frozen=True, slots=True)
class Running:
    """The options by which a command runs its job."""

    master: str | None = None
    conf: list[str] | None = None
    as_json: bool = False
    # Whether a person must agree to the plan first.
    confirm: bool = False
    # Lines of JSON instead of a bar.
    log_rounds: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: its NameServers, and the options by which Spark reaches it."""

    namesrv: str
    options: dict[str, str]


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders, which need no cluster."""

    options: dict[str, str]
    namesrv: None = None


def reached(namesrv: str | None, context: str | None, option: list[str] | None = None) -> Cluster:
    """The cluster that the command line, the environment or the context in use names.

    Options of the command line are stronger than those of a context.

    Raises:
        NotFound: there is no such context.
        ConfigError: both are given, or the file of contexts cannot be used.
        OptionInvalid: an option is not ``NAME=VALUE``.
    """
    found = target(namesrv, context)
    options: dict[str, str] = {}
    if found.tls:
        options["tls.enable"] = "true"
    if found.tls_ca is not None:
        options["tls.client.trustCertPath"] = os.path.abspath(found.tls_ca)
    return Cluster(found.namesrv, {**options, **parse_pairs("--option", option)})


def checkpoint_folder(given: str | None, dry_run: bool) -> str:
    """The given folder; only a dry run can do without one."""
    if given is None and not dry_run:
        complain("say with --checkpoint DIR where the job keeps how far it is")
        raise typer.Exit(ExitCode.UNUSABLE)
    return given or ""


def require_spark() -> None:
    """End in one line if Spark is not installed, instead of a traceback."""
    missing = [part for part in _SPARK_PARTS if find_spec(part) is None]
    if missing:
        complain(
            f"this needs {', '.join(missing)}, which is not installed: "
            "pip install contrail-mq[spark]"
        )
        raise typer.Exit(ExitCode.UNUSABLE)


def run(job: Callable[..., Summary], settings: Any, running: Running) -> None:
    """Run ``job``, after consent to its plan where required; print its summary.

    ``settings`` is the job's dataclass, with ``dry_run`` in it.
    """
    bars: list[ProgressBar] = []
    with quiet_end(lambda: clear(bars)), failures():
        conf = parse_pairs("--conf", running.conf)
        from contrail.pipeline.jobs.session import SessionToOpen

        spark = SessionToOpen(f"contrail {job.__name__}", master=running.master, conf=conf)
        try:
            if running.confirm and not settings.dry_run:
                _agree(job(replace(settings, dry_run=True), spark=spark))
            if running.log_rounds:
                lines = RoundLines(sys.stderr, SystemClock(), job.__name__)
                summary = job(settings, spark=spark, progress=lines)
            else:
                with shown_progress() as progress:
                    bars.append(progress)
                    summary = job(settings, spark=spark, progress=progress)
        finally:
            if not is_ending():
                spark.stop()
    print_summary(summary, running.as_json)


def clear(bars: list[ProgressBar]) -> None:
    """Take the bars of a job that ends off the terminal."""
    for bar in bars:
        bar.close()


@contextmanager
def failures() -> Iterator[None]:
    """Turn an exception of a job into one line and an exit code."""
    try:
        yield
    except BaseException as error:
        if is_ending():
            wait_for_the_end()
        if isinstance(error, KeyboardInterrupt):
            _fail("stopped; the same command with its --checkpoint goes on", error)
        if isinstance(error, ContrailError):
            _fail(str(error), error)
        if isinstance(error, Exception) and _is_sparks(error):
            _fail(spark_line(str(error)), error)
        raise


def code_of(error: BaseException) -> ExitCode:
    """The exit code of a job that ended with this error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, JobFailed | DataLost | SinkRefused | RecordUndecodable):
        return ExitCode.FAILED
    if isinstance(error, NotThere):
        return ExitCode.NOT_FOUND
    if isinstance(error, ContrailError):
        return exit_code_of(error)
    return _code_in(str(error))


def _code_in(text: str) -> ExitCode:
    """The code of an error of ours inside a Spark failure; any other is a failure of the job."""
    names = _CLASS_OF_OURS.findall(text)
    kind = getattr(errors, names[-1], None) if names else None
    if kind is None:
        return ExitCode.FAILED
    for kinds, code in _CODES:
        if issubclass(kind, kinds):
            return code
    return ExitCode.FAILED


def spark_line(text: str) -> str:
    """The line of a Spark failure that names the cause: our error if there is one.

    Otherwise the last line of a Python worker's traceback, else the first line of the failure that
    is not Py4J's name of a call.
    """
    ours = _FACT_OF_OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    worker = _PYTHON_FACT.findall(text.partition(_FROM_A_WORKER)[2])
    if worker:
        return f"Spark's Python failed: {worker[-1].strip()}"
    lines = [line.strip().removeprefix(": ") for line in text.strip().splitlines()]
    told = [line for line in lines if line and not _CALL_OF_PY4J.match(line)]
    return told[0] if told else text.strip()


def print_summary(summary: Summary, as_json: bool) -> None:
    """Print the job's summary on standard output."""
    if as_json:
        typer.echo(summary.as_json())
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{summary.job}: {summary.outcome}", markup=False)
    facts = Table.grid(padding=(0, 2))
    for name, value in summary.facts.items():
        facts.add_row(name, _text(value))
    console.print(facts)
    if summary.table:
        # Rows may have different columns; the table has those of all rows, as met.
        names = list(dict.fromkeys(name for row in summary.table for name in row))
        table = Table(*names)
        for row in summary.table:
            table.add_row(*(_text(row.get(name)) for name in names))
        console.print(table)


@contextmanager
def shown_progress() -> Iterator[ProgressBar]:
    """A bar on standard error, gone when the job is over."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        Elapsed(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        yield ProgressBar(bar)


class ProgressBar:
    """A job's progress, drawn, with its rate and the time that it will take yet."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: Any = None
        self._pace = PaceKeeper(None)

    def begin(self, what: str, total: int | None) -> None:
        self.end()
        self._task = self._bar.add_task(what, total=total, facts="")
        self._pace = PaceKeeper(total)

    def at(self, done: int, **facts: object) -> None:
        if self._task is not None:
            told = [f"{name} {value}" for name, value in facts.items()]
            text = ", ".join(told + pace_texts(self._pace.at(done, monotonic_ms())))
            self._bar.update(self._task, completed=done, facts=text)

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def end(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


def pace_texts(pace: Pace) -> list[str]:
    """A pace in words; nothing that is not known yet."""
    found = []
    if pace.per_second is not None:
        found.append(f"{pace.per_second:,.0f}/s")
    if pace.remaining_s is not None:
        found.append(f"{timedelta(seconds=round(pace.remaining_s))} left")
    return found


@contextmanager
def interrupts() -> Iterator[Event]:
    """Make the first SIGINT a flag that the job reads; a second one ends it."""
    interrupted = Event()

    def take(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, take)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _agree(plan: Summary) -> None:
    """Show the plan and ask; without a terminal --yes is required."""
    if not sys.stdin.isatty():
        raise PipelineError(
            "nobody is there to agree to the plan: see it with --dry-run, then say --yes"
        )
    print_summary(plan, as_json=False)
    typer.confirm("Do this?", abort=True, err=True)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value)
    return "" if value is None else str(value)


def _is_sparks(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in {"pyspark", "py4j", "grpc"}


def _fail(text: str, cause: BaseException) -> NoReturn:
    complain(text)
    raise typer.Exit(code_of(cause)) from cause
