"""``contrail replication status``: every broker's part in replication, and how far slaves are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contrail.cli.output import AsJson, print_json, print_rows
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.admin_values import BrokerAddress
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.protocol.bodies.ha_status import UNKNOWN_MS, HaStatus, MasterLink, SlaveLink

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
        rows = [status_of(client, one) for one in client.brokers()]
    if as_json:
        print_json(rows)
    else:
        print_parts(rows)


def print_parts(rows: Sequence[dict[str, Any]]) -> None:
    """The table of brokers and, below each master, its slaves."""
    print_rows([line for row in rows for line in lines_of(row)], _COLUMNS, empty="no brokers")


def status_of(client: Admin, broker: BrokerAddress) -> dict[str, Any]:
    """One broker's answer; ``error`` says why there is none, or that it replicates nothing."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "broker_id": broker.broker_id,
        "address": broker.address,
    }
    try:
        found = client.replication_status(broker.address)
    except ClientError as error:
        unknown = dict.fromkeys(_FIGURES)
        return {**row, **unknown, "slaves": [], "refusals": {}, "error": str(error)}
    return {**row, **figures_of(found), "error": None}


_FIGURES = (
    "role",
    "log_end",
    "acknowledged_end",
    "required_replicas",
    "in_sync_slaves",
    "last_refusal",
    "master",
    "acting",
)


def figures_of(found: HaStatus) -> dict[str, Any]:
    """A broker's facts of replication, for programs and for tables."""
    last = found.last_refusal
    return {
        "role": found.role or ("MASTER" if found.is_master else "SLAVE"),
        "log_end": found.physical_end,
        "acknowledged_end": found.acknowledged_end,
        "required_replicas": found.required_replicas,
        "in_sync_slaves": found.in_sync_slaves,
        "slaves": [_slave(one) for one in found.slaves],
        "refusals": dict(sorted(found.refusals.items())),
        "last_refusal": None
        if last is None
        else {"reason": last.reason, "text": last.text, "ago_ms": last.ago_ms},
        "master": None if found.is_master else _master(found.master),
        "acting": found.acting,
    }


def _slave(found: SlaveLink) -> dict[str, Any]:
    return {
        "address": found.address,
        "broker_id": found.broker_id,
        "state": found.state,
        "acknowledged_end": found.acknowledged_end,
        "lag_bytes": found.lag_bytes,
        "lag_ms": None if found.lag_ms == UNKNOWN_MS else found.lag_ms,
        "in_sync": found.in_sync,
        "bytes_per_second": found.bytes_per_second,
    }


def _master(found: MasterLink) -> dict[str, Any]:
    return {
        "address": found.master_address,
        "state": found.state,
        "is_connected": found.is_active,
        # A master of Apache does not tell its slaves where its log ends.
        "lag_bytes": max(0, found.master_flushed_end - found.physical_end)
        if found.state and found.master_flushed_end
        else None,
        "problem": found.problem,
    }


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
