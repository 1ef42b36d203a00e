"""Log-ins. A session ends after half an hour without a request, and after 12 hours.

Sessions are kept by the digest of their token: a reader of this process's memory, or of a dump of
it, cannot use what stands there. Single-use links are kept in the same way.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from contrail.console.state.roles import Role

IDLE_MS = 30 * 60_000
LIFE_MS = 12 * 3_600_000
SESSIONS_MAX = 1_000
SESSIONS_PER_ACCOUNT_MAX = 50
LINK_LIFE_MS = 15 * 60_000


@dataclass(slots=True)
class Session:
    """A login of an account; ``csrf`` is the token that its changes must carry."""

    account: str
    role: Role
    csrf: str
    began_ms: int
    seen_ms: int

    @property
    def ends_ms(self) -> int:
        return self.began_ms + LIFE_MS

    def is_over(self, now_ms: int) -> bool:
        return now_ms >= self.ends_ms or now_ms >= self.seen_ms + IDLE_MS


@dataclass(frozen=True, slots=True)
class _Link:
    account: str
    role: Role
    ends_ms: int


class Sessions:
    """All sessions; the one that was used least recently makes room for a new one."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, Session] = {}
        self._links: dict[bytes, _Link] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, token: str, account: str, role: Role, csrf: str, now_ms: int) -> Session:
        """``token`` and ``csrf`` are random texts of the caller's."""
        self.expire(now_ms)
        of_account = [key for key, one in self._sessions.items() if one.account == account]
        if len(of_account) >= SESSIONS_PER_ACCOUNT_MAX:
            del self._sessions[self._oldest(of_account)]
        elif len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[self._oldest(list(self._sessions))]
        session = Session(account, role, csrf, now_ms, now_ms)
        self._sessions[_digest(token)] = session
        return session

    def _oldest(self, keys: list[bytes]) -> bytes:
        return min(keys, key=lambda key: self._sessions[key].seen_ms)

    def find(self, token: str, now_ms: int) -> Session | None:
        """The session of a request, which keeps it alive; None if there is none any more."""
        key = _digest(token)
        found = self._sessions.get(key)
        if found is None:
            return None
        if found.is_over(now_ms):
            del self._sessions[key]
            return None
        found.seen_ms = now_ms
        return found

    def is_open(self, token: str, now_ms: int) -> bool:
        """Whether a session goes on; asking does not keep it alive."""
        found = self._sessions.get(_digest(token))
        return found is not None and not found.is_over(now_ms)

    def end(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)

    def end_of_account(self, account: str) -> None:
        """End all sessions of an account whose password or role was changed."""
        for key in [key for key, one in self._sessions.items() if one.account == account]:
            del self._sessions[key]

    def expire(self, now_ms: int) -> None:
        for key in [key for key, one in self._sessions.items() if one.is_over(now_ms)]:
            del self._sessions[key]

    # Links that log in once.

    def add_link(self, token: str, account: str, role: Role, now_ms: int) -> None:
        self._links[_digest(token)] = _Link(account, role, now_ms + LINK_LIFE_MS)

    def take_link(self, token: str, now_ms: int) -> tuple[str, Role] | None:
        """The account of a link, which is used up by this."""
        link = self._links.pop(_digest(token), None)
        if link is None or now_ms >= link.ends_ms:
            return None
        return link.account, link.role


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
