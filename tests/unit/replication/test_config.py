"""How a broker introduces itself on a link."""

from __future__ import annotations

import pytest

from contrail.protocol.handshake import NONCE_BYTES, SEALED, SLAVE, fingerprint_of
from contrail.replication.config import BrokerIdentity, LinkTrust

IDENTITY = BrokerIdentity(cluster="c", broker_name="b", broker_id=3, group="g")


@pytest.mark.proves("replication.pair.seals")
@pytest.mark.parametrize(
    ("is_protected", "takes_unsealed", "needs"),
    [(False, False, (SEALED,)), (True, False, ()), (False, True, ())],
)
def test_a_bare_link_to_another_host_needs_seals_unless_a_setting_says_otherwise(
    is_protected: bool, takes_unsealed: bool, needs: tuple[str, ...]
) -> None:
    trust = LinkTrust(secret=b"s", takes_unsealed=takes_unsealed)
    own = trust.introduction(IDENTITY, SLAVE, b"n" * NONCE_BYTES, is_protected=is_protected)
    assert own.needs == needs


def test_an_introduction_names_the_broker_and_not_the_secret() -> None:
    trust = LinkTrust(secret=b"the secret")
    own = trust.introduction(IDENTITY, SLAVE, b"n" * NONCE_BYTES, is_protected=True)
    assert (own.cluster, own.broker_name, own.broker_id, own.group) == ("c", "b", 3, "g")
    assert own.fingerprint == fingerprint_of(b"the secret")
    assert b"the secret" not in own.encode()
