"""Mistakes in the settings of a pair: each is told with the setting and the way to mend it."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail.errors import ConfigError
from contrail.protocol.bodies.ha_status import HaStatus, decode_ha_status
from contrail.protocol.codes import RequestCode
from contrail.testing import LocalBroker, LocalCluster, eventually

pytestmark = pytest.mark.proves("replication.pair.people")


def status(broker: LocalBroker) -> HaStatus:
    answer = broker.cluster.caller.call(broker.address, RequestCode.GET_BROKER_HA_STATUS)
    return decode_ha_status(answer.body)


def problem_of(tmp_path: Path, **properties: str) -> tuple[str, str]:
    """The status of the link of a slave with these settings, in one word and in a sentence."""
    with LocalCluster(slaves=1, folder=tmp_path) as cluster:
        slave = cluster.slaves[0]
        slave.stop()
        master = {"master": cluster.brokers[0].address}
        slave.own_properties.update(
            {name: value.format(**master) for name, value in properties.items()}
        )
        slave.start()
        found = eventually(lambda: (link := status(slave).master).problem and link, "a problem")
        assert isinstance(found.problem, str)
        return found.problem_reason, found.problem


def test_another_size_of_segments_names_the_setting_and_both_sizes(tmp_path: Path) -> None:
    reason, text = problem_of(tmp_path, mappedFileSizeCommitLog=str(4 << 20))
    assert reason == "segment_bytes"
    assert all(word in text for word in ("mappedFileSizeCommitLog", str(4 << 20), str(16 << 20)))


def test_an_address_that_is_no_ha_port_is_told_with_the_right_one(tmp_path: Path) -> None:
    reason, text = problem_of(tmp_path, haMasterAddress="{master}", haHousekeepingInterval="5001")
    assert reason == "no_handshake"
    assert "haListenPort" in text and "listenPort + 1" in text


def test_a_slave_without_a_master_of_its_name_says_whom_it_looks_for(tmp_path: Path) -> None:
    reason, text = problem_of(tmp_path, brokerName="broker-x")
    assert reason == "no_master"
    assert "brokerName=broker-x" in text and "haMasterAddress" in text


def test_two_slaves_with_one_id_are_told_by_master_and_name_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(slaves=2, folder=tmp_path) as cluster:
        second = cluster.slaves[1]
        second.stop()
        second.own_properties["brokerId"] = "1"
        second.start()
        last = eventually(lambda: status(cluster.brokers[0]).last_refusal, "one is refused")
        assert last.reason == "replaced" and "brokerId of its own" in last.text
        assert "takes the place of" in caplog.text and "another brokerId" in caplog.text


def test_a_second_master_is_told_by_the_name_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(slaves=1, folder=tmp_path) as cluster:
        master, slave = cluster.brokers[0], cluster.slaves[0]
        assert "takes the place of" not in caplog.text
        slave.stop()
        slave.own_properties.update({"brokerId": "0", "brokerRole": "ASYNC_MASTER"})
        slave.start()
        assert f"takes the place of the one at '{master.address}'" in caplog.text


def test_a_taken_port_for_slaves_names_its_own_setting(tmp_path: Path) -> None:
    with LocalCluster(slaves=1, folder=tmp_path) as cluster:
        master = cluster.brokers[0]
        master.stop()
        master.own_properties["haListenPort"] = str(cluster.slaves[0].port)
        with pytest.raises(ConfigError, match="set haListenPort to a free one"):
            master.start()
        # It has left its own ports, and starts with another setting.
        del master.own_properties["haListenPort"]
        master.start()
