"""``contrail broker status`` and ``config``: running brokers, and their settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from contrail.broker.state.runtime_settings import CHANGEABLE
from contrail.cli.assignments import parse_pairs
from contrail.cli.broker_figures import duration_text, print_figures
from contrail.cli.exits import NotFound
from contrail.cli.output import (
    AsJson,
    DryRun,
    Yes,
    agree,
    print_facts,
    print_json,
    print_rows,
    time_text,
)
from contrail.cli.replication_status import figures_of as replication_figures
from contrail.cli.replication_status import print_parts, summary_of
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.admin_values import BrokerAddress
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.errors import CallFailed, ClientError
from contrail.insight.brokers import broker_rows

ALL = "all"
_OURS = "contrail"

BrokerNames = Annotated[
    str, typer.Argument(metavar="NAME", help="A broker's name, NAME:ID or address, or all.")
]


def status(
    name: BrokerNames = ALL,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Show how a broker is: rates, disk, messages of today, permission, and all its figures."""
    with open_admin(namesrv, ctx) as client:
        now_ms = SystemClock().now_ms()
        rows = client.run(broker_rows, _meant(client, name), now_ms)
        if name != ALL and rows[0]["error"]:
            raise CallFailed(rows[0]["error"])
        for row in rows:
            values = {} if row["error"] else client.broker_runtime(row["address"]).values
            row["values"] = dict(sorted(values.items()))
            row["replication"] = None if row["error"] else _replication(client, row["address"])
    if as_json:
        print_json(rows)
    elif name == ALL:
        print_figures(rows, more={"replication": summary_of})
    else:
        _print_broker(rows[0])


def _replication(client: Admin, address: str) -> dict[str, Any] | None:
    """None of a broker that takes part in no replication, or does not tell."""
    try:
        return replication_figures(client.replication_status(address))
    except ClientError:
        return None


def _print_broker(row: dict[str, Any]) -> None:
    ratio = row["disk_used_ratio"]
    shown = {
        **{name: value for name, value in row.items() if name not in ("values", "replication")},
        "boot_timestamp_ms": time_text(row["boot_timestamp_ms"]),
        "uptime_ms": duration_text(row["uptime_ms"]),
        "disk_used_ratio": None if ratio is None else f"{ratio:.1%}",
    }
    words = {"boot_timestamp_ms": "started", "uptime_ms": "up", "disk_used_ratio": "disk used"}
    print_facts({words.get(name, name.replace("_", " ")): value for name, value in shown.items()})
    print()
    if row["replication"] is not None:
        print_parts([{**row, **row["replication"]}])
        print()
    print_facts(row["values"])


def config(
    name: BrokerNames,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="SETTING", help="Show these only."),
    ] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting; repeatable."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Show a broker's settings and which can be changed while it runs; or change them."""
    wanted = parse_pairs("--set", changes)
    with open_admin(namesrv, ctx) as client:
        brokers = [one for one in _meant(client, name) if one.is_master or name != ALL]
        before = {one: client.broker_config(one.address) for one in brokers}
        for one, known in before.items():
            _require_settings(one, known, [*(settings or ()), *wanted])
        after = before
        if wanted:
            agree(_plan(before, wanted), yes=yes, dry_run=dry_run, as_json=as_json)
            for one in brokers:
                client.update_broker_config(wanted, broker=one.address)
            after = {one: client.broker_config(one.address) for one in brokers}
    shown = frozenset([*(settings or ()), *wanted])
    rows = [
        _row(one, setting, value, before[one], setting in wanted)
        for one, values in after.items()
        for setting, value in sorted(values.items())
        if not shown or setting in shown
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ["broker", "setting", *(["before"] if wanted else []), "value", "applies"]
        print_rows(rows, columns, empty="it sent no settings")


def _meant(client: Admin, name: str) -> list[BrokerAddress]:
    """All brokers, or the one of that name or address; asking it raises for an unknown one."""
    if name == ALL:
        return client.brokers()
    for one in client.brokers():
        names = [one.address, f"{one.broker_name}:{one.broker_id}"]
        if name in names or (name == one.broker_name and one.is_master):
            return [one]
    return [client.broker_runtime(name).broker]


def _require_settings(broker: BrokerAddress, known: dict[str, str], names: list[str]) -> None:
    from difflib import get_close_matches

    for setting in names:
        if setting not in known:
            near = get_close_matches(setting, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise NotFound(f"{broker} has no setting {setting!r}{meant}")


def _plan(before: dict[BrokerAddress, dict[str, str]], wanted: dict[str, str]) -> list[str]:
    return [
        f"{one.broker_name}: {setting} {known[setting]} -> {value}"
        for one, known in before.items()
        for setting, value in wanted.items()
    ]


def _row(
    broker: BrokerAddress, setting: str, value: str, known: dict[str, str], is_changed: bool
) -> dict[str, Any]:
    return {
        "broker": broker.broker_name,
        "setting": setting,
        "before": known.get(setting) if is_changed else None,
        "value": value,
        "applies": _applies(setting, known),
    }


def _applies(setting: str, known: dict[str, str]) -> str | None:
    """When a change takes effect; unknown for brokers of another make."""
    if not any(name.startswith(_OURS) for name in known):
        return None
    return "at once" if setting in CHANGEABLE else "after a restart"
