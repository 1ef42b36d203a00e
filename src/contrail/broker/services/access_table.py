"""The table of users and its file ``config/contrailAcl.json``, which its owner alone may read.

The file holds the secrets in a form that can be read back: a signature cannot be checked without.
A change takes effect once the file has it. A damaged file refuses the start: its backup may hold
rights that were taken away since.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
from contrail.runtime.state_file import read_state, write_state
from contrail.store import CONFIG_FOLDER

_log = logging.getLogger(__name__)

FILE_NAME = "contrailAcl.json"
FIRST_USER = "admin"
_OWNER_ONLY = 0o600

Work = Callable[[UserTable], None]
"""One change of a table; raises ``AccessRefused``, and leaves the table as it was."""


class FirstUser(NamedTuple):
    """A user that was made because there was none; told once."""

    name: str
    password: str


class AccessTable:
    """The users of this broker. ``on_change`` is called when a change has taken effect."""

    def __init__(self, table: UserTable, persistence: Persistence) -> None:
        self.table = table
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
        table = self._planned()
        return lambda: _render(table)


def ignore_change() -> None:
    """For a table that nobody watches."""


def _carry_out(work: Work, table: UserTable) -> None:
    try:
        work(table)
    except AccessRefused as refusal:
        _log.warning("a change of users is left out: %s", refusal)


def read_users(files: FileSystem, root: Path) -> UserTable:
    """The users of a folder, as its file has them; none without one.

    Raises:
        StateFileDamaged: the file is damaged.
    """
    path = root / CONFIG_FOLDER / FILE_NAME
    read = read_state(files, path, sealed=True, parse=_parse, set_aside=False)
    if read.source == "backup" and files.exists(path):
        raise StateFileDamaged(
            f"{read.problem}. The backup may hold rights that were taken away since: restore "
            f"{path} from a copy, or move it away to begin with the backup"
        )
    return read.value or UserTable()


def load_access_table(
    files: FileSystem,
    root: Path,
    *,
    first_user: Credentials | None,
    inner: Credentials | None,
    new_password: Callable[[], str],
) -> tuple[UserTable, FirstUser | None]:
    """The table of a folder, with the users of the settings; and a user that was made up.

    Raises:
        StateFileDamaged: the file is damaged.
    """
    path = root / CONFIG_FOLDER / FILE_NAME
    read = read_state(files, path, sealed=True, parse=_parse, set_aside=False)
    if read.source == "backup" and files.exists(path):
        raise StateFileDamaged(
            f"{read.problem}. The backup may hold rights that were taken away since: restore "
            f"{path} from a copy, or move it away to begin with the backup"
        )
    table = read.value or UserTable()
    generation = table.generation
    made: FirstUser | None = None
    for credentials in (first_user, inner):
        if credentials is not None:
            _take_super(table, credentials)
    if not any(user.is_super and user.is_enabled for user in table.users.values()):
        made = FirstUser(_free_name(table), new_password())
        table.create_user(made.name, made.password, UserType.SUPER)
    if table.generation != generation or read.source == "none":
        write_state(files, path, _render(table), sealed=True, mode=_OWNER_ONLY)
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


def _render(table: UserTable) -> bytes:
    return json.dumps(table_fields(table), indent=1).encode()


def _parse(data: bytes) -> UserTable:
    return parse_table(json.loads(data))
