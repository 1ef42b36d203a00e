"""The peers that a broker replicates with, from its settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from contrail.broker.config import BrokerConfig
from contrail.broker.replicas import link_trust
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.cluster_secret import write_cluster_secret
from contrail.errors import ConfigError
from contrail.wire.router import is_within

SECRET = bytes(range(32))
CONFIG = BrokerConfig(cluster_allow_list="10.0.0.0/8")


def test_the_secret_of_the_file_is_what_peers_must_prove(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    trust = link_trust(CONFIG, ReplicationConfig(cluster_secret_path=str(path)), None)
    assert trust.secret == SECRET
    assert not trust.takes_plain
    assert not trust.takes_unsealed
    assert trust.server_tls is None


def test_plain_peers_are_taken_from_the_allow_list_only_if_told_so() -> None:
    trust = link_trust(CONFIG, ReplicationConfig(compat=True), None)
    assert trust.takes_plain
    assert trust.secret is None
    assert is_within(trust.networks, "10.1.2.3:4")
    assert not is_within(trust.networks, "11.1.2.3:4")


def test_a_secret_that_others_may_read_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        link_trust(CONFIG, ReplicationConfig(cluster_secret_path=str(path)), None)


class Files:
    """Stands in for ``TlsFiles``."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def certificate_der(self) -> bytes:
        return b"certificate"


def test_links_are_encrypted_when_the_broker_has_a_certificate_unless_apache_takes_part(
    tmp_path: Path,
) -> None:
    path = tmp_path / "secret"
    write_cluster_secret(path, SECRET)
    files = Files()
    sealed = ReplicationConfig(cluster_secret_path=str(path))
    trust = link_trust(CONFIG, sealed, files)  # type: ignore[arg-type]
    assert trust.server_tls is files.context
    assert trust.server_certificate == b"certificate"
    assert trust.client_tls is not None
    plain = ReplicationConfig(cluster_secret_path=str(path), compat=True)
    trust = link_trust(CONFIG, plain, files)  # type: ignore[arg-type]
    assert trust.server_tls is None
    assert trust.client_tls is None
