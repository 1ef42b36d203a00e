"""Every broker's part in replication, and how far slaves are."""

from __future__ import annotations

from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress
from contrail.errors import ClientError
from contrail.protocol.bodies.ha_status import UNKNOWN_MS, HaStatus, MasterLink, SlaveLink


async def status_of(admin: Admin, broker: BrokerAddress) -> dict[str, Any]:
    """One broker's answer; ``error`` says why there is none, or that it replicates nothing."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "broker_id": broker.broker_id,
        "address": broker.address,
    }
    try:
        found = await admin.replication_status(broker.address)
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
