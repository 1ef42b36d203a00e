"""Brokers as rows: version, rates, disk, permission; one that does not answer has its error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress, BrokerRuntime
from contrail.errors import ClientError, RouteMissing
from contrail.insight.asking import gathered
from contrail.insight.words import perm_text
from contrail.model.topic import Perm

PERMISSION = "brokerPermission"


async def broker_rows(
    admin: Admin, brokers: Sequence[BrokerAddress], now_ms: int
) -> list[dict[str, Any]]:
    """A row for each broker, a few requests to each of them."""

    async def ask(broker: BrokerAddress) -> dict[str, Any]:
        return await figures_of(admin, broker, now_ms)

    return await gathered(ask, brokers)


async def figures_of(admin: Admin, broker: BrokerAddress, now_ms: int) -> dict[str, Any]:
    """Figures of one broker; one that does not answer has an ``error`` instead."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "broker_id": broker.broker_id,
        "address": broker.address,
    }
    try:
        runtime = await admin.broker_runtime(broker.address)
        perm = await permission(admin, broker.address)
    except ClientError as error:
        return {**row, **dict.fromkeys(_FIGURES), "error": str(error)}
    routed = await takes_messages(admin, broker.broker_name)
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


async def permission(admin: Admin, broker: str) -> int:
    """The broker's permission, by its own settings."""
    text = (await admin.broker_config(broker)).get(PERMISSION, "")
    return int(text) if text.isdecimal() else int(Perm.READ | Perm.WRITE)


async def takes_messages(admin: Admin, broker_name: str) -> bool | None:
    """Whether a NameServer's route lets producers write, by the topic of the broker's own name."""
    try:
        route = await admin.topic_route(broker_name)
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
