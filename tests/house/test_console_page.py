"""The console's page as built: its size, its licences, equal bytes, and nothing of it in git."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path

import pytest

from scripts.console_page import STATIC, UI, build, found_node, is_new, wheel_node
from tests.interop.peers import unavailable

ROOT = Path(__file__).parents[2]
PAGE_BYTES_MAX = 150_000


@pytest.fixture(scope="module")
def page() -> dict[str, bytes]:
    """The files of the page by name."""
    if not is_new(STATIC):
        unavailable("the console's page is not built from these sources", "make setup")
    return {path.name: path.read_bytes() for path in STATIC.iterdir()}


@pytest.mark.proves("console.pages.size")
def test_the_whole_page_is_small(page: dict[str, bytes]) -> None:
    packed = {name: len(gzip.compress(data, 9)) for name, data in page.items()}
    assert sum(packed.values()) <= PAGE_BYTES_MAX, packed


@pytest.mark.proves("console.pages.size")
def test_the_licence_of_every_package_that_is_bundled_comes_with_it(page: dict[str, bytes]) -> None:
    told = page["licences.txt"].decode()
    wanted = json.loads((UI / "package.json").read_text())["dependencies"]
    for name, version in wanted.items():
        assert f"{name} {version} (MIT)\n" in told, name
    assert told.count("Permission is hereby granted, free of charge") >= len(wanted)


@pytest.mark.proves("console.pages.assets")
def test_two_builds_of_the_same_sources_are_equal(page: dict[str, bytes], tmp_path: Path) -> None:
    node = found_node()
    if node is None or not (UI / "node_modules" / "esbuild").is_dir():
        unavailable("the tools that build the page are not here", "make setup")
    assert node is not None
    command = [node[0], "build.mjs", str(tmp_path)]
    subprocess.run(command, cwd=UI, check=True, capture_output=True)
    again = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    del page[".sources"]
    assert again == page


@pytest.mark.proves("console.pages.assets")
def test_the_page_is_in_the_package_and_not_in_git() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src/contrail/console/static", "ui/node_modules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.stdout == ""
    manifest = (ROOT / "MANIFEST.in").read_text()
    assert "recursive-include src/contrail/console/static *" in manifest
    assert '"contrail.console" = ["static/*"]' in (ROOT / "pyproject.toml").read_text()


def test_the_lock_file_fixes_every_package_and_names_no_host() -> None:
    lock = json.loads((UI / "package-lock.json").read_text())
    packages = {name: one for name, one in lock["packages"].items() if name}
    assert all(one["integrity"].startswith("sha512-") for one in packages.values())
    assert not any("resolved" in one for one in packages.values())


@pytest.mark.matrix
@pytest.mark.proves("console.pages.assets")
def test_a_machine_without_node_builds_the_same_page(
    page: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, npm = wheel_node()
    monkeypatch.setattr("scripts.console_page.found_node", lambda: None)
    build(tmp_path, any_node=True)
    assert node and npm
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == page
