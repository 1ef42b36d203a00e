from __future__ import annotations

from contrail.replication.state.carried_floor import CARRIED, carried_floor, carried_log
from contrail.replication.state.epochs import EpochStart, EpochTable
from contrail.replication.state.member_log import MemberLog, epochs_of
from contrail.replication.state.state_records import Change, Table, encode_state_record
from contrail.replication.state.voters import Voters


def test_a_log_that_begins_late_knows_its_epoch_by_the_tables() -> None:
    starts = [EpochStart(2, 100), EpochStart(7, 300)]
    log = MemberLog(900, 900, 900, EpochTable(starts, removed_count=3), Voters(frozenset("a")))
    log.voters.record(400, frozenset("ab"))
    record = Change({Table.CARRIED: {(CARRIED,): carried_log(log)}})
    found = carried_floor(encode_state_record(record))
    assert found is not None
    assert (found.voters, found.voters_end) == (frozenset("ab"), 400)
    epochs = epochs_of(found)
    assert epochs.epoch_of_byte(500) == 7 and epochs.marker_count == 5


def test_other_records_carry_none() -> None:
    assert carried_floor(encode_state_record(Change())) is None
