"""A running cluster for the tests of commands, and an empty file of contexts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.cli import doctor
from contrail.cli.target import Target
from contrail.client.blocking.admin import Admin
from contrail.testing import LocalCluster

PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAIL_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for some seconds is no server that does not answer."""
    opened = Target.admin

    def admin(self: Target, *, timeout_ms: int = PATIENCE_MS) -> Admin:
        return opened(self, timeout_ms=timeout_ms)

    monkeypatch.setattr(Target, "admin", admin)
    monkeypatch.setattr(doctor, "_TIMEOUT_MS", PATIENCE_MS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two brokers; tests of one file share it and name topics of their own."""
    with LocalCluster(brokers=2, folder=tmp_path_factory.mktemp("cluster")) as running:
        yield running
