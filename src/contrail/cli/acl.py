"""``contrail acl``: the users and rights of brokers with access control."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from contrail.access.state.rights import (
    Action,
    Decision,
    Need,
    PolicyType,
    ResourceType,
    RightsInvalid,
    by_name,
    deciding_entry,
)
from contrail.access.state.users import SUBJECT_PREFIX, parse_policies
from contrail.cli.acl_carried import changed_at, export_users, import_users, require_one
from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.output import AsJson, Yes, agree, print_facts, print_json, print_rows
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.blocking.admin import Admin
from contrail.errors import ConfigError
from contrail.protocol.codes import RequestCode

app = typer.Typer(no_args_is_help=True, add_completion=False)

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="NAME", help="Only this broker, by name or address."),
]
Default = Annotated[
    bool, typer.Option("--default", help="The Default policy: asked if no Custom one matches.")
]
app.command("export")(export_users)
app.command("import")(import_users)
_PASSWORD_BYTES = 24
_RIGHTS = ["user", "policy", "resource", "actions", "sources", "decision"]


@app.callback()
def acl() -> None:
    """Users and rights: init, user, grant, revoke, show, explain, export, import."""


@app.command()
def init() -> None:
    """Print the settings that switch access control on, with new random passwords."""
    first = {"username": "admin", "password": secrets.token_urlsafe(_PASSWORD_BYTES)}
    inner = {"accessKey": "inner", "secretKey": secrets.token_urlsafe(_PASSWORD_BYTES)}
    print("# The same lines for all brokers of the cluster, in files that only they may read.")
    print("authenticationEnabled=true")
    print("authorizationEnabled=true")
    print(f"initAuthenticationUser={json.dumps(first)}")
    print(f"innerClientAuthenticationCredentials={json.dumps(inner)}")


@app.command()
def user(
    name: User,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Broker = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Its first line is the password; without it a new user gets a random one.",
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Super or Normal.")
    ] = None,
    disable: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Refuse it, or serve it again.")
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the user with all its rights.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Create a user on all brokers, or change it; a new one without a file gets a password."""
    with open_admin(namesrv, ctx) as client:
        brokers = _brokers(client, broker)
        known = {address: _user_at(client, address, name) is not None for address in brokers}
        if delete:
            _require_known(name, known)
            agree([f"delete user {name} with all its rights"], yes=yes)
            fields = {"username": name}
            require_one(
                changed_at(client, address, RequestCode.AUTH_DELETE_USER, fields)
                for address in brokers
            )
            return
        given = {
            "userType": kind,
            "userStatus": None if disable is None else ("disable" if disable else "enable"),
            "password": None if password_file is None else _first_line(password_file),
        }
        made_up = None
        if not all(known.values()) and given["password"] is None:
            if any(known.values()):
                raise ConfigError(
                    f"some brokers have user {name!r} and some do not: give --password-file, so "
                    "that all of them have the same password"
                )
            made_up = given["password"] = secrets.token_urlsafe(_PASSWORD_BYTES)
        body = {part: text for part, text in given.items() if text is not None}
        update, create = RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_CREATE_USER
        fields = {"username": name}
        require_one(
            changed_at(client, address, update if known[address] else create, fields, body)
            for address in brokers
        )
    if made_up is not None:
        print(f"the password of {name} is {made_up}: it is shown only now")


@app.command()
def grant(
    name: User,
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Topic:name, Group:prefix*, Cluster:*, *.")
    ],
    actions: Annotated[
        str, typer.Argument(metavar="ACTIONS", help="All, or of Pub,Sub,Create,Update,Delete,Get.")
    ],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Broker = None,
    sources: Annotated[
        str, typer.Option("--from", metavar="ADDRESSES", help="Only from these, with commas.")
    ] = "",
    deny: Annotated[bool, typer.Option("--deny", help="Refuse instead of allow.")] = False,
    default: Default = False,
) -> None:
    """Give a user a right on all brokers; one of the same resource is replaced."""
    entry = {
        "resource": resource,
        "actions": [one.strip() for one in actions.split(",")],
        "sourceIps": [one.strip() for one in sources.split(",") if one.strip()],
        "decision": (Decision.DENY if deny else Decision.ALLOW).value,
    }
    policies = [{"policyType": _policy(default).value, "entries": [entry]}]
    unknown = [one for one in entry["actions"] if by_name(Action, one) is None]
    if unknown:
        known = ", ".join(one.value for one in Action)
        raise ConfigError(f"action {unknown[0]!r}: there are {known}")
    try:
        parse_policies(policies)
    except RightsInvalid as error:
        raise ConfigError(str(error)) from error
    with open_admin(namesrv, ctx) as client:
        body = {"subject": SUBJECT_PREFIX + name, "policies": policies}
        fields = {"subject": SUBJECT_PREFIX + name}
        require_one(
            changed_at(client, address, RequestCode.AUTH_UPDATE_ACL, fields, body)
            for address in _brokers(client, broker)
        )


@app.command()
def revoke(
    name: User,
    resource: Annotated[
        str | None,
        typer.Argument(metavar="RESOURCE", help="The resource of the right; without it all."),
    ] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Broker = None,
    default: Default = False,
    yes: Yes = False,
) -> None:
    """Take a right from a user, or all of them."""
    fields = {"subject": SUBJECT_PREFIX + name, "policyType": _policy(default).value}
    if resource is not None:
        fields["resource"] = resource
    with open_admin(namesrv, ctx) as client:
        brokers = _brokers(client, broker)
        _require_known(name, {one: _user_at(client, one, name) is not None for one in brokers})
        agree([f"take from user {name} the right on {resource or 'all resources'}"], yes=yes)
        require_one(
            changed_at(client, address, RequestCode.AUTH_DELETE_ACL, fields) for address in brokers
        )


@app.command()
def show(
    name: Annotated[str | None, typer.Argument(metavar="USER", help="Only this user.")] = None,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Broker = None,
    as_json: AsJson = False,
) -> None:
    """Show users and their rights, and where brokers differ."""
    with open_admin(namesrv, ctx) as client:
        tables = {address: _table(client, address, name) for address in _brokers(client, broker)}
    if as_json:
        print_json([{"broker": address, **table} for address, table in tables.items()])
        return
    if name is not None and not any(table["users"] for table in tables.values()):
        raise NotFound(f"no broker has a user {name!r}")
    (first, table), *others = tables.items()
    print_rows(table["users"], ["user", "type", "status"], empty="there are no users")
    print_rows(table["rights"], _RIGHTS, empty="there are no rights")
    for address, other in others:
        if other != table:
            print(f"{address} differs from {first}: contrail acl show --broker {address}")


@app.command()
def explain(
    name: User,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="Pub, Sub, Get, …")],
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="As Topic:orders.")],
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Broker = None,
    source: Annotated[
        str, typer.Option("--from", metavar="ADDRESS", help="The address of the client.")
    ] = "127.0.0.1",
    as_json: AsJson = False,
) -> None:
    """Say why a user may do something or not; the exit code is 1 if it may not."""
    wanted = by_name(Action, action)
    type_name, _, resource_name = resource.partition(":")
    kind = by_name(ResourceType, type_name)
    if wanted is None or kind in (None, ResourceType.ANY) or not resource_name:
        raise ConfigError(f"{action} {resource}: write an action and a resource, Pub Topic:orders")
    assert kind is not None
    need = Need(kind, resource_name, (wanted,))
    with open_admin(namesrv, ctx) as client:
        verdicts = [
            {"broker": address, **_verdict(client, address, name, need, source)}
            for address in _brokers(client, broker)
        ]
    if as_json:
        print_json(verdicts)
    else:
        for verdict in verdicts:
            print_facts(verdict)
    if not all(verdict["allowed"] for verdict in verdicts):
        raise CommandFailed(f"user {name} may not {need}")


def _verdict(client: Admin, address: str, name: str, need: Need, source: str) -> dict[str, Any]:
    found = _user_at(client, address, name)
    if found is None:
        return {"allowed": False, "because": "there is no such user"}
    if found["userStatus"] == "disable":
        return {"allowed": False, "because": "the user is disabled"}
    if found["userType"] == "Super":
        return {"allowed": True, "because": "the user is a Super"}
    rights = _rights_at(client, address, name)
    entry = deciding_entry(parse_policies(rights) if rights else {}, need, source)
    if entry is None:
        return {"allowed": False, "because": "no right matches"}
    return {
        "allowed": entry.decision is Decision.ALLOW,
        "because": f"the right on {entry.resource} says {entry.decision.value}",
    }


# Parts.


def _require_known(name: str, known: Mapping[str, bool]) -> None:
    if not any(known.values()):
        raise NotFound(f"no broker has a user {name!r}")


def _policy(default: bool) -> PolicyType:
    return PolicyType.DEFAULT if default else PolicyType.CUSTOM


def _brokers(client: Admin, broker: str | None) -> list[str]:
    """The addresses of all brokers, slaves too, or of one; a slave follows its master's table."""
    if broker is not None:
        return [broker]
    return [one.address for one in client.brokers()]


def _first_line(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not lines or not lines[0].strip():
        raise ConfigError(f"the first line of {path} must be the password")
    return lines[0].strip()


def _user_at(client: Admin, address: str, name: str) -> dict[str, Any] | None:
    answer = client.ask_broker(address, RequestCode.AUTH_GET_USER, {"username": name})
    return dict(json.loads(answer.body)) if answer.body else None


def _rights_at(client: Admin, address: str, name: str) -> list[dict[str, Any]]:
    fields = {"subject": SUBJECT_PREFIX + name}
    answer = client.ask_broker(address, RequestCode.AUTH_GET_ACL, fields)
    return list(json.loads(answer.body)["policies"]) if answer.body else []


def _table(client: Admin, address: str, name: str | None) -> dict[str, Any]:
    """The users of a broker and their rights, without passwords."""
    answer = client.ask_broker(address, RequestCode.AUTH_LIST_USER)
    users = [
        {"user": one["username"], "type": one["userType"], "status": one["userStatus"]}
        for one in (json.loads(answer.body) if answer.body else [])
        if name in (None, one["username"])
    ]
    answer = client.ask_broker(address, RequestCode.AUTH_LIST_ACL)
    listed = json.loads(answer.body) if answer.body else []
    rights = [row for one in listed for row in _rows(one) if name in (None, row["user"])]
    return {"users": users, "rights": rights}


def _rows(rights: dict[str, Any]) -> Iterable[dict[str, str]]:
    for policy in rights["policies"]:
        for entry in policy["entries"]:
            yield {
                "user": rights["subject"].removeprefix(SUBJECT_PREFIX),
                "policy": policy["policyType"],
                "resource": entry["resource"],
                "actions": ",".join(entry["actions"]),
                "sources": ",".join(entry.get("sourceIps") or []),
                "decision": entry["decision"],
            }
