"""``contrail bench``: loads a cluster, Contrail's or Apache's, and measures rates and latency."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from contrail.cli.bench_load import Measured, Mode, SendPlan, consume_load, send_load
from contrail.cli.completion import group_names, topic_names
from contrail.cli.exits import CommandFailed, ExitCode
from contrail.cli.output import AsJson, print_facts, print_json
from contrail.cli.target import ContextName, NameServers, Target, target
from contrail.errors import OptionInvalid

app = typer.Typer(no_args_is_help=True, add_completion=False)

# Brokers take less; their refusal is shown.
_SIZE_MAX = 64 << 20
_BATCH_MAX = 100_000

_DEFAULT_SECONDS = 10.0

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", autocompletion=topic_names, help="A topic that exists.")
]
Count = Annotated[
    int | None, typer.Option("--count", min=1, metavar="N", help="End after this many messages.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", min=0.1, metavar="S", help="End after this many seconds; 10 without --count."
    ),
]
_SECONDS_MAX = 366 * 86_400.0


@app.callback()
def bench() -> None:
    """Load a cluster and measure rates and latency; a line each second on standard error."""


@app.command()
def send(
    topic: Topic,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "--threads", min=1, max=10_000, metavar="N", help="Sends at once."
        ),
    ] = 16,
    size: Annotated[
        int,
        typer.Option(
            "--size", min=1, max=_SIZE_MAX, metavar="BYTES", help="The size of each body."
        ),
    ] = 1024,
    count: Count = None,
    seconds: Seconds = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, metavar="N", help="At most this many messages a second."),
    ] = None,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", min=1, max=_BATCH_MAX, metavar="N", help="Messages in one request."
        ),
    ] = 1,
    mode: Annotated[
        Mode, typer.Option("--mode", help="Wait for answers (sync, async), or not (oneway).")
    ] = Mode.SYNC,
    as_json: AsJson = False,
) -> None:
    """Send messages as fast as they are taken, or at a rate."""
    if batch > 1 and mode is not Mode.SYNC:
        raise OptionInvalid(f"--batch {batch} with --mode {mode}: batches are sent in mode sync")
    chosen = target(namesrv, ctx)
    _require_topic(chosen, topic)
    plan = SendPlan(topic, mode, concurrency, size, batch, count, _limit(count, seconds), rate)
    measured = Measured()
    interrupted = _run_until_interrupted(send_load(chosen, plan, measured))
    settings = {
        "mode": mode.value,
        "concurrency": concurrency,
        "size_bytes": size,
        "batch": batch,
        "rate": rate,
    }
    _end({"topic": topic, **settings}, measured, interrupted, as_json)
    if not measured.messages:
        raise CommandFailed(f"nothing was sent to topic {topic!r}: {measured.first_failure}")


@app.command()
def consume(
    topic: Topic,
    group: Annotated[
        str,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            autocompletion=group_names,
            help="Consume as a member of it.",
        ),
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    count: Count = None,
    seconds: Seconds = None,
    earliest: Annotated[
        bool,
        typer.Option("--earliest", help="A new group begins with the oldest message."),
    ] = False,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", "--threads", min=1, max=10_000, metavar="N", help="Handlers at once."
        ),
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Consume, and measure how long messages take from their birth to a handler."""
    chosen = target(namesrv, ctx)
    _require_topic(chosen, topic)
    measured = Measured()
    interrupted = _run_until_interrupted(
        consume_load(
            chosen,
            topic,
            group,
            measured,
            count=count,
            seconds=_limit(count, seconds),
            earliest=earliest,
            threads=concurrency,
        )
    )
    settings = {"topic": topic, "group": group, "concurrency": concurrency}
    _end(settings, measured, interrupted, as_json)


def _limit(count: int | None, seconds: float | None) -> float | None:
    # Not a range of the option: its comparisons accept "nan".
    if seconds is not None and not seconds <= _SECONDS_MAX:
        raise OptionInvalid(
            f"--seconds {seconds:g}: it must be {_SECONDS_MAX:.0f} (a year) or less"
        )
    return _DEFAULT_SECONDS if count is None and seconds is None else seconds


def _require_topic(chosen: Target, topic: str) -> None:
    """Before any load: the first message must not create a misspelled topic."""
    with chosen.admin() as admin:
        admin.topic_route(topic)


def _run_until_interrupted(load: Coroutine[Any, Any, None]) -> bool:
    """Whether the load was interrupted: its figures until then still count."""
    try:
        asyncio.run(load)
    except KeyboardInterrupt:
        return True
    return False


def _end(settings: dict[str, Any], measured: Measured, interrupted: bool, as_json: bool) -> None:
    """The figures, also of an interrupted load."""
    _print({**settings, "interrupted": interrupted, **measured.result()}, as_json)
    if interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _print(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    flat = {name: value for name, value in result.items() if name != "latency"}
    flat |= {f"latency {name}": f"{value:,g}" for name, value in result["latency"].items()}
    print_facts({name.replace("_", " "): value for name, value in flat.items()})
