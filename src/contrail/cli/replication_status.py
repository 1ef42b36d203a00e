"""``contrail replication status``: every broker's part in replication, and how far slaves are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contrail.cli.output import AsJson, print_json, print_rows
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.insight.replication import figures_of as figures_of
from contrail.insight.replication import status_of

_COLUMNS = [
    "broker",
    "id",
    "role",
    "peer",
    "state",
    "log end",
    "acknowledged",
    "lag bytes",
    "lag ms",
    "in sync",
]

_REFUSAL_SHOWN_MS = 600_000


def status(namesrv: NameServers = None, ctx: ContextName = None, as_json: AsJson = False) -> None:
    """Show masters and slaves: roles, lag in bytes and time, who acknowledged what."""
    with open_admin(namesrv, ctx) as client:
        rows = [client.run(status_of, one) for one in client.brokers()]
    if as_json:
        print_json(rows)
    else:
        print_parts(rows)


def print_parts(rows: Sequence[dict[str, Any]]) -> None:
    """The table of brokers and, below each master, its slaves."""
    print_rows([line for row in rows for line in lines_of(row)], _COLUMNS, empty="no brokers")


def lines_of(row: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """A line for the broker, and one below it for each of its slaves."""
    first = dict.fromkeys(_COLUMNS, "") | {"broker": row["broker"], "id": row["broker_id"]}
    if row["error"] is not None:
        return [first | {"role": "-", "state": row["error"]}]
    master = row["master"]
    first |= {"role": row["role"], "log end": row["log_end"], "state": "leads"}
    first |= {"acknowledged": row["acknowledged_end"]}
    if master is not None:
        state = master["state"] or ("connected" if master["is_connected"] else "not connected")
        state = _with_problem(_with_acting(state, row["acting"]), master["problem"])
        first |= {"peer": master["address"], "state": state}
        first |= {"lag bytes": "" if master["lag_bytes"] is None else master["lag_bytes"]}
    return [first, *(_slave_line(one) for one in row["slaves"]), *_refusal_lines(row)]


def summary_of(replication: dict[str, Any] | None) -> str:
    """A broker's part in replication in a few words; ``-`` without any."""
    if replication is None:
        return "-"
    master, slaves = replication["master"], replication["slaves"]
    if master is None:
        behind = max((one["lag_bytes"] for one in slaves), default=0)
        many = "1 slave" if len(slaves) == 1 else f"{len(slaves)} slaves"
        return f"{replication['role']}, {many}, {replication['in_sync_slaves']} in sync" + (
            f", {behind} bytes behind" if behind else ""
        )
    state = master["state"] or ("connected" if master["is_connected"] else "not connected")
    behind = master["lag_bytes"]
    state = _with_acting(state, replication["acting"])
    return f"{replication['role']}, {state}" + (f", {behind} bytes behind" if behind else "")


def _refusal_lines(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Why a master sent a slave away, while that is news."""
    last = row["last_refusal"]
    if last is None or last["ago_ms"] > _REFUSAL_SHOWN_MS:
        return []
    ago = f"{last['ago_ms'] // 1000} s ago, {last['reason']}: {last['text']}"
    return [dict.fromkeys(_COLUMNS, "") | {"role": "└ refused", "state": ago}]


def _slave_line(slave: dict[str, Any]) -> dict[str, Any]:
    named = slave["broker_id"]
    return dict.fromkeys(_COLUMNS, "") | {
        "role": "└ slave" if named is None else f"└ slave {named}",
        "peer": slave["address"],
        "state": slave["state"],
        "acknowledged": slave["acknowledged_end"],
        "lag bytes": slave["lag_bytes"],
        "lag ms": slave["lag_ms"],
        "in sync": "yes" if slave["in_sync"] else "no",
    }


def _with_acting(state: str, acting: str) -> str:
    """The state of a slave's link, and how far the slave is with its master's work."""
    return f"{state}, {acting}" if acting else state


def _with_problem(state: str, problem: str) -> str:
    return f"{state}: {problem}" if problem else state
