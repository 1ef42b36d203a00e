"""TLS settings: off without a certificate, and never half."""

from __future__ import annotations

import pytest

from contrail.errors import ConfigError
from contrail.wire.settings import read_tls
from contrail.wire.tls import TlsMode


@pytest.mark.proves("wire.server.tls-disabled")
def test_without_a_certificate_tls_is_off() -> None:
    assert read_tls({}) == (TlsMode.DISABLED, None)
    off = {"tls.server.mode": "Disabled", "tls.server.certPath": "gone.pem"}
    assert read_tls(off) == (TlsMode.DISABLED, None)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"tls.server.mode": "sometimes"}, "disabled, permissive, enforcing"),
        ({"tls.server.mode": "enforcing"}, "certPath"),
        ({"tls.server.certPath": "gone.pem"}, "keyPath"),
        ({"tls.server.certPath": "gone.pem", "tls.server.keyPath": "gone.key"}, "gone"),
    ],
)
def test_tls_that_cannot_be_had_is_refused(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_tls(properties)
