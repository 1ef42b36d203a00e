"""The topic a job writes to: made if it is missing, and what its brokers promise to a sink."""

from __future__ import annotations

from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused
from contrail.protocol.codes import RequestCode, ResponseCode

_PROBE_SINK = "contrail-job-probe"


def offers_idempotence(admin: Admin) -> bool:
    """Whether every master knows the sink's requests: Contrail's do, Apache's do not."""
    masters = {one.broker_name for one in admin.brokers() if one.is_master}
    return all(_knows_sinks(admin, name) for name in sorted(masters))


def _knows_sinks(admin: Admin, broker_name: str) -> bool:
    try:
        admin.ask_broker(broker_name, RequestCode.CONTRAIL_SINK_STATUS, {"sinkId": _PROBE_SINK})
    except BrokerRefused as refusal:
        if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return False
        raise
    return True
