"""``contrail replication``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail import Message, Producer
from contrail.store.log import MessageStore
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.cli.diagnosed import diagnosed, until_diagnosed
from tests.cli.running import contrail, done, one_line, valid_json
from tests.e2e.metrics_scene import samples, scrape
from tests.fault.group_log import append_some, begin_epoch, open_member
from tests.fault.store_setup import append_numbers, small_config

SHOWN = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


@pytest.mark.proves("replication.pair.secret")
def test_a_secret_is_made_once_and_only_its_fingerprint_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = valid_json("replication-secret", "replication", "secret", str(path))
    kept = path.read_text(encoding="ascii").strip()
    assert kept not in str(made)
    one_line(contrail("replication", "secret", str(path)), 2, "exists")
    assert path.read_text(encoding="ascii").strip() == kept
    shown = done("replication", "secret", "--show", str(path)).out
    assert made["fingerprint"] in shown
    assert kept not in shown


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    done("replication", "secret", str(path))
    path.chmod(0o644)
    one_line(contrail("replication", "secret", "--show", str(path)), 2, "chmod 600")


@pytest.mark.proves("replication.failover.detach")
def test_a_members_folder_is_detached_once(tmp_path: Path) -> None:
    with open_member(tmp_path / "store") as member:
        begin_epoch(member, 0)
        append_some(member, 0, 9)
        end = member.physical_end
    told = valid_json("replication-detach", "replication", "detach", str(tmp_path))
    assert told["physical_end"] == end and told["folder"] == str(tmp_path / "store")
    assert 0 < told["in_doubt_bytes"] < end
    one_line(contrail("replication", "detach", str(tmp_path)), 2, "no failover group's member")


@pytest.mark.proves("replication.failover.commands")
def test_a_single_brokers_folder_is_made_a_members_and_given_another_identity(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    with MessageStore.open(small_config(root)) as store:
        append_numbers(store, 0, 9)
        end = store.physical_end
    one_line(contrail("replication", "replace", str(tmp_path)), 2, "nothing to replace")
    one_line(contrail("replication", "init", str(root), "--self-id", "x"), 2, "one like n0")
    told = valid_json("replication-init", "replication", "init", str(tmp_path))
    assert (told["physical_end"], told["self_id"]) == (end, "n0")
    one_line(contrail("replication", "init", str(tmp_path)), 2, "already")
    replaced = valid_json("replication-replace", "replication", "replace", str(tmp_path))
    assert replaced["former_uuid"] == told["replica_uuid"] != replaced["replica_uuid"]
    (root / "contrail.replica").unlink()
    one_line(contrail("replication", "replace", str(tmp_path)), 2, "add --empty")
    command = ("replication", "replace", str(tmp_path), "--empty")
    emptied = valid_json("replication-replace", *command)
    assert emptied["is_emptied"] and not list(root.glob("commitlog/*"))


@pytest.mark.proves("replication.pair.people")
def test_the_status_shows_roles_lag_and_acknowledged_positions(tmp_path: Path) -> None:
    """With the secret, the commands of docs/operate/replicate.md."""
    with LocalCluster(slaves=1, folder=tmp_path / "pair", properties=SHOWN) as cluster:
        at = ("-n", cluster.namesrv)

        def told() -> dict[int, dict[str, Any]]:
            rows = valid_json("replication-status", "replication", "status", *at)
            return {row["broker_id"]: row for row in rows}

        with Producer("writers", cluster.namesrv) as producer:
            producer.send(Message("orders", b"x" * 1000))
        rows = eventually(lambda: (found := told()) and is_level(found) and found, told)
        master, slave = rows[0], rows[1]
        assert master["role"] == "ASYNC_MASTER"
        assert slave["role"] == "SLAVE"
        assert slave["master"]["address"].startswith("127.0.0.1:")
        assert master["slaves"][0]["broker_id"] == 1
        assert master["log_end"] == master["slaves"][0]["acknowledged_end"] > 1000
        assert slave["acknowledged_end"] == slave["log_end"] == master["log_end"]
        text = done("replication", "status", *at).out
        assert "slave 1" in text
        assert "ASYNC_MASTER" in text
        shown = valid_json("broker-status", "broker", "status", "all", *at)
        figures = {row["broker_id"]: row["replication"] for row in shown}
        assert figures[0]["role"] == "ASYNC_MASTER" and figures[0]["slaves"][0]["lag_bytes"] == 0
        assert figures[1]["role"] == "SLAVE" and figures[1]["master"]["lag_bytes"] == 0
        table = done("broker", "status", *at).out
        assert "ASYNC_MASTER, 1 slave, 1 in sync" in table and "SLAVE, TRANSFER" in table
        assert "slave 1" in done("broker", "status", "broker-a", *at).out
        assert "TRANSFER" in done("broker", "status", "broker-a:1", *at).out
        at_master, at_slave = (exported(one) for one in (cluster.brokers[0], cluster.slaves[0]))
        end = at_master["contrail_replication_log_end_bytes"]
        assert at_master["contrail_replication_slave_acknowledged_end_bytes"] == end > 1000
        assert at_master["contrail_replication_slaves"] == 1
        assert at_slave["contrail_replication_acknowledged_end_bytes"] == end
        assert at_slave["contrail_replication_connected"] == 1


def is_level(rows: dict[int, dict[str, Any]]) -> bool:
    """Whether all that was sent is acknowledged by the slave."""
    slaves = rows[0]["slaves"]
    ends = [rows[0]["log_end"], rows[1]["acknowledged_end"]]
    return [one["acknowledged_end"] for one in slaves] == ends[:1] and len({*ends}) == 1


def exported(broker: LocalBroker) -> dict[str, float]:
    """The metrics of replication; of each name there is one sample in a pair."""
    assert broker.app is not None and broker.app.metrics is not None
    found = samples(scrape(broker.app.metrics.port))
    return {one.name: one.value for one in found if one.name.startswith("contrail_replication")}


def test_a_broker_that_replicates_nothing_says_so(cluster: LocalCluster) -> None:
    row = valid_json("replication-status", "replication", "status", "-n", cluster.namesrv)[0]
    assert row["role"] is None
    assert "no replication" in row["error"]
    assert "no replication" in done("replication", "status", "-n", cluster.namesrv).out
    shown = valid_json("broker-status", "broker", "status", "all", "-n", cluster.namesrv)
    assert shown[0]["replication"] is None


@pytest.mark.proves("replication.pair.people", "replication.pair.secret")
def test_another_secret_is_told_by_both_sides_and_by_doctor(tmp_path: Path) -> None:
    other = tmp_path / "other"
    fingerprint = valid_json("replication-secret", "replication", "secret", str(other))
    with LocalCluster(slaves=1, folder=tmp_path / "pair") as cluster:
        slave = cluster.slaves[0]
        slave.stop()
        slave.own_properties["contrailClusterSecretFile"] = str(other)
        slave.start()
        found = until_diagnosed(cluster, "secrets-differ")
        assert fingerprint["fingerprint"] in found["evidence"][0]
        assert "slave-absent" not in diagnosed(cluster), "one fault is told once"
        rows = valid_json("replication-status", "replication", "status", "-n", cluster.namesrv)
        master = next(row for row in rows if row["broker_id"] == 0)
        assert master["refusals"]["secret"] >= 1
        assert fingerprint["fingerprint"] in master["last_refusal"]["text"]
        text = done("replication", "status", "-n", cluster.namesrv).out
        assert "└ refused" in text and "READY: " in text


@pytest.mark.proves("replication.pair.people")
def test_doctor_finds_a_synchronous_master_without_its_slave(tmp_path: Path) -> None:
    properties = {"brokerRole": "SYNC_MASTER"}
    with LocalCluster(slaves=1, folder=tmp_path / "pair", properties=properties) as cluster:
        eventually(lambda: "too-few-in-sync" not in diagnosed(cluster), "the slave is there")
        cluster.slaves[0].stop()
        found = until_diagnosed(cluster, "too-few-in-sync")
        assert found["about"] == "broker broker-a:0"


@pytest.mark.proves("replication.failover.commands")
def test_the_leadership_of_a_failover_group_is_handed_over_by_a_command(tmp_path: Path) -> None:
    with LocalCluster(members=3, folder=tmp_path) as cluster:
        leader, at = cluster.wait_for_leader(), ("-n", cluster.namesrv)
        rows = valid_json("replication-status", "replication", "status", *at)
        assert sorted(row["role"] for row in rows) == ["FOLLOWER", "FOLLOWER", "LEADER"]
        one_line(
            contrail("replication", "transfer", leader.name, "--to", leader.self_id, *at),
            1,
            "leads broker-a already",
        )
        one_line(
            contrail("replication", "transfer", leader.name, "--to", "n9", *at),
            1,
            "cannot take over",
        )
        target = next(one for one in cluster.brokers if one is not leader)
        args = ("replication", "transfer", leader.name, "--to", target.self_id, *at)
        facts = valid_json("replication-transfer", *args)
        assert (facts["from"], facts["to"]) == (leader.self_id, target.self_id)
        assert facts["address"] == target.address
        assert cluster.wait_for_leader(besides=leader) is target
        shown = done("replication", "transfer", leader.name, *at).out
        assert target.self_id in shown
