"""Users and rights go from a live broker of Apache to ours, and back to Apache's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.signing import Credentials, signed_fields
from contrail.testing import LocalCluster
from contrail.testing.caller import BlockingCaller
from tests.cli.running import done
from tests.e2e.access_setup import ACCESS, ADMIN
from tests.e2e.raw_client import send_fields
from tests.interop.apache_cluster import ApacheCluster

SHOP = Credentials("shop", "the-password-of-the-shop")
AUTH = {
    name: text
    for name, text in ACCESS.items()
    if name.startswith(("authentic", "authoriz", "init", "inner"))
} | {
    f"{kind}MetadataProvider": f"org.apache.rocketmq.auth.{kind}.provider.Local{name}"
    for kind, name in (
        ("authentication", "AuthenticationMetadataProvider"),
        ("authorization", "AuthorizationMetadataProvider"),
    )
}


def asked(
    address: str, credentials: Credentials, code: int, fields: dict[str, str], body: bytes
) -> ReceivedResponse:
    with BlockingCaller() as caller:
        return caller.call(address, code, signed_fields(fields, body, credentials), body)


def sends(address: str, topic: str) -> int:
    fields = send_fields(topic)
    return int(asked(address, SHOP, RequestCode.SEND_MESSAGE_V2, fields, b"x").code)


def make_shop(address: str) -> None:
    user = json.dumps({"username": "shop", "password": SHOP.secret_key}).encode()
    made = asked(address, ADMIN, RequestCode.AUTH_CREATE_USER, {"username": "shop"}, user)
    assert made.code == 0, made.remark
    entries = [
        {"resource": "Topic:order*", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {
            "resource": "Topic:orders-secret",
            "actions": ["All"],
            "sourceIps": ["127.0.0.0/8"],
            "decision": "Deny",
        },
    ]
    rights = {"subject": "User:shop", "policies": [{"policyType": "Custom", "entries": entries}]}
    code, body = RequestCode.AUTH_CREATE_ACL, json.dumps(rights).encode()
    made = asked(address, ADMIN, code, {"subject": "User:shop"}, body)
    assert made.code == 0, made.remark


@pytest.mark.proves("access.administration.carried")
def test_users_and_rights_go_from_apache_to_us_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAIL_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("CONTRAIL_SECRET_KEY", ADMIN.secret_key)
    from_apache, from_us = tmp_path / "apache.json", tmp_path / "ours.json"
    with (
        ApacheCluster(brokers=2, properties=AUTH) as apache,
        LocalCluster(properties=ACCESS) as ours,
    ):
        first, second = (broker.address for broker in apache.brokers)
        make_shop(first)
        theirs = ("-n", apache.namesrv)
        done("acl", "export", str(from_apache), "--broker", first, *theirs)
        assert from_apache.stat().st_mode & 0o077 == 0
        broker = ours.brokers[0]
        assert sends(broker.address, "orders") == 16
        done("acl", "import", str(from_apache), "-n", ours.namesrv)
        assert [sends(broker.address, one) for one in ("orders", "orders-secret")] == [0, 16]
        done("acl", "export", str(from_us), "--folder", str(broker.folder / "store"))
        assert sends(second, "orders") == 16
        done("acl", "import", str(from_us), "--broker", second, *theirs)
        assert [sends(second, one) for one in ("orders", "orders-secret")] == [0, 16]
