"""The page's files: which are served, how long browsers keep them, and under which policy."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from contrail.console.app import VIEWS
from contrail.console.assets import Assets
from tests.unit.console.asking import Desk

PACKED = {"accept-encoding": "gzip, br"}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<!doctype html><title>page</title>")
    (static / "app-0123456789abcdef.js").write_text("'use strict';" * 50)
    (static / "notes.bin").write_bytes(b"not an asset")
    folder = tmp_path / "console"
    folder.mkdir()
    return Desk(folder, assets=Assets(static))


def test_every_view_has_an_address_and_is_the_same_document(desk: Desk) -> None:
    paths = ["/", *(f"/{one}" for one in VIEWS), "/topics/a%2Fb/queues", "/groups/x?tab=1"]
    told = [desk.ask("GET", path) for path in paths]
    assert {one.status for one in told} == {200}
    assert {one.body for one in told} == {b"<!doctype html><title>page</title>"}
    assert {one.headers["cache-control"] for one in told} == {"no-store"}


def test_files_with_a_hash_in_their_name_are_kept_by_browsers(desk: Desk) -> None:
    plain = desk.ask("GET", "/assets/app-0123456789abcdef.js")
    packed = desk.ask("GET", "/assets/app-0123456789abcdef.js", headers=PACKED)
    assert plain.headers["cache-control"] == "max-age=31536000, immutable"
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("name", ["index.html", "notes.bin", "..%2Faccounts.json", "nothing.js"])
def test_nothing_but_the_page_is_served(desk: Desk, name: str) -> None:
    told = desk.ask("GET", f"/assets/{name}")
    assert told.status == 404
    assert b"not an asset" not in told.body


@pytest.mark.proves("console.security.csp")
def test_the_page_carries_the_policy_and_is_for_known_hosts_only(desk: Desk) -> None:
    told = desk.ask("GET", "/topics")
    policy = told.headers["content-security-policy"]
    assert "require-trusted-types-for 'script'" in policy and "unsafe" not in policy
    assert desk.ask("GET", "/topics", headers={"host": "evil.example"}).status == 421
    assert desk.ask("GET", "/assets/nothing.js", headers={"host": "evil.example"}).status == 421
