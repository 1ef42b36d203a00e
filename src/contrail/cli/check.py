"""``contrail check``: lag, dead letters and disk for monitors, by Nagios's conventions.

One line on standard output with figures behind a bar, and the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from contrail.cli.completion import group_names, topic_names
from contrail.cli.output import AsJson, print_json
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.usage import UsageError, help_was_asked, usage_line
from contrail.cli.words import in_words
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError, ContrailError, OptionInvalid
from contrail.model.topic import DLQ_PREFIX, dlq_topic


class Status(IntEnum):
    """Nagios's states; the number is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


# A figure past a limit is worse than a server without an answer.
_WORST_FIRST = (Status.CRITICAL, Status.UNKNOWN, Status.WARNING, Status.OK)


@dataclass(frozen=True, slots=True)
class Limits:
    """A figure above ``warn`` is a warning, above ``crit`` it is critical."""

    warn: float
    crit: float

    def status(self, value: float) -> Status:
        if value > self.crit:
            return Status.CRITICAL
        return Status.WARNING if value > self.warn else Status.OK


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure; ``unit`` is empty for a count."""

    name: str
    value: float
    unit: str
    warn: float
    crit: float

    def perfdata(self) -> str:
        # An apostrophe is doubled; a name may hold anything but that and "=".
        name = self.name.replace("'", "''").replace("=", "_")
        return f"'{name}'={self.value:g}{self.unit};{self.warn:g};{self.crit:g};0;"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check."""

    status: Status
    text: str
    metrics: tuple[Metric, ...] = ()


GroupName = Annotated[
    str | None,
    typer.Option(
        "-g",
        "--group",
        metavar="GROUP",
        autocompletion=group_names,
        help="Only this group; else each of them.",
    ),
]
_PERCENT_MAX = 100

Warn = Annotated[str | None, typer.Option("--warn", metavar="LIMIT", help="A warning above this.")]
Crit = Annotated[str | None, typer.Option("--crit", metavar="LIMIT", help="Critical above this.")]


# A monitor would read the exit code of a usage mistake, 2, as CRITICAL: it is UNKNOWN. Typer's own
# context and command types are private to it, hence Any.


class CheckCommand(TyperCommand):
    """Answer UNKNOWN for a check with invalid options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        as_json = "--json" in args
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            _end_unknown(str(self.name), usage_line(error, ctx.command_path), as_json)


class CheckGroup(TyperGroup):
    """The same for a command that is no check."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if help_was_asked(error):
                raise typer.Exit(int(Status.UNKNOWN)) from error
            _end_unknown("check", usage_line(error, ctx.command_path))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            _end_unknown("check", usage_line(error, ctx.command_path))


app = typer.Typer(cls=CheckGroup, no_args_is_help=True, add_completion=False)


@app.callback()
def check() -> None:
    """For monitors: exit code 0 is OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."""


@app.command(cls=CheckCommand)
def lag(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    group: GroupName = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "-t", "--topic", metavar="TOPIC", autocompletion=topic_names, help="Only on this topic."
        ),
    ] = None,
    warn: Warn = None,
    crit: Crit = None,
    as_json: AsJson = False,
) -> None:
    """How many messages wait for a group."""

    def look() -> Checked:
        limits = _limits(warn, crit, unit="")
        with open_admin(namesrv, ctx) as admin:
            return _judge(_lags(admin, group, topic), limits, "lag")

    _finish("lag", look, as_json)


@app.command(cls=CheckCommand)
def dlq(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    group: GroupName = None,
    warn: Warn = None,
    crit: Crit = None,
    as_json: AsJson = False,
) -> None:
    """How many dead letters a group has."""

    def look() -> Checked:
        limits = _limits(warn, crit, unit="")
        with open_admin(namesrv, ctx) as admin:
            return _judge(_dead_letters(admin, group), limits, "dead letters")

    _finish("dlq", look, as_json)


@app.command(cls=CheckCommand)
def disk(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    warn: Warn = None,
    crit: Crit = None,
    as_json: AsJson = False,
) -> None:
    """How full the brokers' disks are; limits as 80%."""

    def look() -> Checked:
        limits = _limits(warn, crit, unit="%")
        with open_admin(namesrv, ctx) as admin:
            return _judge_disks(admin, limits)

    _finish("disk", look, as_json)


def _lags(admin: Admin, group: str | None, topic: str | None) -> dict[str, float]:
    if group is not None:
        # Requested for all topics, since brokers invent a lag for a topic that the group never
        # consumed.
        found = {group: admin.lag(group)}
    else:
        known = frozenset(admin.groups())
        found = {name: one for name, one in admin.lags().items() if name in known}
    if topic is None:
        return {name: one.total for name, one in found.items()}
    on_topic = {name: one.by_topic[topic] for name, one in found.items() if topic in one.by_topic}
    if not on_topic:
        admin.topic_route(topic)
        who = "no group consumes" if group is None else f"group {group!r} does not consume"
        raise ConfigError(f"{who} topic {topic!r}: correct the names")
    return {name: float(lag) for name, lag in on_topic.items()}


def _dead_letters(admin: Admin, group: str | None) -> dict[str, float]:
    if group is not None:
        # Without dead letters there is no topic for them; an unknown group is an error.
        admin.group_config(group)
        if admin.dead_letter_topic(group) is None:
            return {group: 0}
        return {group: admin.topic_stats(dlq_topic(group)).count}
    topics = [name for name in admin.topics() if name.startswith(DLQ_PREFIX)]
    return {name.removeprefix(DLQ_PREFIX): admin.topic_stats(name).count for name in topics}


def _judge(values: dict[str, float], limits: Limits, what: str) -> Checked:
    metrics = tuple(
        Metric(name, value, "", limits.warn, limits.crit) for name, value in sorted(values.items())
    )
    status = _worst([limits.status(one.value) for one in metrics])
    return Checked(status, _text(metrics, limits, what), metrics)


def _judge_disks(admin: Admin, limits: Limits) -> Checked:
    runtimes = admin.broker_runtimes(allow_partial=True)
    everyone = (one.broker_name if one.is_master else one.address for one in admin.brokers())
    silent = [name for name in everyone if name not in runtimes]
    metrics = tuple(
        # A broker without messages has no folder to measure, and reports -1.
        Metric(name, max(0, round(one.disk_used_ratio * 100, 1)), "%", limits.warn, limits.crit)
        for name, one in sorted(runtimes.items())
    )
    statuses = [limits.status(one.value) for one in metrics]
    text = _text(metrics, limits, "disk used")
    if silent:
        statuses.append(Status.UNKNOWN)
        text += f", no answer from {', '.join(silent)}"
    return Checked(_worst(statuses), text, metrics)


def _text(metrics: tuple[Metric, ...], limits: Limits, what: str) -> str:
    """The worst few figures, for the person on call."""
    worst = sorted(metrics, key=lambda one: -one.value)
    above = [one for one in worst if limits.status(one.value) is not Status.OK] or worst[:1]
    told = ", ".join(f"{one.name} {one.value:g}{one.unit}" for one in above[:5])
    more = f" and {len(above) - 5} more" if len(above) > 5 else ""
    return f"{what}: {told or 'none'}{more}"


def _worst(statuses: list[Status]) -> Status:
    return next((one for one in _WORST_FIRST if one in statuses), Status.OK)


def _limits(warn: str | None, crit: str | None, *, unit: str) -> Limits:
    if warn is None or crit is None:
        raise OptionInvalid("give both limits: --warn LIMIT --crit LIMIT")
    limits = Limits(_limit("--warn", warn, unit), _limit("--crit", crit, unit))
    if limits.warn > limits.crit:
        raise OptionInvalid(f"--warn {warn} is above --crit {crit}: it is to be at most that")
    return limits


def _limit(option: str, text: str, unit: str) -> float:
    number = text.removesuffix(unit)
    if not number.replace(".", "", 1).isdecimal():
        example = "80%" if unit else "1000"
        raise OptionInvalid(f"{option} {text!r} is no limit: write it as {example}")
    if unit == "%" and float(number) > _PERCENT_MAX:
        raise OptionInvalid(f"{option} {text} is above 100%: no disk is ever that full")
    return float(number)


def _finish(name: str, look: Callable[[], Checked], as_json: bool) -> None:
    """Print on standard output and end with the state's code, which monitors read."""
    try:
        checked = look()
    except ContrailError as error:
        _end_unknown(name, in_words(error), as_json)
    _end(name, checked, as_json)


def _end_unknown(name: str, text: str, as_json: bool = False) -> NoReturn:
    _end(name, Checked(Status.UNKNOWN, " ".join(text.split())), as_json)


def _end(name: str, checked: Checked, as_json: bool) -> NoReturn:
    if as_json:
        metrics = [asdict(one) for one in checked.metrics]
        print_json(
            {
                "check": name,
                "status": checked.status.name,
                "code": int(checked.status),
                "text": checked.text,
                "metrics": metrics,
            }
        )
    else:
        figures = " ".join(one.perfdata() for one in checked.metrics)
        text = checked.text.replace("|", "/")
        line = f"{name.upper()} {checked.status.name} - {text}"
        print(f"{line} | {figures}" if figures else line, file=sys.stdout)
    raise typer.Exit(int(checked.status))
