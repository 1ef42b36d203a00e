"""A peer that cannot be had is a failure where it is required, and a named skip elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.peers import INSTALL_COMMAND, java_peer


@pytest.mark.proves("store.carried.pinned-peers")
def test_a_missing_peer_fails_where_peers_are_required(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CONTRAIL_REQUIRE_PEERS", "1")
    with pytest.raises(pytest.fail.Exception, match="java is not installed"):
        java_peer("apache-5")


@pytest.mark.proves("store.carried.pinned-peers")
def test_elsewhere_it_skips_and_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CONTRAIL_REQUIRE_PEERS", raising=False)
    with pytest.raises(pytest.skip.Exception, match=INSTALL_COMMAND):
        java_peer("apache-5")
