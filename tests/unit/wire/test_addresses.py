"""Which addresses only this host reaches, and which stand for all of its addresses."""

from __future__ import annotations

import pytest

from contrail.wire.addresses import is_loopback, is_wildcard


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_only_this_host_reaches_a_loopback_address(address: str) -> None:
    assert is_loopback(address)
    assert not is_wildcard(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_a_wildcard_is_no_loopback(address: str) -> None:
    assert is_wildcard(address)
    assert not is_loopback(address)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::1", "broker.example"])
def test_any_other_address_is_neither(address: str) -> None:
    assert not is_loopback(address)
    assert not is_wildcard(address)
