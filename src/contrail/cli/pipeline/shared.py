"""What the pipeline commands share: their options, the way a job is run, and what is printed.

Exit codes: 0 done, 1 the job failed or found a difference, 2 the input cannot be used.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from contrail.cli.output import complain
from contrail.errors import ContrailError, DataLost, JobFailed, PipelineError, SinkRefused

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from contrail.pipeline.jobs.summary import Summary

NAMESRV_VARIABLE = "NAMESRV_ADDR"
DEFAULT_NAMESRV = "127.0.0.1:9876"
_FAILED = 1
_UNUSABLE = 2
_SPARK_PARTS = ("pyspark", "pyarrow", "pandas", "numpy")
_FACT_OF_OURS = re.compile(r"contrail\.errors\.\w+: (.+)")
_FROM_A_WORKER = "Error from python worker:"
_PYTHON_FACT = re.compile(r"^ *([\w.]*(?:Error|Exception): .+)$", re.MULTILINE)
_CALL_OF_PY4J = re.compile(r"An error occurred while calling \S+")

NameServers = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrv",
        metavar="ADDRESSES",
        help=f"NameServers, as host:port;host:port; by default {NAMESRV_VARIABLE}, "
        f"else {DEFAULT_NAMESRV}.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")
]
CheckpointFolder = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where the job keeps how far it is; the same folder resumes it.",
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
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


@dataclass(frozen=True, slots=True)
class Running:
    """How a command was told to run its job."""

    master: str | None = None
    conf: list[str] | None = None
    as_json: bool = False
    # Whether a person must agree to the plan first.
    confirm: bool = False


def name_servers(given: str | None) -> str:
    """The NameServers to ask: the given ones, the environment's, or the usual place."""
    return given or os.environ.get(NAMESRV_VARIABLE) or DEFAULT_NAMESRV


def checkpoint_folder(given: str | None, dry_run: bool) -> str:
    """The folder that was given; only a dry run can do without one."""
    if given is None and not dry_run:
        complain("say with --checkpoint DIR where the job keeps how far it is")
        raise typer.Exit(_UNUSABLE)
    return given or ""


def require_spark() -> None:
    """End in one line where an import would end in a traceback."""
    missing = [part for part in _SPARK_PARTS if find_spec(part) is None]
    if missing:
        complain(
            f"this needs {', '.join(missing)}, which is not installed: "
            "pip install contrail-mq[spark]"
        )
        raise typer.Exit(_UNUSABLE)


def run(job: Callable[..., Summary], settings: Any, running: Running) -> None:
    """Run ``job``, after a person agreed to its plan where that is asked for; print its summary.

    ``settings`` is the job's dataclass, with ``dry_run`` in it.
    """
    with failures():
        conf = _conf(running.conf)
        from contrail.pipeline.jobs.session import open_session

        spark = open_session(f"contrail {job.__name__}", master=running.master, conf=conf)
        try:
            if running.confirm and not settings.dry_run:
                _agree(job(replace(settings, dry_run=True), spark=spark))
            with shown_progress() as progress:
                summary = job(settings, spark=spark, progress=progress)
        finally:
            spark.stop()
    print_summary(summary, running.as_json)


@contextmanager
def failures() -> Iterator[None]:
    """Make one line and an exit code of what a job raises."""
    try:
        yield
    except (JobFailed, DataLost, SinkRefused) as error:
        _fail(str(error), _FAILED, error)
    except ContrailError as error:
        _fail(str(error), _UNUSABLE, error)
    except KeyboardInterrupt as error:
        _fail("stopped; the same command with its --checkpoint goes on", _FAILED, error)
    except Exception as error:
        if not _is_sparks(error):
            raise
        _fail(spark_line(str(error)), _FAILED, error)


def spark_line(text: str) -> str:
    """The one line of a Spark failure that says why: ours if there is one, else what failed.

    That is the last line of a Python worker's traceback, else the first line of the failure that
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
    """Tell how the job ended, on standard output."""
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
        # Rows may differ in what they tell; the columns are those of all of them, as met.
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
    """A job's progress, drawn."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task: Any = None

    def begin(self, what: str, total: int | None) -> None:
        self.end()
        self._task = self._bar.add_task(what, total=total, facts="")

    def at(self, done: int, **facts: object) -> None:
        if self._task is not None:
            text = ", ".join(f"{name} {value}" for name, value in facts.items())
            self._bar.update(self._task, completed=done, facts=text)

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False)

    def end(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None


@contextmanager
def interrupts() -> Iterator[Event]:
    """Make the first SIGINT a wish that the job can ask about; a second one ends it."""
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
    """Show the plan and ask; a command that nobody watches must have said --yes."""
    if not sys.stdin.isatty():
        raise PipelineError(
            "nobody is there to agree to the plan: see it with --dry-run, then say --yes"
        )
    print_summary(plan, as_json=False)
    typer.confirm("Do this?", abort=True, err=True)


def _conf(given: list[str] | None) -> dict[str, str]:
    settings = {}
    for one in given or ():
        name, found, value = one.partition("=")
        if not found or not name:
            raise PipelineError(f"--conf {one!r} is not NAME=VALUE")
        settings[name] = value
    return settings


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


def _fail(text: str, code: int, cause: BaseException) -> NoReturn:
    complain(text)
    raise typer.Exit(code) from cause
