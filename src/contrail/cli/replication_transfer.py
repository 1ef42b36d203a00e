"""``contrail replication transfer``: hands the leadership of a failover group over."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from contrail.cli.exits import CommandFailed
from contrail.cli.output import AsJson, print_facts, print_json
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused
from contrail.model.fastjson import loads
from contrail.protocol.codes import RequestCode, ResponseCode

BrokerName = Annotated[str, typer.Argument(metavar="NAME", help="The group's broker name.")]


def transfer(
    name: BrokerName,
    to: Annotated[
        str, typer.Option("--to", metavar="ID", help="A dLegerSelfId, like n1; else any in sync.")
    ] = "",
    namesrv: NameServers = None,
    ctx: ContextName = None,
    as_json: AsJson = False,
) -> None:
    """Hand the leadership of a failover group over to another member, before work on its host."""
    with open_admin(namesrv, ctx) as client:
        leader_id, leader_address = _leader(client, name)
        target = _target(client, name, leader_id, leader_address, to)
        began_s = time.monotonic()
        fields = {"brokerName": name, "brokerId": str(target)}
        found = client.ask_broker(
            leader_address, RequestCode.CONTROLLER_ELECT_MASTER, fields
        ).fields
        took_ms = round((time.monotonic() - began_s) * 1000)
    facts = {
        "broker": name,
        "from": leader_id,
        "to": f"n{target - 1}",
        "address": found["masterAddress"],
        "term": int(found["masterEpoch"]),
        "took_ms": took_ms,
    }
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def _leader(client: Admin, name: str) -> tuple[str, str]:
    """The id and the address of the member that leads."""
    try:
        found = client.ask_broker(name, RequestCode.CONTROLLER_GET_METADATA_INFO).fields
    except BrokerRefused as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise CommandFailed(
                f"{name} is no failover group: `contrail replication status` shows what it is"
            ) from error
        raise
    return found["controllerLeaderId"], found["controllerLeaderAddress"]


def _target(client: Admin, name: str, leader_id: str, leader_address: str, to: str) -> int:
    """The broker id of the member that is to lead."""
    body = json.dumps([name]).encode()
    code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
    answer: Any = loads(client.ask_broker(leader_address, code, None, body).body)
    in_sync = sorted(
        int(one["brokerId"]) for one in answer["replicasInfoTable"][name]["inSyncReplicas"]
    )
    members = {f"n{broker_id - 1}": broker_id for broker_id in in_sync}
    members.pop(leader_id, None)
    if to == leader_id:
        raise CommandFailed(f"{to} leads {name} already")
    if not members or (to and to not in members):
        raise CommandFailed(
            f"{to or 'no member'} cannot take over from {leader_id}; members that have the whole "
            f"log: {', '.join(members) or 'none'}"
        )
    return members[to or min(members)]
