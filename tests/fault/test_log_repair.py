"""Damaged records of a member's log are written anew, by bytes that belong exactly there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.group_log import append_some, begin_epoch, commit_all, open_member

pytestmark = pytest.mark.proves("replication.failover.peer-repair")


def test_only_the_record_that_belongs_there_is_written(tmp_path: Path) -> None:
    with open_member(tmp_path) as member:
        begin_epoch(member, 0)
        append_some(member, 0, 30)
        commit_all(member)
        member.dispatch()
        (topic, queue_id) = next(
            one for one in member.queues() if one[0] != b"rmq_sys_contrail_epoch"
        )
        first, second = member.get(topic, queue_id, 0, count_max=2).messages[:2]
        place, size = first.physical_offset, first.record_bytes
        whole, other = (member.record_bytes(one.physical_offset) for one in (first, second))
        path = tmp_path / "commitlog" / f"{0:020}"
        # Nothing is damaged yet: nothing is written.
        assert not member.repair(place, whole)
        with path.open("r+b") as file:
            file.seek(place + 90)
            file.write(bytes([whole[90] ^ 1]))
        member.damage.look_at(place)
        (known,) = member.damage.known()
        assert known.physical_start == place
        for wrong in (
            b"",
            whole[:-1],
            whole + b"x",
            other,
            bytes([*whole[:90], whole[90] ^ 2, *whole[91:]]),
        ):
            assert not member.repair(place, wrong)
        assert not member.repair(place + 1, whole)
        assert member.damage.known() == [known]
        assert known.physical_end == place + size
        assert member.repair(place, whole)
        assert member.damage.known() == [] and member.record_bytes(place) == whole
