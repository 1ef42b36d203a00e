"""Rights of one user: entries over resources, and which of them decides.

Custom entries come before Default ones. Of those that match resource, action and address, the most
specific decides: a typed resource before ``*``; a literal name, then the longest prefix, then any
name; between equals Deny.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, TypeVar

_ANY = "*"


class ResourceType(Enum):
    """A kind of resources; ``ANY`` stands in policies only."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(Enum):
    """A use of a resource; ``ALL`` stands in policies only."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(Enum):
    """Whether an entry grants or refuses."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(Enum):
    """One of two sets of entries; Custom ones are asked first."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Pattern(Enum):
    """How an entry names its resources; the value is its place in the order, best first."""

    LITERAL = 0
    PREFIX = 1
    ANY = 2


class RightsInvalid(ValueError):
    """A text is no resource, action, address or decision."""


E = TypeVar("E", bound=Enum)


def by_name(kind: type[E], text: str | None) -> E | None:
    """The member with this name, in any case; None if there is none."""
    wanted = (text or "").lower()
    return next((one for one in kind if str(one.value).lower() == wanted), None)


class Resource(NamedTuple):
    """The resources that an entry is about."""

    kind: ResourceType
    pattern: Pattern
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Resource:
        """Read ``*``, ``Topic:*``, ``Topic:prefix*`` or ``Topic:name``.

        Raises:
            RightsInvalid: it is none of them.
        """
        if text == _ANY:
            return cls(ResourceType.ANY, Pattern.ANY)
        type_name, _, name = text.partition(":")
        kind = by_name(ResourceType, type_name)
        if kind is None or kind is ResourceType.ANY or not name:
            raise RightsInvalid(
                f"resource {text!r}: write *, or Cluster:, Namespace:, Topic: or Group: and a "
                "name, a prefix with * behind it, or *"
            )
        if name == _ANY:
            return cls(kind, Pattern.ANY)
        if name.endswith(_ANY):
            return cls(kind, Pattern.PREFIX, name.partition(_ANY)[0])
        return cls(kind, Pattern.LITERAL, name)

    def __str__(self) -> str:
        if self.kind is ResourceType.ANY:
            return _ANY
        end = "" if self.pattern is Pattern.LITERAL else _ANY
        return f"{self.kind.value}:{self.name}{end}"

    def covers(self, kind: ResourceType, name: str) -> bool:
        if self.kind is ResourceType.ANY:
            return True
        if self.kind is not kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == name
        return self.pattern is Pattern.ANY or name.startswith(self.name)


class Need(NamedTuple):
    """One thing that a request does: it needs one of the actions on the resource."""

    kind: ResourceType
    name: str
    actions: tuple[Action, ...]

    def __str__(self) -> str:
        actions = " or ".join(action.value for action in self.actions)
        return f"{actions} on {self.kind.value}:{self.name}"


class Entry(NamedTuple):
    """One right; without ``source_ips`` it holds for every address."""

    resource: Resource
    actions: frozenset[Action]
    source_ips: tuple[str, ...]
    decision: Decision

    @classmethod
    def parse(
        cls,
        resource: str | None,
        actions: Iterable[str],
        source_ips: Iterable[str],
        decision: str | None,
    ) -> Entry:
        """An entry from the texts that operators write; unknown actions are left out.

        Raises:
            RightsInvalid: the message says which text is wrong.
        """
        known = [(text, by_name(Action, text)) for text in actions]
        if any(text.lower() == "any" for text, _ in known):
            raise RightsInvalid("the action Any cannot be granted; write All")
        taken = frozenset(action for _, action in known if action is not None)
        if not taken:
            raise RightsInvalid(
                f"no action is named; there are {', '.join(one.value for one in Action)}"
            )
        decided = by_name(Decision, decision)
        if decided is None:
            raise RightsInvalid(f"decision {decision!r}: write Allow or Deny")
        addresses = tuple(source_ips)
        for address in addresses:
            network_of(address)
        return cls(Resource.parse(resource or ""), taken, addresses, decided)

    def matches(self, need: Need, address: str) -> bool:
        return (
            self.resource.covers(need.kind, need.name)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(need.actions))
            and self._is_from(address)
        )

    def _is_from(self, address: str) -> bool:
        if not self.source_ips:
            return True
        host = _host_of(address)
        return host is not None and any(host in network_of(text) for text in self.source_ips)

    def to_fields(self) -> dict[str, object]:
        """As RocketMQ's AclInfo writes an entry."""
        return {
            "resource": str(self.resource),
            "actions": [action.value for action in Action if action in self.actions],
            "sourceIps": list(self.source_ips),
            "decision": self.decision.value,
        }


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@lru_cache(1024)
def network_of(text: str) -> _Network:
    """The network of an address or CIDR text; raises ``RightsInvalid``."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise RightsInvalid(
            f"source {text!r}: write an IP address, or a network such as 10.0.0.0/8"
        ) from None


@lru_cache(1024)
def _host_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


Policies = Mapping[PolicyType, Sequence[Entry]]
"""The entries of one user."""


def deciding_entry(policies: Policies, need: Need, address: str) -> Entry | None:
    """The entry that decides on a need, if any matches."""
    for policy_type in PolicyType:
        matching = [
            entry for entry in policies.get(policy_type, ()) if entry.matches(need, address)
        ]
        if matching:
            return min(matching, key=_specificity)
    return None


def _specificity(entry: Entry) -> tuple[bool, int, int, bool]:
    kind, pattern, name = entry.resource
    return (
        kind is ResourceType.ANY,
        pattern.value,
        -len(name) if pattern is Pattern.PREFIX else 0,
        entry.decision is Decision.ALLOW,
    )
