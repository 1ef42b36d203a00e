"""The status of replication: Apache's fields, and ours beside them."""

from __future__ import annotations

import json

from contrail.protocol.bodies.ha_status import (
    HaStatus,
    LastRefusal,
    MasterLink,
    SlaveLink,
    decode_ha_status,
)

SLAVE = SlaveLink(
    address="10.0.0.2:40000",
    acknowledged_end=900,
    lag_bytes=100,
    in_sync=True,
    bytes_per_second=5,
    sent_end=1000,
    broker_id=1,
    lag_ms=12,
    state="transfer",
)


def test_a_masters_status_reads_back() -> None:
    status = HaStatus(
        is_master=True,
        physical_end=1000,
        in_sync_slaves=1,
        slaves=(SLAVE,),
        role="SYNC_MASTER",
        acknowledged_end=900,
        required_replicas=2,
        total_replicas=3,
        refusals={"secret": 3, "silent": 1},
        last_refusal=LastRefusal("secret", "another secret", 7),
    )
    assert decode_ha_status(status.encode()) == status


def test_a_slaves_status_reads_back() -> None:
    link = MasterLink(
        master_address="10.0.0.1:10912",
        physical_end=700,
        is_active=True,
        state="transfer",
        problem="no way",
        problem_reason="unreachable",
        rebuild_command="mv store store.diverged",
    )
    status = HaStatus(
        is_master=False, physical_end=700, master=link, role="SLAVE", acting="takes over"
    )
    assert decode_ha_status(status.encode()) == status


def test_apaches_names_are_used_where_it_has_some() -> None:
    body = json.loads(HaStatus(is_master=True, physical_end=1000, slaves=(SLAVE,)).encode())
    assert body["master"] is True
    assert body["masterCommitLogMaxOffset"] == 1000
    assert body["haConnectionInfo"][0] | {"contrailBrokerId": 1} == {
        "addr": "10.0.0.2:40000",
        "diff": 100,
        "inSync": True,
        "slaveAckOffset": 900,
        "transferFromWhere": 1000,
        "transferredByteInSecond": 5,
        "contrailBrokerId": 1,
        "contrailLagMs": 12,
        "contrailState": "transfer",
    }
    assert body["haClientRuntimeInfo"]["activated"] is False


def test_an_answer_of_apache_reads_without_what_is_ours() -> None:
    body = (
        b'{"haClientRuntimeInfo":{"activated":false,"lastReadTimestamp":0,"lastWriteTimestamp":0,'
        b'"masterFlushOffset":0,"maxOffset":0,"transferredByteInSecond":0},"haConnectionInfo":'
        b'[{"addr":"10.0.0.2:1","diff":0,"inSync":true,"slaveAckOffset":50,'
        b'"transferFromWhere":50,"transferredByteInSecond":3}],"inSyncSlaveNums":1,"master":true,'
        b'"masterCommitLogMaxOffset":50}'
    )
    status = decode_ha_status(body)
    assert status.physical_end == 50
    assert status.slaves[0].acknowledged_end == 50
    assert status.slaves[0].broker_id is None
