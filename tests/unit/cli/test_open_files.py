"""The number of connections that a process accepts by its limit of open files."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from contrail.cli.open_files import (
    CONNECTION_COUNT_MIN,
    RESERVE,
    limits_within,
    raise_open_files_limit,
    store_within,
)
from contrail.errors import ConfigError
from contrail.store.config import StoreConfig
from contrail.wire.limits import Limits


def set_limits(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    return asked


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set_limits(monkeypatch, 1024, 524_288)
    assert raise_open_files_limit() == 524_288
    assert asked == [(524_288, 524_288)]


def test_a_limit_that_is_as_high_as_it_goes_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set_limits(monkeypatch, 1024, 1024)
    assert raise_open_files_limit() == 1024
    assert asked == []


@pytest.mark.parametrize("error", [ValueError("too high"), OSError("not permitted")])
def test_a_limit_that_is_not_granted_stays(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, 256, resource.RLIM_INFINITY)

    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise error

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_open_files_limit() == 256


@pytest.mark.parametrize("open_files", [resource.RLIM_INFINITY, 1 << 20, 20_000 + 800 + RESERVE])
def test_enough_files_leave_all_connections(
    open_files: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert limits_within(open_files, store_open_files_max=800) == Limits()
    assert caplog.text == ""


def test_few_files_leave_the_connections_that_fit_and_are_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = limits_within(4096, store_open_files_max=800)
    assert limits.connection_count_max == 4096 - 800 - RESERVE
    assert "only 3096 connections" in caplog.text
    assert "ulimit -Hn" in caplog.text
    assert "contrailOpenFilesMax" in caplog.text


def test_a_name_server_has_no_store_to_keep_files_for(caplog: pytest.LogCaptureFixture) -> None:
    assert limits_within(1024).connection_count_max == 1024 - RESERVE
    assert "contrailOpenFilesMax" not in caplog.text


def test_a_few_connections_are_accepted_however_few_files_there_are() -> None:
    limits = limits_within(1000, store_open_files_max=800)
    assert limits.connection_count_max == CONNECTION_COUNT_MIN


@pytest.mark.parametrize("open_files", [resource.RLIM_INFINITY, 1_000_000, 1016])
def test_a_store_that_fits_keeps_its_files(open_files: int, tmp_path: Path) -> None:
    store = StoreConfig(root=tmp_path)
    assert store.open_files_max == 800
    assert store_within(store, open_files) is store


@pytest.mark.proves("broker.edges.open-files")
def test_a_store_limit_above_the_process_limit_is_logged_and_lowered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = StoreConfig(root=tmp_path, open_files_max=100_000)
    found = store_within(store, 1024)
    assert found.open_files_max == (1024 - RESERVE) // 2
    assert "contrailOpenFilesMax is 412, not 100000: the process may open 1024 files" in caplog.text
    limits = limits_within(1024, store_open_files_max=found.open_files_max)
    assert limits.connection_count_max == 412


@pytest.mark.proves("broker.edges.open-files")
def test_a_process_that_may_open_next_to_nothing_is_refused(tmp_path: Path) -> None:
    store = StoreConfig(root=tmp_path)
    with pytest.raises(ConfigError, match="contrailOpenFilesMax=800, but the process may open 223"):
        store_within(store, 223)
    assert store_within(store, 224).open_files_max == 8
