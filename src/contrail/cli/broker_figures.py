"""A broker as the cluster and broker commands show it: the same for tables and for JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contrail.cli.output import print_rows
from contrail.cli.perms import perm_text
from contrail.client.admin_values import BrokerAddress, BrokerRuntime
from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError, RouteMissing
from contrail.model.topic import Perm

PERMISSION = "brokerPermission"
_COLUMNS = [
    "cluster",
    "broker",
    "id",
    "address",
    "version",
    "in/s",
    "out/s",
    "in today",
    "out today",
    "disk",
    "up",
    "perm",
]


def figures_of(client: Admin, broker: BrokerAddress, now_ms: int) -> dict[str, Any]:
    """Figures of one broker; one that does not answer has an ``error`` instead."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "broker_id": broker.broker_id,
        "address": broker.address,
    }
    try:
        runtime = client.broker_runtime(broker.address)
        perm = permission(client, broker.address)
    except ClientError as error:
        return {**row, **dict.fromkeys(_FIGURES), "error": str(error)}
    routed = takes_messages(client, broker.broker_name)
    return {**row, **_figures(runtime, perm, now_ms), "takes_messages": routed, "error": None}


_FIGURES = (
    "version",
    "contrail_version",
    "put_per_second",
    "get_per_second",
    "put_count_today",
    "get_count_today",
    "disk_used_ratio",
    "boot_timestamp_ms",
    "uptime_ms",
    "perm",
    "takes_messages",
)


def _figures(runtime: BrokerRuntime, perm: int, now_ms: int) -> dict[str, Any]:
    text = runtime.values.get("bootTimestamp", "")
    boot_ms = int(text) if text.isdecimal() else None
    return {
        "version": runtime.version,
        "contrail_version": runtime.contrail_version,
        "put_per_second": runtime.put_per_second,
        "get_per_second": runtime.get_per_second,
        "put_count_today": runtime.put_count_today,
        "get_count_today": runtime.get_count_today,
        "disk_used_ratio": runtime.disk_used_ratio,
        "boot_timestamp_ms": boot_ms,
        "uptime_ms": None if boot_ms is None else max(0, now_ms - boot_ms),
        "perm": perm_text(perm),
    }


def permission(client: Admin, broker: str) -> int:
    """The broker's permission, by its own settings."""
    text = client.broker_config(broker).get(PERMISSION, "")
    return int(text) if text.isdecimal() else int(Perm.READ | Perm.WRITE)


def takes_messages(client: Admin, broker_name: str) -> bool | None:
    """Whether a NameServer's route lets producers write, by the topic of the broker's own name."""
    try:
        route = client.topic_route(broker_name)
    except RouteMissing:
        return None
    perms = [queue.perm for queue in route.queues if queue.broker_name == broker_name]
    return any(perm & Perm.WRITE for perm in perms) if perms else None


def totals_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over all brokers that answered; replicas do not take messages of their own."""
    return {
        "brokers": len(rows),
        "unreachable": sum(row["error"] is not None for row in rows),
        **{name: _sum(rows, name, 0.0) for name in ("put_per_second", "get_per_second")},
        **{name: _sum(rows, name, 0) for name in ("put_count_today", "get_count_today")},
    }


def _sum(rows: Sequence[dict[str, Any]], name: str, start: float) -> float:
    return sum((row[name] or 0 for row in rows), start)


def print_figures(
    rows: Sequence[dict[str, Any]],
    totals: dict[str, Any] | None = None,
    *,
    more: Mapping[str, Callable[[Any], str]] | None = None,
) -> None:
    """The table of brokers, and a row of sums; ``more`` are further columns and their texts."""
    further = dict(more or {})
    columns = [*_COLUMNS, *further]
    shown = [
        {**_shown(row), **{name: text(row[name]) for name, text in further.items()}} for row in rows
    ]
    if totals is not None:
        blank = dict.fromkeys(columns, "")
        sums = {**blank, **_rates(totals), "cluster": "total", "broker": _count_text(len(rows))}
        shown.append(sums)
    print_rows(shown, columns, empty="there are no brokers")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    drained = row["perm"] is not None and row["takes_messages"] is False
    return {
        "cluster": row["cluster"],
        "broker": row["broker"],
        "id": str(row["broker_id"]),
        "address": row["address"],
        "version": _version_text(row) if row["error"] is None else "does not answer",
        **_rates(row),
        "disk": None if row["disk_used_ratio"] is None else f"{row['disk_used_ratio']:.0%}",
        "up": duration_text(row["uptime_ms"]),
        "perm": f"{row['perm']}, drained" if drained else row["perm"],
    }


def _count_text(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"


def _version_text(row: dict[str, Any]) -> str:
    """Contrail's own version, and the release of Apache's whose protocol it speaks."""
    ours = row["contrail_version"]
    return str(row["version"]) if ours is None else f"contrail {ours} ({row['version']})"


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "in/s": row["put_per_second"],
        "out/s": row["get_per_second"],
        "in today": row["put_count_today"],
        "out today": row["get_count_today"],
    }


def duration_text(duration_ms: int | None) -> str:
    """``3d 4h``, ``2h 5m`` or ``7m 1s``."""
    if duration_ms is None:
        return "-"
    seconds = duration_ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds % 60}s"
