"""The users of a broker and their rights: one table with one generation.

Every change makes a new generation, which replicas of a table compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from contrail.access.state.rights import (
    Decision,
    Entry,
    Need,
    Policies,
    PolicyType,
    Resource,
    RightsInvalid,
    by_name,
    deciding_entry,
)
from contrail.protocol.signing import SigningKey

SUBJECT_PREFIX = "User:"
USERS_MAX = 10_000
ENTRIES_MAX = 1_000
"""Bound of the entries of one user."""
NAME_CHARACTERS_MAX = 255
SECRET_CHARACTERS_MAX = 1024


class UserType(Enum):
    """A Super may do everything, and needs no rights."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    """A disabled user is refused, and kept."""

    ENABLE = "enable"
    DISABLE = "disable"


class AccessRefused(Exception):
    """A change of users or rights that is not made; the message says why."""


@dataclass(frozen=True, slots=True)
class User:
    """One user; ``password`` is the secret that signs its requests."""

    name: str
    password: str = field(repr=False)
    kind: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE
    policies: Policies = field(default_factory=dict)
    key: SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", SigningKey(self.password))

    @property
    def is_super(self) -> bool:
        return self.kind is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    @property
    def subject(self) -> str:
        return SUBJECT_PREFIX + self.name

    def refusal(self, needs: Iterable[Need], address: str) -> str | None:
        """Why the user may not do all of this from an address; None if it may."""
        if self.is_super:
            return None
        for need in needs:
            entry = deciding_entry(self.policies, need, address)
            if entry is None:
                return f"{self.subject} has no right to {need} from {address}: no policy matches"
            if entry.decision is Decision.DENY:
                return (
                    f"{self.subject} has no right to {need} from {address}: the policy of "
                    f"{entry.resource} denies it"
                )
        return None


def name_of_subject(subject: str) -> str:
    """The user's name in ``User:name``.

    Raises:
        AccessRefused: the subject is none.
    """
    if subject[: len(SUBJECT_PREFIX)].lower() != SUBJECT_PREFIX.lower():
        raise AccessRefused(f"subject {subject!r}: write User: and the user's name")
    return subject[len(SUBJECT_PREFIX) :]


class UserTable:
    """All users by name. Methods that change it leave it as it was when they raise."""

    def __init__(self, users: Mapping[str, User] | None = None, *, generation: int = 0) -> None:
        self.users: dict[str, User] = dict(users or {})
        self.generation = generation
        # Of this object: whatever was worked out from it counts while this stays the same.
        self.change_count = 0

    def copy(self) -> UserTable:
        return UserTable(self.users, generation=self.generation)

    def become(self, other: UserTable) -> None:
        """Be what another broker's table is."""
        self.users, self.generation = dict(other.users), other.generation
        self.change_count += 1

    def _changed(self) -> None:
        self.generation += 1
        self.change_count += 1

    # Users.

    def create_user(
        self,
        name: str,
        password: str,
        kind: UserType = UserType.NORMAL,
        status: UserStatus = UserStatus.ENABLE,
    ) -> None:
        """Raises ``AccessRefused`` if the user exists, or has no name or password."""
        if name in self.users:
            raise AccessRefused(f"user {name!r} exists already")
        if not password.strip():
            raise AccessRefused("the password is blank")
        if len(self.users) >= USERS_MAX:
            raise AccessRefused(f"there are {USERS_MAX} users already")
        self._put(User(_checked_name(name), _checked_secret(password), kind, status))

    def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        kind: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        """Change what is given; raises ``AccessRefused`` for an unknown user."""
        user = self.require(name)
        changed = replace(
            user,
            password=_checked_secret(password) if password else user.password,
            kind=kind or user.kind,
            status=status or user.status,
        )
        if not (changed.is_super and changed.is_enabled):
            self._require_another_super(user)
        self._put(changed)

    def delete_user(self, name: str) -> None:
        """Delete a user with all rights; an unknown one is no error."""
        user = self.users.get(name)
        if user is not None:
            self._require_another_super(user)
            del self.users[name]
            self._changed()

    def require(self, name: str) -> User:
        """Raises ``AccessRefused`` for an unknown user."""
        user = self.users.get(name)
        if user is None:
            raise AccessRefused(f"user {name!r} does not exist")
        return user

    def _require_another_super(self, leaving: User) -> None:
        if leaving.is_super and leaving.is_enabled:
            supers = [one for one in self.users.values() if one.is_super and one.is_enabled]
            if len(supers) == 1:
                raise AccessRefused(
                    f"user {leaving.name!r} is the last enabled Super: make another one first"
                )

    def _put(self, user: User) -> None:
        self.users[user.name] = user
        self._changed()

    # Rights.

    def merge(self, name: str, given: Policies) -> None:
        """Add entries; one of the same policy and resource takes the place of the old one.

        Raises:
            AccessRefused: the user is unknown, or would have too many entries.
        """
        user = self.require(name)
        merged = {
            policy_type: _merged(user.policies.get(policy_type, ()), given.get(policy_type, ()))
            for policy_type in PolicyType
        }
        if sum(map(len, merged.values())) > ENTRIES_MAX:
            raise AccessRefused(f"a user may have {ENTRIES_MAX} entries; use prefixes")
        self._put(replace(user, policies={kind: rows for kind, rows in merged.items() if rows}))

    def remove(
        self,
        name: str,
        policy_type: PolicyType = PolicyType.CUSTOM,
        resource: Resource | None = None,
    ) -> None:
        """Take away the entry of a resource, or all rights of the user.

        Raises:
            AccessRefused: the user is unknown, or has no rights.
        """
        user = self.require(name)
        if not user.policies:
            raise AccessRefused(f"{user.subject} has no rights")
        left = {} if resource is None else dict(user.policies)
        if resource is not None and policy_type in left:
            rows = tuple(row for row in left[policy_type] if row.resource != resource)
            left[policy_type] = rows
        self._put(replace(user, policies={kind: rows for kind, rows in left.items() if rows}))


def _merged(old: Sequence[Entry], given: Sequence[Entry]) -> tuple[Entry, ...]:
    rows = {entry.resource: entry for entry in old}
    rows.update({entry.resource: entry for entry in given})
    return tuple(rows.values())


def _checked_name(name: str) -> str:
    if not name.strip() or len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        raise AccessRefused(
            f"username {name[:40]!r}: it must be printable, and have 1 to {NAME_CHARACTERS_MAX} "
            "characters"
        )
    return name


def _checked_secret(password: str) -> str:
    if len(password) > SECRET_CHARACTERS_MAX:
        raise AccessRefused(f"the password has more than {SECRET_CHARACTERS_MAX} characters")
    return password


# The forms of files and of requests' bodies.


def user_fields(user: User) -> dict[str, object]:
    """A user as RocketMQ's UserInfo, without the password."""
    return {
        "username": user.name,
        "userType": user.kind.value,
        "userStatus": user.status.value,
    }


def policies_fields(policies: Policies) -> list[dict[str, object]]:
    """Rights as the list of policies of RocketMQ's AclInfo."""
    return [
        {"policyType": kind.value, "entries": [entry.to_fields() for entry in rows]}
        for kind, rows in policies.items()
    ]


def parse_policies(listed: object) -> dict[PolicyType, tuple[Entry, ...]]:
    """Rights from such a list.

    Raises:
        RightsInvalid: it is none, or empty.
    """
    if not isinstance(listed, list) or not listed:
        raise RightsInvalid("no policies are given")
    found: dict[PolicyType, tuple[Entry, ...]] = {}
    for policy in listed:
        if not isinstance(policy, Mapping):
            raise RightsInvalid("a policy is no object")
        name = policy.get("policyType")
        kind = PolicyType.CUSTOM if name is None else by_name(PolicyType, _text(name))
        if kind is None:
            raise RightsInvalid(f"policyType {name!r}: write Custom or Default")
        entries = policy.get("entries")
        if not isinstance(entries, list) or not entries:
            raise RightsInvalid("a policy has no entries")
        found[kind] = _merged(found.get(kind, ()), [_parse_entry(entry) for entry in entries])
    return found


def _parse_entry(entry: object) -> Entry:
    if not isinstance(entry, Mapping):
        raise RightsInvalid("an entry is no object")
    return Entry.parse(
        _text(entry.get("resource") or ""),
        _texts(entry.get("actions")),
        _texts(entry.get("sourceIps")),
        _text(entry.get("decision") or ""),
    )


def _texts(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RightsInvalid(f"{value!r} is no list of texts")
    return [_text(one) for one in value]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RightsInvalid(f"{value!r} is no text")
    return value


def table_fields(table: UserTable) -> dict[str, object]:
    """The whole table, with passwords, as its file keeps it."""
    return {
        "generation": table.generation,
        "users": [
            {
                **user_fields(user),
                "password": user.password,
                "policies": policies_fields(user.policies),
            }
            for user in table.users.values()
        ],
    }


def parse_table(document: object) -> UserTable:
    """A table from its file.

    Raises:
        ValueError: it is none; no part of a damaged table is believed.
    """
    if not isinstance(document, Mapping) or not isinstance(document.get("users"), list):
        raise ValueError("it has no list of users")
    generation = document.get("generation")
    if not isinstance(generation, int):
        raise ValueError("it has no generation")
    users = {}
    for fields in document["users"]:
        if not isinstance(fields, Mapping):
            raise ValueError("a user is no object")
        kind = by_name(UserType, _text(fields.get("userType")))
        status = by_name(UserStatus, _text(fields.get("userStatus")))
        if kind is None or status is None:
            raise ValueError("a user's type or status is unknown")
        policies = fields.get("policies")
        user = User(
            _text(fields.get("username")),
            _text(fields.get("password")),
            kind,
            status,
            parse_policies(policies) if policies else {},
        )
        users[user.name] = user
    return UserTable(users, generation=generation)
