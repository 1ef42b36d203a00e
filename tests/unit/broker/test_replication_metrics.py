"""Metrics of replication: a master's and a slave's figures, and no other role's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contrail.broker.state.replication_metrics import REPLICATION_METRICS, replication_samples
from contrail.protocol.bodies.ha_status import (
    ACTS_AS_MASTER,
    UNKNOWN_MS,
    HaStatus,
    MasterLink,
    SlaveLink,
)

SLAVE = SlaveLink(
    address="10.0.0.2:40000",
    acknowledged_end=900,
    lag_bytes=100,
    in_sync=True,
    broker_id=1,
    lag_ms=12,
    state="receiving",
)
MASTER = HaStatus(
    is_master=True,
    physical_end=1000,
    in_sync_slaves=1,
    slaves=(SLAVE,),
    role="SYNC_MASTER",
    acknowledged_end=900,
    required_replicas=2,
    refusals={"secret": 3},
)
FOLLOWER = HaStatus(
    is_master=False,
    physical_end=900,
    master=MasterLink(is_active=True, state="TRANSFER"),
    role="SLAVE",
    acknowledged_end=890,
)


def shown(status: HaStatus, broker_id: int = 0) -> dict[tuple[str, ...], float]:
    """The values by the metric's name, without what all have in common, and its labels."""
    prefix = "contrail_replication_"
    return {
        (metric.name.removeprefix(prefix), *values): value
        for metric, samples in replication_samples(status, broker_id)
        for values, value in samples
    }


@pytest.mark.proves("replication.pair.people")
def test_a_master_shows_its_slaves_and_how_far_they_are() -> None:
    assert shown(MASTER) == {
        ("role", "SYNC_MASTER", "0"): 1,
        ("log_end_bytes",): 1000,
        ("acknowledged_end_bytes",): 900,
        ("slaves",): 1,
        ("in_sync_replicas",): 2,
        ("required_replicas",): 2,
        ("slave_acknowledged_end_bytes", "1"): 900,
        ("slave_lag_bytes", "1"): 100,
        ("slave_lag_milliseconds", "1"): 12,
        ("refusals_total", "secret"): 3,
    }


@pytest.mark.proves("replication.pair.people")
def test_a_slave_shows_its_link_and_whether_it_has_diverged() -> None:
    assert shown(FOLLOWER, 1) == {
        ("role", "SLAVE", "1"): 1,
        ("log_end_bytes",): 900,
        ("acknowledged_end_bytes",): 890,
        ("connected",): 1,
        ("diverged",): 0,
        ("acting",): 0,
    }
    assert shown(replace(FOLLOWER, acting="takes over"))[("acting",)] == 0
    assert shown(replace(FOLLOWER, acting=ACTS_AS_MASTER))[("acting",)] == 1
    diverged = replace(FOLLOWER, master=MasterLink(state="DIVERGED"))
    assert shown(diverged)[("diverged",)] == 1
    assert shown(diverged)[("connected",)] == 0


def test_a_slave_of_apache_goes_by_its_address_and_one_that_greets_does_not_count() -> None:
    plain = replace(SLAVE, broker_id=None, lag_ms=UNKNOWN_MS)
    found = shown(replace(MASTER, slaves=(plain, replace(SLAVE, state="greeting"))))
    assert found[("slaves",)] == 1
    assert found[("slave_lag_bytes", "10.0.0.2:40000")] == 100
    assert [name for name in found if name[0] == "slave_lag_milliseconds"] == []


@pytest.mark.proves("replication.failover.findings")
def test_a_member_of_a_group_shows_its_term_and_the_clocks_of_the_others() -> None:
    found = shown(replace(FOLLOWER, role="FOLLOWER", term=7, clock_skews_ms={"n2": -30}), 2)
    assert found == {
        ("role", "FOLLOWER", "2"): 1,
        ("log_end_bytes",): 900,
        ("acknowledged_end_bytes",): 890,
        ("connected",): 1,
        ("term",): 7,
        ("clock_skew_milliseconds", "n2"): -30,
    }


def test_every_metric_is_shown_by_one_of_all() -> None:
    member = replace(MASTER, role="LEADER", term=3)
    names = {
        metric.name
        for status in (MASTER, FOLLOWER, member)
        for metric, _ in replication_samples(status, 0)
    }
    assert names == {metric.name for metric in REPLICATION_METRICS}
