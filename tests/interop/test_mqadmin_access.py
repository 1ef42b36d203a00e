"""Apache's ``mqadmin`` signs, and manages the users and rights of our brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.protocol.signing import Credentials
from contrail.testing import LocalCluster
from tests.e2e.access_setup import ACCESS, ADMIN
from tests.interop.mqadmin import MqAdmin

HEADING = ["#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2, properties=ACCESS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def mqadmin(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    folder = tmp_path_factory.mktemp("mqadmin")
    with MqAdmin(cluster.namesrv, folder, credentials=ADMIN) as admin:
        yield admin


@pytest.mark.proves("access.administration.codes", "access.rules.signatures")
def test_the_twelve_commands_of_users_and_rights(cluster: LocalCluster, mqadmin: MqAdmin) -> None:
    first, second = (broker.address for broker in cluster.brokers)
    printed = mqadmin.run("createUser", "-b", first, "-u", "shop", "-p", "shop-password")
    assert f"create user to {first} success." in printed
    again = mqadmin.run("createUser", "-b", first, "-u", "shop", "-p", "another")
    assert "CODE: 16" in again and "exists already" in again
    (row,) = mqadmin.rows("getUser", "-b", first, "-u", "shop")
    assert row[0] == "shop" and row[-2:] == ["Normal", "enable"]
    for words in (("-s", "disable"), ("-s", "enable"), ("-p", "changed-password")):
        printed = mqadmin.run("updateUser", "-b", first, "-u", "shop", *words)
        assert f"update user to {first} success." in printed
    listed = mqadmin.rows("listUser", "-b", first)
    assert {row[0] for row in listed} == {"root", "inner", "shop"}
    assert "shop-password" not in mqadmin.run("listUser", "-b", first)
    # The broker tells nobody a password, so users cannot be copied with theirs.
    assert "shop-password" not in mqadmin.run("copyUser", "-f", first, "-t", second, "-u", "shop")
    assert not any(row[0] == "shop" for row in mqadmin.rows("listUser", "-b", second))

    rights = ("-r", "Topic:orders,Group:shop*", "-a", "Pub,Sub", "-d", "Allow")
    printed = mqadmin.run(
        "createAcl", "-b", first, "-s", "User:shop", *rights, "-i", "127.0.0.1,10.0.0.0/8"
    )
    assert f"create acl to {first} success." in printed
    shown = mqadmin.rows("getAcl", "-b", first, "-s", "User:shop")
    assert [row[2] for row in shown] == ["Topic:orders", "Group:shop*"]
    assert {row[0] for row in shown} == {"User:shop"} and {row[-1] for row in shown} == {"Allow"}
    wrong = mqadmin.run("createAcl", "-b", first, "-s", "User:shop", *rights, "-i", "here")
    assert "CODE: 16" in wrong
    denied = ("-r", "Topic:orders", "-a", "Sub", "-d", "Deny")
    assert "success" in mqadmin.run("updateAcl", "-b", first, "-s", "User:shop", *denied)
    assert [row[-1] for row in mqadmin.rows("listAcl", "-b", first)] == ["Deny", "Allow"]
    assert [row[2] for row in mqadmin.rows("listAcl", "-b", first, "-r", "Group")] == [
        "Group:shop*"
    ]

    missing = mqadmin.run("copyAcl", "-f", first, "-t", second, "-s", "User:shop")
    assert "CODE: 16" in missing
    mqadmin.run("createUser", "-b", second, "-u", "shop", "-p", "shop-password")
    copied = mqadmin.run("copyAcl", "-f", first, "-t", second, "-s", "User:shop")
    assert f"copy acl of User:shop from {first} to {second} success." in copied
    assert len(mqadmin.rows("getAcl", "-b", second, "-s", "User:shop")) == 2

    assert "success" in mqadmin.run(
        "deleteAcl", "-b", first, "-s", "User:shop", "-r", "Topic:orders"
    )
    assert [row[2] for row in mqadmin.rows("getAcl", "-b", first, "-s", "User:shop")] == [
        "Group:shop*"
    ]
    assert "success" in mqadmin.run("deleteUser", "-b", first, "-u", "shop")
    assert {row[0] for row in mqadmin.rows("listUser", "-b", first)} == {"root", "inner"}


@pytest.mark.proves("access.rules.signatures")
def test_other_commands_are_signed_too_and_refused_for_others(
    cluster: LocalCluster, mqadmin: MqAdmin, tmp_path: Path
) -> None:
    broker = cluster.brokers[0].address
    create = ("updateTopic", "-b", broker, "-t", "Signed", "-r", "1", "-w", "1")
    assert "success" in mqadmin.run(*create)
    with MqAdmin(cluster.namesrv, tmp_path, credentials=Credentials("root", "wrong")) as stranger:
        refused = stranger.run(*create)
        assert "CODE: 16" in refused and "signature" in refused
