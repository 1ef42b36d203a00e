"""Accounts: made once, kept as hashes in a file for its owner alone, changed while it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contrail.console.services.accounts import Account, Accounts
from contrail.console.state.roles import Role
from contrail.errors import ConfigError

PASSWORD = "correct horse"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "accounts.json"


def accounts(path: Path) -> Accounts:
    return Accounts(path, cost=1 << 4)


def log_in(kept: Accounts, name: str, password: str) -> Account | None:
    return asyncio.run(kept.with_password(name, password))


@pytest.mark.proves("console.security.login")
def test_the_first_password_is_made_once(path: Path) -> None:
    kept = accounts(path)
    password = kept.create_first()
    assert password is not None and len(password) >= 20
    assert kept.create_first() is None and accounts(path).create_first() is None
    assert log_in(kept, "admin", password) == Account("admin", Role.ADMIN)
    assert password not in path.read_text() and path.stat().st_mode & 0o777 == 0o600


def test_wrong_names_and_passwords_are_refused_alike(path: Path) -> None:
    kept = accounts(path)
    kept.put("ada", Role.READER, PASSWORD)
    assert log_in(kept, "ada", PASSWORD) == Account("ada", Role.READER)
    for name, password in (("ada", PASSWORD + "!"), ("eve", PASSWORD), ("ada", "x" * 5_000)):
        assert log_in(kept, name, password) is None


@pytest.mark.proves("console.api.tokens")
def test_a_token_is_kept_by_its_digest(path: Path) -> None:
    kept = accounts(path)
    kept.put("ada", Role.READER, PASSWORD)
    token = kept.new_token("ada")
    assert kept.with_token(token) == Account("ada", Role.READER)
    assert token not in path.read_text()
    kept.put("ada", Role.OPERATOR, PASSWORD)
    assert kept.with_token(token) == Account("ada", Role.OPERATOR), "a token stays"
    kept.new_token("ada")
    assert kept.with_token(token) is None


def test_another_process_changes_the_accounts_of_a_running_console(path: Path) -> None:
    running, command = accounts(path), accounts(path)
    running.create_first()
    command.put("ada", Role.VIEWER, PASSWORD)
    assert log_in(running, "ada", PASSWORD) is not None
    command.remove("ada")
    assert running.role_of("ada") is None


def test_the_last_admin_stays(path: Path) -> None:
    kept = accounts(path)
    kept.create_first()
    with pytest.raises(ConfigError, match="last admin"):
        kept.remove("admin")
    with pytest.raises(ConfigError, match="no account 'eve'"):
        kept.remove("eve")


@pytest.mark.parametrize(
    ("name", "password"), [("a b", PASSWORD), ("", PASSWORD), ("ada", "short")]
)
def test_names_and_passwords_have_a_form(path: Path, name: str, password: str) -> None:
    with pytest.raises(ConfigError):
        accounts(path).put(name, Role.VIEWER, password)


def test_a_role_is_written_as_a_word() -> None:
    assert [Role.of(role.word) for role in Role] == list(Role)
    with pytest.raises(ValueError, match="'root' is no role"):
        Role.of("root")
