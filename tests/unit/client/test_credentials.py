"""Where credentials come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.client.credentials import CredentialsFile, credentials_of
from contrail.errors import ConfigError
from contrail.protocol.signing import Credentials


def written(path: Path, text: str, mode: int = 0o600) -> CredentialsFile:
    path.write_text(text)
    path.chmod(mode)
    return CredentialsFile(path)


@pytest.mark.proves("access.signing.python")
def test_a_file_is_its_owners_alone_and_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    source = written(path, "accessKey=a\nsecretKey=b=c\n")
    assert source() == Credentials("a", "b=c")
    written(path, "accessKey: a\nsecretKey: 'longer:one'\nsecurityToken: t\n")
    assert source() == Credentials("a", "longer:one", "t")
    for mode in (0o640, 0o604):
        with pytest.raises(ConfigError, match="chmod 600"):
            written(tmp_path / f"open{mode}", "accessKey=a\nsecretKey=b\n", mode)()
    for text in ("", "accessKey=a\n", "accessKey=\nsecretKey=b\n"):
        with pytest.raises(ConfigError):
            written(tmp_path / "half", text)()
    with pytest.raises(ConfigError):
        CredentialsFile(tmp_path / "missing")()


def test_equal_paths_are_equal_sources(tmp_path: Path) -> None:
    source = written(tmp_path / "one", "accessKey=a\nsecretKey=b\n")
    source()
    assert source == CredentialsFile(tmp_path / "one")
    assert hash(source) == hash(CredentialsFile(tmp_path / "one"))


def test_an_environment_names_both_halves_or_none() -> None:
    assert credentials_of({}) is None
    both = {"CONTRAIL_ACCESS_KEY": "a", "CONTRAIL_SECRET_KEY": "b"}
    assert credentials_of(both) == Credentials("a", "b")
    assert credentials_of({"CONTRAIL_CREDENTIALS_FILE": "/f"}) == CredentialsFile(Path("/f"))
    for environment in (
        {"CONTRAIL_ACCESS_KEY": "a"},
        {"CONTRAIL_SECRET_KEY": "b"},
        {**both, "CONTRAIL_CREDENTIALS_FILE": "/f"},
    ):
        with pytest.raises(ConfigError):
            credentials_of(environment)
