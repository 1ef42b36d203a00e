"""The table of users and its file."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest

from contrail.access.state.users import AccessRefused, UserStatus, UserTable
from contrail.broker.services.access_table import (
    FILE_NAME,
    AccessTable,
    FirstUser,
    load_access_table,
    read_users,
)
from contrail.broker.services.persistence import Persistence
from contrail.errors import StateFileDamaged, StoreError
from contrail.protocol.signing import Credentials
from contrail.runtime.files import FileSystem

ROOT = Credentials("root", "root-secret")


def load(
    folder: Path, first: Credentials | None = None, inner: Credentials | None = None
) -> tuple[UserTable, FirstUser | None]:
    return load_access_table(
        FileSystem(), folder, first_user=first, inner=inner, new_password=lambda: "made up"
    )


def change(folder: Path, *works: object) -> list[Exception | None]:
    """Submit changes at once; how each of them ended."""

    async def run() -> list[Exception | None]:
        persistence = Persistence(folder, FileSystem())
        access = AccessTable(load(folder)[0], persistence)
        ended: list[Exception | None] = []
        for work in works:
            access.change(work, 0, ended.append)  # type: ignore[arg-type]
        assert ended == [], "nothing is answered before it is durable"
        await persistence.settled()
        await persistence.close()
        return ended

    return asyncio.run(run())


@pytest.mark.proves("access.settings.first-users")
def test_a_first_start_without_users_makes_one_and_tells_its_password_once(tmp_path: Path) -> None:
    table, made = load(tmp_path)
    assert made == ("admin", "made up") and table.require("admin").is_super
    again, nobody = load(tmp_path)
    assert nobody is None and again.require("admin").password == "made up"


@pytest.mark.proves("access.settings.first-users")
def test_users_of_the_settings_are_made_once_and_keep_their_passwords(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table, made = load(tmp_path, ROOT, Credentials("inner", "inner-secret"))
    assert made is None
    assert {user.name for user in table.users.values() if user.is_super} == {"root", "inner"}
    again, _ = load(tmp_path, Credentials("root", "changed-secret"))
    assert again.require("root").password == "root-secret"
    assert "another password of user 'root'" in caplog.text and "secret" not in caplog.text


@pytest.mark.proves("access.settings.first-users")
def test_a_folder_whose_supers_are_all_disabled_gets_a_new_one(tmp_path: Path) -> None:
    load(tmp_path, Credentials("admin", "x"))
    table = load(tmp_path)[0]
    table.users["admin"] = table.users["admin"].__class__("admin", "x", status=UserStatus.DISABLE)

    def disable(access: UserTable) -> None:
        access.users["admin"] = table.users["admin"]

    assert change(tmp_path, disable) == [None]
    assert load(tmp_path)[1] == ("admin2", "made up")


@pytest.mark.proves("access.settings.file")
def test_a_change_is_in_the_file_before_it_counts(tmp_path: Path) -> None:
    load(tmp_path, ROOT)
    assert change(
        tmp_path,
        lambda table: table.create_user("alice", "a"),
        lambda table: table.update_user("alice", password="b"),
    ) == [None, None]
    assert load(tmp_path)[0].require("alice").password == "b"
    config = tmp_path / "config"
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in config.iterdir()}
    assert names == {FILE_NAME: 0o600, f"{FILE_NAME}.bak": 0o600}


def test_a_change_that_the_table_does_not_allow_is_refused_with_those_before_it(
    tmp_path: Path,
) -> None:
    load(tmp_path, ROOT)

    async def run() -> None:
        persistence = Persistence(tmp_path, FileSystem())
        access = AccessTable(load(tmp_path)[0], persistence)
        access.change(lambda table: table.create_user("alice", "a"), 0)
        # Not durable yet, and counted all the same.
        with pytest.raises(AccessRefused):
            access.change(lambda table: table.create_user("alice", "b"), 0)
        assert "alice" not in access.table.users
        await persistence.settled()
        assert access.table.require("alice").password == "a"
        await persistence.close()

    asyncio.run(run())


class _BrokenDisk(FileSystem):
    def fsync(self, fd: int) -> None:
        raise OSError(5, "the disk is broken")


def test_a_change_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    load(tmp_path, ROOT)

    async def run() -> None:
        persistence = Persistence(tmp_path, _BrokenDisk())
        access = AccessTable(load(tmp_path)[0], persistence)
        ended: list[Exception | None] = []
        access.change(lambda table: table.create_user("alice", "a"), 0, ended.append)
        await persistence.settled()
        assert isinstance(ended[0], OSError) and "alice" not in access.table.users
        with pytest.raises(StoreError):
            await persistence.close()

    asyncio.run(run())
    assert "alice" not in load(tmp_path)[0].users


@pytest.mark.proves("access.settings.file")
@pytest.mark.parametrize("cut", [0, 1, 60])
def test_a_damaged_file_refuses_the_start_even_with_a_sound_backup(
    tmp_path: Path, cut: int
) -> None:
    load(tmp_path, ROOT)
    change(tmp_path, lambda table: table.create_user("alice", "a"))
    path = tmp_path / "config" / FILE_NAME
    path.write_bytes(path.read_bytes()[: -cut or None] + b"x" * (not cut))
    with pytest.raises(StateFileDamaged):
        load(tmp_path)
    # A crash between the two renames of a write leaves the backup alone: nothing is lost then.
    path.unlink()
    assert "alice" not in load(tmp_path)[0].users


@pytest.mark.proves("access.settings.wrapped")
def test_a_wrapped_file_tells_nothing_without_its_key(tmp_path: Path) -> None:
    def load_by(key: bytes | None) -> UserTable:
        return load_access_table(
            FileSystem(), tmp_path, first_user=ROOT, inner=None, new_password=str, key=key
        )[0]

    key = b"k" * 32
    # A plain file of before is wrapped with its backup.
    load(tmp_path, ROOT)
    assert change(tmp_path, lambda table: table.create_user("shop", "shop-secret")) == [None]
    assert load_by(key).require("shop").password == "shop-secret"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path
        assert not path.is_file() or stat.S_IMODE(path.stat().st_mode) == 0o600

    async def make_another() -> None:
        persistence = Persistence(tmp_path, FileSystem())
        access = AccessTable(load_by(key), persistence, key=key)
        access.change(lambda table: table.create_user("late", "late-secret"), 0)
        await persistence.settled()
        await persistence.close()

    asyncio.run(make_another())
    assert load_by(key).require("late").password == "late-secret"
    assert read_users(FileSystem(), tmp_path, key).require("late")
    for wrong in (None, b"x" * 32):
        with pytest.raises(StateFileDamaged, match="contrailAclKeyFile" if not wrong else "key"):
            load_by(wrong)
