"""The file of the cluster secret: made once, for its owner alone, and checked when it is read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from contrail.broker.services.cluster_secret import (
    SECRET_BYTES,
    read_cluster_secret,
    write_cluster_secret,
)
from contrail.errors import ConfigError

SECRET = bytes(range(SECRET_BYTES))


def test_a_secret_is_written_for_its_owner_alone_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_cluster_secret(path) == SECRET


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    with pytest.raises(ConfigError, match="exists"):
        write_cluster_secret(path, bytes(SECRET_BYTES))
    assert read_cluster_secret(path) == SECRET


@pytest.mark.proves("replication.pair.secret")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_use_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}.*chmod 600"):
        read_cluster_secret(path)


@pytest.mark.parametrize("text", ["", "abcd", "no digits", "ab" * 31, "\xff"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(
        ConfigError, match=r"contrailClusterSecretFile.*contrail replication secret"
    ):
        read_cluster_secret(path)


def test_a_missing_file_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contrail replication secret"):
        read_cluster_secret(tmp_path / "none")
