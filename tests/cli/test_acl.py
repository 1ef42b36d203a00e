"""``contrail acl``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.broker.settings import read_broker_settings
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.signing import Credentials
from contrail.testing import LocalCluster
from tests.cli.running import contrail, done, one_line, valid_json
from tests.e2e.access_setup import ACCESS, ADMIN, Signer
from tests.e2e.raw_client import send_fields


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, properties=ACCESS) as cluster:
        yield cluster


@pytest.fixture
def at(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("CONTRAIL_ACCESS_KEY", ADMIN.access_key)
    monkeypatch.setenv("CONTRAIL_SECRET_KEY", ADMIN.secret_key)
    return "-n", cluster.namesrv


@pytest.mark.proves("access.administration.cli")
def test_init_prints_settings_that_a_broker_starts_with() -> None:
    lines = done("acl", "init").out.splitlines()
    found = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    access = read_broker_settings({**found, "storePathRootDir": "/s"}).access
    assert access.is_on and access.first_user is not None and access.inner is not None
    assert done("acl", "init").out.splitlines() != lines


@pytest.mark.proves("access.administration.cli")
def test_a_user_is_made_given_rights_and_explained(
    cluster: LocalCluster, at: tuple[str, ...], tmp_path: Path
) -> None:
    made = done("acl", "user", "shop", *at).out
    password = made.split(" is ")[1].split(":")[0]
    shop = Credentials("shop", password)
    send = (RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x")

    def codes(credentials: Credentials) -> list[int]:
        found = []
        for broker in cluster.brokers:
            with Signer(broker, credentials) as client:
                found.append(client.ask(*send).code)
        return found

    may = ("acl", "explain", "shop", "Pub", "Topic:orders")
    assert codes(shop) == [ResponseCode.NO_PERMISSION] * 2
    one_line(contrail(*may, *at), 1, "may not Pub on Topic:orders")
    done("acl", "grant", "shop", "Topic:ord*", "Pub,Sub", *at)
    assert codes(shop) == [0, 0]
    verdicts = valid_json("acl-explain", *may, *at)
    assert [one["because"] for one in verdicts] == ["the right on Topic:ord* says Allow"] * 2

    first = cluster.brokers[0].name
    done("acl", "grant", "shop", "Topic:orders", "Pub", "--deny", "--broker", first, *at)
    assert codes(shop) == [ResponseCode.NO_PERMISSION, 0]
    assert "differs from" in done("acl", "show", *at).out
    tables = valid_json("acl-show", "acl", "show", "shop", *at)
    assert [len(table["rights"]) for table in tables] == [2, 1]
    assert password not in str(tables)
    unasked = contrail("acl", "revoke", "shop", "Topic:orders", *at)
    assert unasked.code == 2 and "--yes" in unasked.err
    done("acl", "revoke", "shop", "Topic:orders", "--yes", "--broker", first, *at)
    assert codes(shop) == [0, 0]

    done("acl", "user", "shop", "--disable", *at)
    assert codes(shop) == [ResponseCode.NO_PERMISSION] * 2
    assert "disabled" in contrail(*may, *at).out
    secret = tmp_path / "secret"
    secret.write_text("a new one\n")
    done("acl", "user", "shop", "--enable", "--password-file", str(secret), *at)
    assert codes(Credentials("shop", "a new one")) == [0, 0]
    unasked = contrail("acl", "user", "shop", "--delete", *at)
    assert unasked.code == 2 and "--yes" in unasked.err
    done("acl", "user", "shop", "--delete", "--yes", *at)
    assert "no such user" in contrail(*may, *at).out
    one_line(contrail("acl", "show", "shop", *at), 5, "no broker has a user")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("grant", "root", "Topic", "Pub"), "Topic"),
        (("grant", "root", "Topic:a", "Fly"), "Fly"),
        (("grant", "root", "Topic:a", "Pub", "--from", "here"), "here"),
        (("explain", "root", "Fly", "Topic:a"), "Fly"),
        (("explain", "root", "Pub", "*"), "resource"),
        (("user", "root", "--password-file", "/nowhere"), "/nowhere"),
    ],
)
def test_unusable_words_are_told_before_anything_changes(
    at: tuple[str, ...], words: tuple[str, ...], told: str
) -> None:
    one_line(contrail("acl", *words, *at), 2, told)


@pytest.mark.proves("access.administration.carried")
def test_accounts_of_acl_1_are_imported_and_users_of_ours_exported(
    cluster: LocalCluster, at: tuple[str, ...], tmp_path: Path
) -> None:
    old = tmp_path / "plain_acl.yml"
    old.write_text(
        "globalWhiteRemoteAddresses:\n- 10.0.0.*\naccounts:\n- accessKey: old\n"
        "  secretKey: the-old-secret\n  defaultTopicPerm: DENY\n  topicPerms:\n  - orders=PUB\n"
    )
    printed = done("acl", "import", str(old), *at).out
    assert "10.0.0.* is left out" in printed
    with Signer(cluster.brokers[1], Credentials("old", "the-old-secret")) as client:
        send = RequestCode.SEND_MESSAGE_V2
        assert client.ask(send, send_fields("orders"), b"x").code == 0
        assert client.ask(send, send_fields("bills"), b"x").code == ResponseCode.NO_PERMISSION
    # A broker tells no passwords; its folder has them.
    told, kept = tmp_path / "told.json", tmp_path / "kept.json"
    first = cluster.brokers[0]
    printed = done("acl", "export", str(told), "--broker", first.name, *at).out
    assert "without passwords" in printed and "the-old-secret" not in told.read_text()
    done("acl", "export", str(kept), "--folder", str(first.folder / "store"))
    assert "the-old-secret" in kept.read_text() and kept.stat().st_mode & 0o077 == 0
    again = contrail("acl", "export", str(kept), "--folder", str(first.folder / "store"))
    one_line(again, 2, "cannot be made")
    done("acl", "user", "old", "--delete", "--yes", *at)
    one_line(contrail("acl", "import", str(told), *at), 1, "no password")
    done("acl", "import", str(kept), *at)
    with Signer(first, Credentials("old", "the-old-secret")) as client:
        assert client.ask(send, send_fields("orders"), b"x").code == 0
    old.write_text("accounts:\n- accessKey: a\n  secretKey: b\n  topicPerms:\n  - t=ANY\n")
    one_line(contrail("acl", "import", str(old), *at), 2, "line 4")


@pytest.mark.proves("access.guards.audit")
def test_the_audit_trail_has_changes_and_refusals_and_no_secrets(
    cluster: LocalCluster, at: tuple[str, ...], tmp_path: Path
) -> None:
    broker = cluster.brokers[0]
    password = done("acl", "user", "watched", *at).out.split(" is ")[1].split(":")[0]
    done("acl", "grant", "watched", "Topic:orders", "Pub", *at)
    with Signer(broker, Credentials("watched", "a wrong password")) as client:
        client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x")
    folder = str(broker.folder / "store")
    changes = valid_json("audit", "audit", folder, "--changes", "--last", "2")
    assert [one["user"] for one in changes] == [ADMIN.access_key] * 2
    assert "created user 'watched'" in changes[0]["what"] and "Topic:orders" in changes[1]["what"]
    refused = valid_json("audit", "audit", folder, "--refused")
    assert refused and all(one["address"].startswith("127.0.0.1:") for one in refused)
    assert password not in str(valid_json("audit", "audit", folder, "--last", "1000"))
    assert "watched" in done("audit", folder).out
    assert not valid_json("audit", "audit", folder, "--user", "nobody")
    one_line(contrail("audit", folder, "--refused", "--changes"), 2, "--changes")
    one_line(contrail("audit", str(tmp_path)), 5, "no contrailAudit.jsonl")
