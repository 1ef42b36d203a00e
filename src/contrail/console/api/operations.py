"""Servers and clients as they are now: one broker, replication, clients, doctor, access control."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from contrail.client.admin import Admin
from contrail.console.api.lists import ListQuery, Missing, known, missing_of, shown
from contrail.console.calls import Call
from contrail.console.contract import Route
from contrail.console.problems import Problem
from contrail.console.state.roles import Role
from contrail.errors import BrokerRefused, ClientError
from contrail.insight.asking import gathered
from contrail.insight.clients import client_rows
from contrail.insight.findings import ClusterFacts, Commands, Finding, findings_of
from contrail.insight.findings.gathering import Gathering
from contrail.insight.groups import is_known
from contrail.insight.replication import status_of
from contrail.protocol.codes import RequestCode, ResponseCode

_CLIENT_FIELDS = ("kind", "group", "client_id", "address", "language", "version")
_WATCH_MS = 1_000
# The groups that the doctor looks at in one visit, those furthest behind first.
_EXAMINED_MAX = 50
_SECRET = ("secret", "password", "credential", "accesskey")


class BrokerTold(msgspec.Struct):
    """A broker: what it says of itself; values of secrets are left out."""

    asked_ms: int
    broker: str
    broker_id: int
    cluster: str
    address: str
    runtime: dict[str, str]
    settings: dict[str, str]
    # Settings in which the other masters of the cluster differ, by setting and broker.
    differs: dict[str, dict[str, str]]


class SlaveTold(msgspec.Struct):
    """A slave as its master sees it."""

    address: str
    broker_id: int | None
    state: str
    acknowledged_end: int
    lag_bytes: int
    lag_ms: int | None
    in_sync: bool
    bytes_per_second: int


class MasterTold(msgspec.Struct):
    """The master as a slave sees it."""

    address: str
    state: str
    is_connected: bool
    lag_bytes: int | None
    problem: str


class Replica(msgspec.Struct):
    """A broker's part in replication; ``error`` where it has none, or did not answer."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    role: str | None
    log_end: int | None
    acknowledged_end: int | None
    required_replicas: int | None
    in_sync_slaves: int | None
    slaves: list[SlaveTold]
    master: MasterTold | None
    acting: str | None
    last_refusal: dict[str, Any] | None
    error: str | None


class ReplicationTold(msgspec.Struct):
    """All brokers and what they replicate."""

    asked_ms: int
    rows: list[Replica]


class ClientTold(msgspec.Struct):
    """A client in one group."""

    kind: str
    group: str
    client_id: str
    address: str
    language: str
    version: int
    release: str
    brokers: list[str]


class ClientPage(msgspec.Struct):
    """Connected clients."""

    asked_ms: int
    partial: list[Missing]
    total: int
    rows: list[ClientTold]


class DoctorTold(msgspec.Struct):
    """Findings, the worst first, and how much was looked at."""

    asked_ms: int
    brokers: int
    groups: int
    left_out: int
    findings: list[Finding]


class DoctorQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Only this group and its topics."""

    group: Annotated[str, msgspec.Meta(max_length=255)] = ""


class UserTold(msgspec.Struct):
    """A user of the brokers' access control, without its password."""

    user: str
    type: str
    status: str


class RightTold(msgspec.Struct):
    """One entry of a user's policies."""

    user: str
    policy: str
    resource: str
    actions: list[str]
    sources: list[str]
    decision: str


class AccessTold(msgspec.Struct):
    """Users and rights of each broker; ``error`` where access control is off or not told."""

    broker: str
    error: str | None
    users: list[UserTold]
    rights: list[RightTold]


class AccessPage(msgspec.Struct):
    """Access control of all masters."""

    asked_ms: int
    rows: list[AccessTold]


async def broker(call: Call) -> BrokerTold:
    admin, name = call.parts.admin, call.path["broker"]
    now_ms = call.parts.clock.now_ms()
    # Only brokers that the NameServers name: no address of the caller's is asked.
    every = await admin.brokers()
    found = [one for one in every if name in (one.broker_name, one.address)]
    if not found:
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no broker {name!r}")
    one = min(found, key=lambda each: each.broker_id)
    runtime = await admin.broker_runtime(one.address)
    settings = await admin.broker_config(one.address)
    others = [each for each in every if each.is_master and each.cluster == one.cluster]
    differs: dict[str, dict[str, str]] = {}
    for other in others:
        if other.address == one.address:
            continue
        try:
            told = await admin.broker_config(other.address)
        except ClientError:
            continue  # Its own row says that it does not answer.
        for key in settings.keys() & told.keys():
            if settings[key] != told[key] and key not in _OWN:
                differs.setdefault(key, {})[other.broker_name] = told[key]
    return BrokerTold(
        now_ms,
        one.broker_name,
        one.broker_id,
        one.cluster,
        one.address,
        _without_secrets(dict(runtime.values)),
        _without_secrets(settings),
        {key: told for key, told in sorted(differs.items()) if not _is_secret(key)},
    )


# Settings that each broker has of its own.
_OWN = frozenset(
    {
        "brokerName",
        "brokerId",
        "brokerIP1",
        "brokerIP2",
        "listenPort",
        "haListenPort",
        "storePathRootDir",
        "storePathCommitLog",
        "fastListenPort",
    }
)


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in _SECRET)


def _without_secrets(values: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in sorted(values.items()) if not _is_secret(name)}


async def replication(call: Call) -> ReplicationTold:
    admin = call.parts.admin

    async def ask(one: Any) -> dict[str, Any]:
        return await status_of(admin, one)

    rows = await gathered(ask, await admin.brokers())
    told = [{name: one.get(name) for name in Replica.__struct_fields__} for one in rows]
    return ReplicationTold(call.parts.clock.now_ms(), msgspec.convert(told, list[Replica]))


async def clients(call: Call) -> ClientPage:
    sample = known(call.parts.sampler.sample)
    # Groups that the sample knows to be empty are not asked; Apache's brokers do not tell.
    groups = [one.group for one in sample.groups if one.members != 0 and not one.is_internal]
    rows = msgspec.convert(await client_rows(call.parts.admin, groups), list[ClientTold])
    found = shown(rows, call.query, named="client_id", fields=_CLIENT_FIELDS)
    return ClientPage(call.parts.clock.now_ms(), missing_of(sample), found.total, found.rows)


async def doctor(call: Call) -> DoctorTold:
    parts, admin = call.parts, call.parts.admin
    sample = known(parts.sampler.sample)
    name = call.query.group
    if name and not await is_known(admin, name):
        raise Problem(HTTPStatus.NOT_FOUND, f"there is no consumer group {name!r}")
    gathering = Gathering(admin, parts.admin_of, parts.clock.now_ms, watch_ms=_WATCH_MS)
    cluster = await gathering.cluster()
    plain = [one for one in sample.groups if not one.is_internal]
    chosen = sorted(plain, key=lambda one: -one.lag)[:_EXAMINED_MAX]
    names = [name] if name else [one.group for one in chosen]
    groups = []
    if any(one.runtime is not None for one in cluster.brokers):
        groups = await gathering.groups(names, is_named=bool(name))
    topics = {key: facts for one in groups for key, facts in one.topics.items()}
    commands = Commands(["-n", ";".join(admin.name_servers)])
    # A group's page tells of the group and its topics; the brokers have a page of their own.
    about = ClusterFacts(cluster.namesrv) if name else cluster
    found = findings_of(about, list(topics.values()), groups, commands)
    return DoctorTold(
        parts.clock.now_ms(),
        len(cluster.brokers),
        len(groups),
        0 if name else len(plain) - len(chosen),
        found,
    )


async def access(call: Call) -> AccessPage:
    admin = call.parts.admin
    masters = [one for one in await admin.brokers() if one.is_master]

    async def ask(one: Any) -> AccessTold:
        return await _access_of(admin, one.broker_name, one.address)

    return AccessPage(call.parts.clock.now_ms(), await gathered(ask, masters))


async def _access_of(admin: Admin, name: str, address: str) -> AccessTold:
    try:
        users = await admin.ask_broker(address, RequestCode.AUTH_LIST_USER)
        rights = await admin.ask_broker(address, RequestCode.AUTH_LIST_ACL)
    except BrokerRefused as refusal:
        is_old = refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return AccessTold(name, "it has no access control" if is_old else str(refusal), [], [])
    except ClientError as error:
        return AccessTold(name, str(error), [], [])
    listed = json.loads(users.body) if users.body else []
    told = [UserTold(one["username"], one["userType"], one["userStatus"]) for one in listed]
    entries = [
        RightTold(
            one["subject"].removeprefix("User:"),
            policy["policyType"],
            entry["resource"],
            list(entry["actions"]),
            list(entry.get("sourceIps") or []),
            entry["decision"],
        )
        for one in (json.loads(rights.body) if rights.body else [])
        for policy in one["policies"]
        for entry in policy["entries"]
    ]
    return AccessTold(name, None, told, entries)


_PROBLEMS = (HTTPStatus.NOT_FOUND, HTTPStatus.SERVICE_UNAVAILABLE)

ROUTES = (
    Route(
        method="GET",
        path="/brokers/{broker}",
        name="broker",
        summary="One broker: runtime info, settings, and where other masters differ",
        handle=broker,
        answer=BrokerTold,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/replication",
        name="replication",
        summary="Each broker's part in replication: roles, lag, sync",
        handle=replication,
        answer=ReplicationTold,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/clients",
        name="clients",
        summary="Connected producers and consumers",
        handle=clients,
        query=ListQuery,
        answer=ClientPage,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/doctor",
        name="doctor",
        summary="Problems in words, each with the command that mends it",
        handle=doctor,
        query=DoctorQuery,
        answer=DoctorTold,
        role=Role.VIEWER,
        problems=_PROBLEMS,
    ),
    Route(
        method="GET",
        path="/access",
        name="access",
        summary="Users and rights of the brokers' access control",
        handle=access,
        answer=AccessPage,
        role=Role.ADMIN,
        problems=_PROBLEMS,
    ),
)
