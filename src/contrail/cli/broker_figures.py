"""The table of brokers that the cluster and broker commands print."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from contrail.cli.output import print_rows

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
