"""Users and rights carried: ``contrail acl export`` and ``contrail acl import``.

The file is JSON in RocketMQ's own forms (UserInfo and AclInfo), so that it goes to and comes from
brokers of Apache as well. Apache's broker tells passwords; ours never does, so users of ours are
exported from the store folder of a broker that stands still or runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from contrail.access.state.plain_acl import PlainAclInvalid, read_plain_acl
from contrail.access.state.rights import RightsInvalid
from contrail.access.state.users import (
    SUBJECT_PREFIX,
    parse_policies,
    policies_fields,
    user_fields,
)
from contrail.broker.services.access_table import read_users
from contrail.broker.services.cluster_secret import read_cluster_secret
from contrail.cli.exits import CommandFailed
from contrail.cli.output import print_rows
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.client.blocking.admin import Admin
from contrail.errors import BrokerRefused, ConfigError
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import encode_body
from contrail.runtime.files import FileSystem

_OWNER_ONLY = 0o600
_YAML = (".yml", ".yaml")
CarriedFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file.")]


class Carried(NamedTuple):
    """Users as UserInfo, and rights as AclInfo."""

    users: list[dict[str, Any]]
    acls: list[dict[str, Any]]


def export_users(
    file: CarriedFile,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="NAME", help="Ask this broker, by name or address."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Read a store folder, passwords too."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="The folder's contrailAclKeyFile."),
    ] = None,
) -> None:
    """Write users and rights to a new file that only its owner may read."""
    if (broker is None) == (folder is None):
        raise ConfigError("say --broker for a running broker, or --folder for a store folder")
    if folder is not None:
        found = _of_folder(folder, key_file)
    else:
        with open_admin(namesrv, ctx) as client:
            assert broker is not None
            found = _of_broker(client, broker)
    _write(file, json.dumps(found._asdict(), indent=1) + "\n")
    without = [one["username"] for one in found.users if not one.get("password")]
    print(f"{len(found.users)} users and the rights of {len(found.acls)} are in {file}")
    if without:
        print(
            "without passwords, which this broker does not tell: "
            f"{', '.join(without)}; export them with --folder on its machine"
        )


def import_users(
    file: CarriedFile,
    namesrv: NameServers = None,
    ctx: ContextName = None,
    broker: Annotated[
        str | None, typer.Option("--broker", metavar="NAME", help="Only this broker.")
    ] = None,
) -> None:
    """Create the users of a file, and merge their rights; users that exist keep their passwords.

    The file is one of `contrail acl export`, or a plain_acl.yml of ACL 1.0.
    """
    carried, white = _read(file)
    with open_admin(namesrv, ctx) as client:
        brokers = [broker] if broker else [one.address for one in client.brokers()]
        rows = []
        for address in brokers:
            known = _known_users(client, address)
            _require_passwords(carried, known, address)
            made = [one for one in carried.users if one["username"] not in known]
            led = not all(
                changed_at(client, address, RequestCode.AUTH_CREATE_USER, _named(one), one)
                for one in made
            )
            for rights in carried.acls:
                fields = {"subject": rights["subject"]}
                changed_at(client, address, RequestCode.AUTH_CREATE_ACL, fields, rights)
            rows.append(
                {
                    "broker": address,
                    "created": "follows the broker that leads" if led else str(len(made)),
                    "kept": str(len(carried.users) - len(made)),
                    "rights": str(len(carried.acls)),
                }
            )
    print_rows(rows, ["broker", "created", "kept", "rights"], empty="there are no brokers")
    for address in white:
        print(f"white address {address} is left out: it passed without a signature")


def changed_at(
    client: Admin, address: str, code: int, fields: Mapping[str, str], body: object = None
) -> bool:
    """Make one change; False at a broker whose users are those of the broker that leads it."""
    try:
        client.ask_broker(address, code, fields, b"" if body is None else encode_body(body))
    except BrokerRefused as refusal:
        if refusal.code != ResponseCode.SERVICE_NOT_AVAILABLE:
            raise
        return False
    return True


def require_one(changed: Iterable[bool]) -> None:
    """Raises ``CommandFailed`` unless a broker has taken the change; all of them are asked."""
    if not any(list(changed)):
        raise CommandFailed(
            "nothing was changed: these brokers follow the broker that leads, which must be asked"
        )


# Reading.


def _of_broker(client: Admin, broker: str) -> Carried:
    users = client.ask_broker(broker, RequestCode.AUTH_LIST_USER).body
    acls = client.ask_broker(broker, RequestCode.AUTH_LIST_ACL).body
    found = Carried(json.loads(users) if users else [], json.loads(acls) if acls else [])
    return _checked(found, f"the answer of {broker}")


def _of_folder(folder: Path, key_file: Path | None) -> Carried:
    key = None if key_file is None else read_cluster_secret(key_file, "--key-file")
    table = read_users(FileSystem(), folder, key)
    users = [{**user_fields(one), "password": one.password} for one in table.users.values()]
    acls = [
        {"subject": one.subject, "policies": policies_fields(one.policies)}
        for one in table.users.values()
        if one.policies
    ]
    return Carried(users, acls)


def _read(file: Path) -> tuple[Carried, list[str]]:
    """The content of a file, and the white addresses that it names."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if file.suffix in _YAML:
        return _of_plain_acl(file, text)
    try:
        document = json.loads(text)
        found = Carried(list(document["users"]), list(document["acls"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no file of `contrail acl export`: {error}") from error
    return _checked(found, str(file)), []


def _of_plain_acl(file: Path, text: str) -> tuple[Carried, list[str]]:
    try:
        plain = read_plain_acl(text)
    except PlainAclInvalid as error:
        raise ConfigError(f"{file}: {error}") from error
    users = [
        {"username": one.name, "password": one.password, "userType": one.kind.value}
        for one in plain.accounts
    ]
    acls = [
        {"subject": SUBJECT_PREFIX + one.name, "policies": policies_fields(one.policies)}
        for one in plain.accounts
        if one.policies
    ]
    return Carried(users, acls), plain.white_addresses


def _checked(found: Carried, what: str) -> Carried:
    """Refuse the whole of what could only be carried in part."""
    try:
        for user in found.users:
            if not isinstance(user.get("username"), str):
                raise RightsInvalid("a user has no username")
        for rights in found.acls:
            if not isinstance(rights.get("subject"), str):
                raise RightsInvalid("rights have no subject")
            parse_policies(rights.get("policies"))
    except (RightsInvalid, AttributeError) as error:
        raise ConfigError(f"{what}: {error}") from error
    return found


def _known_users(client: Admin, address: str) -> set[str]:
    body = client.ask_broker(address, RequestCode.AUTH_LIST_USER).body
    return {one["username"] for one in json.loads(body)} if body else set()


def _require_passwords(carried: Carried, known: set[str], address: str) -> None:
    lacking = [
        one["username"]
        for one in carried.users
        if not one.get("password") and one["username"] not in known
    ]
    if lacking:
        raise CommandFailed(
            f"{address} has no user {', '.join(lacking)}, and the file has no password of it: "
            "export with --folder, or create it first with `contrail acl user`"
        )


def _named(user: Mapping[str, Any]) -> dict[str, str]:
    return {"username": user["username"]}


def _write(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ONLY)
    except OSError as error:
        raise ConfigError(f"{file} cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
