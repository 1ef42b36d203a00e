"""A slave's line in ``contrail replication status`` and its words in ``contrail broker status``."""

from __future__ import annotations

import pytest

from contrail.cli.replication_status import figures_of, lines_of, summary_of
from contrail.protocol.bodies.ha_status import ACTS_AS_MASTER, HaStatus, MasterLink

AWAY = MasterLink(master_address="10.0.0.1:10912", state="READY", problem="no way")


@pytest.mark.proves("replication.pair.people")
@pytest.mark.parametrize(
    ("acting", "state"), [("", "READY"), (ACTS_AS_MASTER, "READY, acts as master")]
)
def test_a_slave_shows_whether_it_does_its_masters_work(acting: str, state: str) -> None:
    found = HaStatus(is_master=False, physical_end=700, master=AWAY, role="SLAVE", acting=acting)
    figures = figures_of(found)
    row = {"broker": "broker-a", "broker_id": 1, "error": None, **figures}
    assert [line["state"] for line in lines_of(row)] == [f"{state}: no way"]
    assert summary_of(figures) == f"SLAVE, {state}"
    assert figures["acting"] == acting
