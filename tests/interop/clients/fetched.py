"""Clients that are fetched and built once, by their own tools, into the cache of the peers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.interop.peers import (
    PeerFailed,
    _cache_folder,
    _call,
    _digest,
    _publish,
    unavailable,
)

_FETCH_TIMEOUT_S = 900.0


def built_once(name: str, parts: list[bytes], build: Callable[[Path], None]) -> Path:
    """The folder that ``build`` fills; made once for the same ``parts``, the build's inputs."""
    finished = cache_folder("clients") / f"{name}-{_digest(*parts)}"
    if not finished.exists():
        building = finished.with_name(f"{finished.name}.{os.getpid()}")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
        build(building)
        _publish(building, finished)
    return finished


def cache_folder(name: str) -> Path:
    folder = _cache_folder() / name
    folder.mkdir(exist_ok=True)
    return folder


def call(command: list[str], *, cwd: Path, **settings: str) -> None:
    """Run a tool with the caller's environment: a site's mirrors and proxies are set there."""
    environment = dict(os.environ) | settings
    _call(command, cwd=cwd, environment=environment, timeout_s=_FETCH_TIMEOUT_S)


def fetch(command: list[str], *, cwd: Path, install: str, **settings: str) -> None:
    """Run a tool that fetches from the network; the test is skipped when it cannot."""
    try:
        call(command, cwd=cwd, **settings)
    except PeerFailed as problem:
        unavailable(str(problem), install)


def require_tools(tools: tuple[str, ...], install: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            unavailable(f"{tool} is not installed", install)
