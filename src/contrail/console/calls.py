"""The input of a handler of the API: its caller, query and body, and the console's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from contrail.client.admin import Admin
from contrail.clock import Clock
from contrail.console.config import ConsoleConfig
from contrail.console.services.accounts import Accounts
from contrail.console.services.audit_log import AuditLine, AuditLog
from contrail.console.services.replays import Replays
from contrail.console.services.sampler import Sampler
from contrail.console.state.plans import Plans
from contrail.console.state.roles import Role
from contrail.console.state.sessions import Session, Sessions
from contrail.console.state.throttle import Throttle
from contrail.insight.changes.planned import Change, Hands


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a running console that handlers use."""

    config: ConsoleConfig
    admin: Admin
    sampler: Sampler
    accounts: Accounts
    sessions: Sessions
    throttle: Throttle
    audit: AuditLog
    clock: Clock
    hands: Hands
    plans: Plans[Change]
    replays: Replays
    # A client of a single NameServer, to compare what each of them knows.
    admin_of: Callable[[str], Admin]


@dataclass(frozen=True, slots=True)
class Caller:
    """The account behind a request; a script with a bearer token has no session."""

    account: str
    role: Role
    session: Session | None = None
    session_token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, admitted and decoded; ``caller`` is None where no login is needed."""

    parts: Parts
    request: Request
    caller: Caller | None
    address: str
    path: Mapping[str, str]
    query: Any = None
    body: Any = None

    @property
    def known_caller(self) -> Caller:
        assert self.caller is not None, "the route has a role"
        return self.caller

    def note(self, account: str, action: str, target: str, outcome: str) -> None:
        """Write a line of the audit log."""
        now_ms = self.parts.clock.now_ms()
        self.parts.audit.write(AuditLine(now_ms, account, self.address, action, target, outcome))
