"""The questions of a slave to an Apache master, before it follows that master.

A Contrail master tells its slaves all of this with the welcome of their link.
"""

from __future__ import annotations

import logging

from contrail.errors import ContrailError
from contrail.protocol.bodies.tables import KVTable
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

CONTRAIL_FIELD = "contrailHa"
"""In a Contrail master's answer to 906: it speaks the handshake that proves a secret."""
_HA_ADDRESS = "masterHaAddress"
_LOG_START = "commitLogMinOffset"


async def ask_ha_address(caller: Caller, address: str) -> str:
    """Where the master at ``address`` listens for slaves; empty if it does not tell.

    Masters before 5.0 do not know the request.
    """
    try:
        answer = await caller.call(address, RequestCode.EXCHANGE_BROKER_HA_INFO)
    except ContrailError as error:
        _log.warning("master %s does not tell where it listens for slaves: %s", address, error)
        return ""
    if answer.code != ResponseCode.SUCCESS:
        return ""
    if CONTRAIL_FIELD in answer.fields:
        _log.warning(
            "master %s is a Contrail broker, and is followed without a proof: set the same "
            "contrailClusterSecretFile there and here",
            address,
        )
    return answer.fields.get(_HA_ADDRESS, "")


async def ask_first_offset(caller: Caller, address: str) -> int | None:
    """Where an empty log begins so that it misses nothing; None: it can only ask for 0.

    Apache's masters take 0 for the start of their last segment.
    """
    try:
        answer = await caller.call(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        first = int(KVTable.decode(answer.body).table.get(_LOG_START, "0"))
    except (ContrailError, ValueError) as error:
        _log.warning("master %s does not tell where its log begins: %s", address, error)
        return None
    if answer.code == ResponseCode.SUCCESS and first > 0:
        return first
    _log.warning(
        "the log of master %s begins at 0, which cannot be asked for: this slave gets the "
        "master's last segment and what follows, unless that is the first",
        address,
    )
    return None
