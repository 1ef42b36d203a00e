"""The table of users and its file ``config/contrailAcl.json``, which its owner alone may read.

The file holds the secrets in a form that can be read back: a signature cannot be checked without.
A change takes effect once the file has it. A damaged file refuses the start: its backup may hold
rights that were taken away since.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from contrail.access.state.sealing import SALT_BYTES, seal, unseal
from contrail.access.state.users import (
    AccessRefused,
    UserTable,
    UserType,
    parse_table,
    table_fields,
)
from contrail.broker.services.persistence import Persistence, Render
from contrail.errors import StateFileDamaged
from contrail.protocol.signing import Credentials
from contrail.runtime.durable_changes import Done, DurableChanges, ignore
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import StateRead, read_state, write_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FILE_NAME = "contrailAcl.json"
FIRST_USER = "admin"
_OWNER_ONLY = 0o600
_WRAPPED = "wrapped"
_CONTEXT = b"contrail users at rest"

Work = Callable[[UserTable], None]
"""One change of a table; raises ``AccessRefused``, and leaves the table as it was."""


class FirstUser(NamedTuple):
    """A user that was made because there was none; told once."""

    name: str
    password: str


class AccessTable:
    """The users of this broker. ``on_change`` is called when a change has taken effect."""

    def __init__(
        self, table: UserTable, persistence: Persistence, *, key: bytes | None = None
    ) -> None:
        """With a ``key`` the file is wrapped: it tells nothing without it."""
        self.table = table
        self._key = key
        self.on_change: Callable[[], None] = ignore_change
        self._changes: DurableChanges[int, Work] = DurableChanges(
            lambda done: persistence.when_written(FILE_NAME, done)
        )
        self._submitted_count = 0
        persistence.register(
            FILE_NAME,
            # Every change asks for its own write.
            take_changed=lambda: False,
            snapshot=self._snapshot,
            sealed=True,
            mode=_OWNER_ONLY,
        )

    def change(self, work: Work, now_ms: int, done: Done = ignore) -> None:
        """Have a change in effect once it is durable.

        Raises:
            AccessRefused: the table, with all changes before this one, does not allow it.
        """
        work(self._planned())
        self._submitted_count += 1
        self._changes.submit(
            {self._submitted_count: work}, now_ms, lambda: self._believe(work), done
        )

    def _believe(self, work: Work) -> None:
        """A change before this one may have failed to be written."""
        work(self.table)
        self.on_change()

    def _planned(self) -> UserTable:
        """The table after all changes that wait for the file."""
        table = self.table.copy()
        for change in self._changes.planned():
            for work in change.entries.values():
                assert work is not None, "changes are never taken back"
                _carry_out(work, table)
        return table

    def _snapshot(self) -> Render:
        table, key = self._planned(), self._key
        return lambda: _render(table, key)


def ignore_change() -> None:
    """For a table that nobody watches."""


def _carry_out(work: Work, table: UserTable) -> None:
    try:
        work(table)
    except AccessRefused as refusal:
        _log.warning("a change of users is left out: %s", refusal)


class _Wrapped(NamedTuple):
    """A table's file, and whether it was wrapped."""

    table: UserTable
    is_wrapped: bool


def read_users(files: FileSystem, root: Path, key: bytes | None = None) -> UserTable:
    """The users of a folder, as its file has them; none without one.

    Raises:
        StateFileDamaged: the file is damaged, or wrapped under another key.
    """
    read = _read(files, root / CONFIG_FOLDER / FILE_NAME, key)
    return read.value.table if read.value else UserTable()


def _read(files: FileSystem, path: Path, key: bytes | None) -> StateRead[_Wrapped]:
    read = read_state(
        files, path, sealed=True, parse=lambda data: _parse(data, key), set_aside=False
    )
    if read.source == "backup" and files.exists(path):
        raise StateFileDamaged(
            f"{read.problem}. The backup may hold rights that were taken away since: restore "
            f"{path} from a copy, or move it away to begin with the backup"
        )
    return read


def load_access_table(
    files: FileSystem,
    root: Path,
    *,
    first_user: Credentials | None,
    inner: Credentials | None,
    new_password: Callable[[], str],
    key: bytes | None = None,
) -> tuple[UserTable, FirstUser | None]:
    """The table of a folder, with the users of the settings; and a user that was made up.

    Raises:
        StateFileDamaged: the file is damaged.
    """
    path = root / CONFIG_FOLDER / FILE_NAME
    read = _read(files, path, key)
    table = read.value.table if read.value else UserTable()
    generation = table.generation
    made: FirstUser | None = None
    for credentials in (first_user, inner):
        if credentials is not None:
            _take_super(table, credentials)
    if not any(user.is_super and user.is_enabled for user in table.users.values()):
        made = FirstUser(_free_name(table), new_password())
        table.create_user(made.name, made.password, UserType.SUPER)
    is_bare = key is not None and read.value is not None and not read.value.is_wrapped
    if table.generation != generation or read.source == "none" or is_bare:
        write_state(files, path, _render(table, key), sealed=True, mode=_OWNER_ONLY)
    if is_bare:
        # Once more, so that the backup is wrapped, too.
        write_state(files, path, _render(table, key), sealed=True, mode=_OWNER_ONLY)
    return table, made


def _take_super(table: UserTable, credentials: Credentials) -> None:
    known = table.users.get(credentials.access_key)
    if known is None:
        table.create_user(credentials.access_key, credentials.secret_key, UserType.SUPER)
    elif known.password != credentials.secret_key:
        _log.warning(
            "the settings have another password of user %r than the table of users: the table's "
            "counts; change it with updateUser",
            known.name,
        )


def _free_name(table: UserTable) -> str:
    """``admin``, or the first of its kind that nobody has."""
    name, number = FIRST_USER, 1
    while name in table.users:
        number += 1
        name = f"{FIRST_USER}{number}"
    return name


def _render(table: UserTable, key: bytes | None) -> bytes:
    data = json.dumps(table_fields(table), indent=1).encode()
    if key is None:
        return data
    sealed = seal(key, _CONTEXT, data, secrets.token_bytes(SALT_BYTES))
    return json.dumps({_WRAPPED: base64.b64encode(sealed).decode()}).encode()


def _parse(data: bytes, key: bytes | None) -> _Wrapped:
    document = json.loads(data)
    if not isinstance(document, dict) or _WRAPPED not in document:
        return _Wrapped(parse_table(document), False)
    if key is None:
        raise ValueError("it is wrapped: set contrailAclKeyFile to the file of its key")
    sealed = base64.b64decode(document[_WRAPPED], validate=True)
    return _Wrapped(parse_table(json.loads(unseal(key, _CONTEXT, sealed))), True)
