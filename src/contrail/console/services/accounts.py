"""The accounts of the console: names, roles and scrypt hashes, in a file for its owner alone.

``{"accounts": {name: {"role", "salt", "hash", "token"}}}``; hashes are of scrypt with n = 2^15,
r = 8, p = 1, a token is kept by its SHA-256, for it is 32 random bytes. The command line changes
the file, a running console reads it anew when it has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contrail.console.state.roles import Role
from contrail.errors import ConfigError
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state

FIRST_ACCOUNT = "admin"
PASSWORD_CHARACTERS_MIN = 10
PASSWORD_CHARACTERS_MAX = 1_024
ACCOUNTS_MAX = 1_000
_COST, _BLOCK, _PARALLEL = 1 << 15, 8, 1
_MEMORY_BYTES_MAX = 64 << 20
_SALT_BYTES = 16
_MODE = 0o600
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
# Two at once take 64 MiB; further ones wait.
_HASHES_AT_ONCE = 2


class _Kept(msgspec.Struct):
    role: str
    salt: str
    hash: str
    token: str | None = None


class _File(msgspec.Struct):
    accounts: dict[str, _Kept] = {}


@dataclass(frozen=True, slots=True)
class Account:
    """An account that has shown its password or token."""

    name: str
    role: Role


class Accounts:
    """The file, and the answers to log-ins."""

    def __init__(self, path: Path, *, cost: int = _COST) -> None:
        """``cost`` is less in tests alone."""
        self._path = path
        self._cost = cost
        self._files = FileSystem()
        self._room = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._stamp: tuple[int, int] | None = None
        self._accounts: dict[str, _Kept] = {}
        # An unknown name takes as long as a wrong password.
        self._nobody = _Kept(Role.VIEWER.word, secrets.token_hex(_SALT_BYTES), "")

    # The file.

    def load(self) -> None:
        """Raises ``StateFileDamaged`` for a file that is neither readable nor has a backup."""
        stamp = self._now_stamp()
        if stamp is not None and stamp == self._stamp:
            return
        read = read_state(self._files, self._path, sealed=False, parse=_parsed)
        self._accounts = {} if read.value is None else read.value.accounts
        self._stamp = stamp

    def _now_stamp(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino

    def create_first(self) -> str | None:
        """The password of the first account, if there is none yet; it is told this once."""
        self.load()
        if self._accounts:
            return None
        password = secrets.token_urlsafe(15)
        self.put(FIRST_ACCOUNT, Role.ADMIN, password)
        return password

    def put(self, name: str, role: Role, password: str) -> None:
        """Add an account, or set the role and password of one; its token stays."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"account {name!r}: a name has up to 64 letters, digits and ._@-")
        if not PASSWORD_CHARACTERS_MIN <= len(password) <= PASSWORD_CHARACTERS_MAX:
            raise ConfigError(
                f"the password has {len(password)} characters: give {PASSWORD_CHARACTERS_MIN} to "
                f"{PASSWORD_CHARACTERS_MAX}"
            )
        self.load()
        if len(self._accounts) >= ACCOUNTS_MAX and name not in self._accounts:
            raise ConfigError(f"there are {ACCOUNTS_MAX} accounts already: remove one")
        known = self._accounts.get(name)
        salt = secrets.token_hex(_SALT_BYTES)
        token = None if known is None else known.token
        self._accounts[name] = _Kept(role.word, salt, self._hash(password, salt), token)
        self._write()

    def new_token(self, name: str) -> str:
        """A token for scripts of an account, in place of the one before."""
        self.load()
        token = secrets.token_urlsafe(32)
        self._known(name).token = hashlib.sha256(token.encode()).hexdigest()
        self._write()
        return token

    def remove(self, name: str) -> None:
        self.load()
        kept = self._known(name)
        admins = [one for one in self._accounts.values() if one.role == Role.ADMIN.word]
        if admins == [kept]:
            raise ConfigError(f"account {name!r} is the last admin: make another one first")
        del self._accounts[name]
        self._write()

    def roles(self) -> dict[str, Role]:
        self.load()
        return {name: Role.of(kept.role) for name, kept in sorted(self._accounts.items())}

    def _known(self, name: str) -> _Kept:
        if name not in self._accounts:
            known = ", ".join(sorted(self._accounts)) or "none"
            raise ConfigError(f"there is no account {name!r}; there are: {known}")
        return self._accounts[name]

    def _write(self) -> None:
        data = msgspec.json.encode(_File(self._accounts))
        write_state(self._files, self._path, data, sealed=False, mode=_MODE)
        self._stamp = self._now_stamp()

    # Log-ins.

    async def with_password(self, name: str, password: str) -> Account | None:
        """The account, if this is its password; hashing is done by a thread."""
        self.load()
        kept = self._accounts.get(name, self._nobody)
        shown = password[:PASSWORD_CHARACTERS_MAX]
        async with self._room:
            found = await asyncio.to_thread(self._hash, shown, kept.salt)
        is_right = hmac.compare_digest(found, kept.hash) and len(password) == len(shown)
        return Account(name, Role.of(kept.role)) if is_right else None

    def with_token(self, token: str) -> Account | None:
        self.load()
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
        found: Account | None = None
        for name, kept in self._accounts.items():
            if kept.token is not None and hmac.compare_digest(kept.token, digest):
                found = Account(name, Role.of(kept.role))
        return found

    def role_of(self, name: str) -> Role | None:
        """The role that an account has now; None once it is removed."""
        self.load()
        kept = self._accounts.get(name)
        return None if kept is None else Role.of(kept.role)

    def _hash(self, password: str, salt: str) -> str:
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"),
            salt=bytes.fromhex(salt),
            n=self._cost,
            r=_BLOCK,
            p=_PARALLEL,
            maxmem=_MEMORY_BYTES_MAX,
        ).hex()


def _parsed(data: bytes) -> _File:
    found = msgspec.json.decode(data, type=_File)
    for kept in found.accounts.values():
        Role.of(kept.role)
        bytes.fromhex(kept.salt)
    return found
