"""Accounts of ACL 1.0: ``plain_acl.yml`` read as users and rights of today.

The file is read by its few forms: ``name: value``, lists of ``- value``, and lists of ``- name:
value`` with more names below. All other YAML is refused by its line: no right is guessed.

An ``admin`` becomes a Super. ``topicPerms`` and ``groupPerms`` become Custom rights of that name,
``defaultTopicPerm`` and ``defaultGroupPerm`` Default rights of all names. White addresses passed
without a signature, which nothing does today: they are told, and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from contrail.access.state.rights import Action, Decision, Entry, PolicyType
from contrail.access.state.users import UserType

_GRANTS: dict[str, tuple[tuple[Action, ...], Decision]] = {
    "DENY": ((Action.ALL,), Decision.DENY),
    "PUB": ((Action.PUB,), Decision.ALLOW),
    "SUB": ((Action.SUB,), Decision.ALLOW),
    "PUB|SUB": ((Action.PUB, Action.SUB), Decision.ALLOW),
    "SUB|PUB": ((Action.PUB, Action.SUB), Decision.ALLOW),
}
_LISTS = frozenset({"topicPerms", "groupPerms", "globalWhiteRemoteAddresses", "accounts"})
_NAMES = _LISTS | {
    *("accessKey", "secretKey", "whiteRemoteAddress", "admin"),
    *("defaultTopicPerm", "defaultGroupPerm", "dataVersion"),
}


class PlainAclInvalid(ValueError):
    """The file is none, or says something whose meaning is not known; the message has the line."""


@dataclass(slots=True)
class Account:
    """One account as a user of today."""

    name: str
    password: str = field(repr=False)
    kind: UserType
    policies: dict[PolicyType, list[Entry]]


@dataclass(slots=True)
class PlainAcl:
    """The accounts of a file, and the white addresses that mean nothing any more."""

    accounts: list[Account]
    white_addresses: list[str]


@dataclass(slots=True)
class _Line:
    number: int
    indent: int
    is_item: bool
    name: str
    text: str

    def refusal(self, why: str) -> PlainAclInvalid:
        return PlainAclInvalid(f"line {self.number}: {why}")


def read_plain_acl(text: str) -> PlainAcl:
    """Raises ``PlainAclInvalid``."""
    accounts: list[dict[str, tuple[_Line, str | list[str]]]] = []
    white: list[str] = []
    section, listed = "", ""
    item_indent = 0
    for line in _lines(text):
        if not line.is_item and line.indent == 0:
            section, listed = line.name, ""
            if section not in _LISTS and section != "dataVersion":
                raise line.refusal(f"{section!r} is no part of plain_acl.yml")
            if line.text:
                raise line.refusal(f"{section} must be a list")
        elif section == "dataVersion":
            continue
        elif section == "globalWhiteRemoteAddresses":
            if not line.is_item or line.name:
                raise line.refusal("an address was expected, as `- 10.0.0.*`")
            white.append(line.text)
        elif section != "accounts":
            raise line.refusal("it belongs to no list of the file")
        elif line.is_item and line.name:
            item_indent, listed = line.indent, ""
            accounts.append({})
            listed = _take(accounts[-1], line)
        elif not accounts:
            raise line.refusal("an account begins with `- accessKey: …`")
        elif line.is_item:
            if not listed or line.indent < item_indent:
                raise line.refusal("it belongs to no list of the account")
            rows = accounts[-1][listed][1]
            assert isinstance(rows, list)
            rows.append(line.text)
        else:
            if line.indent <= item_indent:
                raise line.refusal("it must be indented as the names above it")
            listed = _take(accounts[-1], line)
    found = [_account(fields, white) for fields in accounts]
    names = [one.name for one in found]
    if len(set(names)) < len(names):
        raise PlainAclInvalid("two accounts have the same accessKey")
    return PlainAcl(found, white)


def _take(account: dict[str, tuple[_Line, str | list[str]]], line: _Line) -> str:
    """Note a name of an account; returns the list that it begins, if it does."""
    if line.name not in _NAMES:
        raise line.refusal(f"{line.name!r} is not known: what it grants cannot be told")
    if line.name in account:
        raise line.refusal(f"{line.name} stands there twice")
    if line.name in _LISTS:
        if line.text:
            raise line.refusal(f"{line.name} must be a list of lines")
        account[line.name] = (line, [])
        return line.name
    account[line.name] = (line, line.text)
    return ""


def _account(fields: dict[str, tuple[_Line, str | list[str]]], white: list[str]) -> Account:
    def text(name: str) -> str:
        return str(fields[name][1]) if name in fields else ""

    first = next(iter(fields.values()))[0]
    name, password = text("accessKey"), text("secretKey")
    if not name or not password:
        raise first.refusal("an account needs accessKey and secretKey")
    admin = text("admin").lower()
    if admin not in ("", "true", "false"):
        raise fields["admin"][0].refusal(f"admin={admin!r}: write true or false")
    if text("whiteRemoteAddress"):
        white.append(text("whiteRemoteAddress"))
    policies: dict[PolicyType, list[Entry]] = {}
    for resource in ("Topic", "Group"):
        default = f"default{resource}Perm"
        if text(default):
            entry = _entry(fields[default][0], f"{resource}:*", text(default))
            policies.setdefault(PolicyType.DEFAULT, []).append(entry)
        rows = fields.get(f"{resource.lower()}Perms")
        for row in rows[1] if rows else ():
            assert rows is not None
            resource_name, _, permission = row.partition("=")
            entry = _entry(rows[0], f"{resource}:{resource_name.strip()}", permission)
            policies.setdefault(PolicyType.CUSTOM, []).append(entry)
    kind = UserType.SUPER if admin == "true" else UserType.NORMAL
    return Account(name, password, kind, policies)


def _entry(line: _Line, resource: str, permission: str) -> Entry:
    granted = _GRANTS.get(permission.strip().upper().replace(" ", ""))
    if granted is None:
        raise line.refusal(
            f"{resource}={permission}: write DENY, PUB, SUB or PUB|SUB; what else stands there was "
            "taken as every right"
        )
    if resource.endswith(":"):
        raise line.refusal("a right names its topic or group, as `name=SUB`")
    actions, decision = granted
    return Entry.parse(resource, [one.value for one in actions], [], decision.value)


def _lines(text: str) -> Iterator[_Line]:
    for number, raw in enumerate(text.splitlines(), start=1):
        body = raw.rstrip()
        content = body.lstrip(" ")
        if not content or content.startswith("#"):
            continue
        indent = len(body) - len(content)
        line = _Line(number, indent, False, "", "")
        if "\t" in raw:
            raise line.refusal("a tab: YAML takes spaces only")
        if content.startswith("- ") or content == "-":
            line.is_item = True
            content = content[1:].strip()
            line.indent += 1
        name, colon, value = content.partition(":")
        if colon and (not value or value.startswith(" ")) and name.isalnum():
            line.name, line.text = name, _scalar(line, value.strip())
        elif line.is_item:
            line.text = _scalar(line, content)
        else:
            raise line.refusal(
                f"{content[:40]!r} is neither a name with a value nor part of a list"
            )
        yield line


def _scalar(line: _Line, text: str) -> str:
    for quote in ("'", '"'):
        if text.startswith(quote):
            end = text.find(quote, 1)
            rest = text[end + 1 :].strip()
            if end < 0 or "\\" in text or (rest and not rest.startswith("#")):
                raise line.refusal("the text does not end with its quote, or has escapes")
            return text[1:end]
    text = text.partition(" #")[0].strip()
    if text[:1] in ("{", "[", "&", "*", "!", "|", ">", "%", "@", "`") and text != "*":
        raise line.refusal(f"{text[:40]!r}: only plain values and lists of lines are read")
    return "" if text in ("null", "~") else text
