"""How far the log counts as replicated, and which slaves count."""

from __future__ import annotations

import pytest

from contrail.replication.state.in_sync import NO_LIMIT, InSync, InSyncRules

END = 1_000


def rules(**changes: int | bool) -> InSync:
    settings: dict[str, int | bool] = {"is_synchronous": True, "gap_bytes_max": 100}
    return InSync(InSyncRules(**{**settings, **changes}))  # type: ignore[arg-type]


def test_asynchronous_replication_holds_nothing_back() -> None:
    assert rules(is_synchronous=False, in_sync_replicas=3).replicated_end([], END) == NO_LIMIT


def test_one_replica_is_the_master_itself() -> None:
    assert rules(in_sync_replicas=1).replicated_end([], END) == NO_LIMIT


@pytest.mark.parametrize(
    ("replicas", "ends", "expected"),
    [(2, [700], 700), (2, [700, 900], 900), (3, [700, 900], 700), (3, [700, 900, 800], 800)],
)
def test_the_slowest_of_as_many_slaves_as_are_needed_counts(
    replicas: int, ends: list[int], expected: int
) -> None:
    assert rules(in_sync_replicas=replicas).replicated_end(ends, END) == expected


def test_the_position_stays_when_a_slave_goes() -> None:
    in_sync = rules(in_sync_replicas=2)
    assert in_sync.replicated_end([700], END) == 700
    assert in_sync.replicated_end([], END) == 700
    assert in_sync.replicated_end([600], END) == 700
    assert in_sync.replicated_end([800], END) == 800


def test_a_slave_far_behind_is_not_in_sync() -> None:
    in_sync = rules(in_sync_replicas=2)
    assert in_sync.in_sync_count([901, 900], END) == 2
    assert in_sync.is_enough([901], END) and not in_sync.is_enough([900], END)


def test_automatic_replicas_go_down_to_the_minimum_and_up_again() -> None:
    in_sync = rules(in_sync_replicas=3, min_in_sync_replicas=2, is_automatic=True)
    assert in_sync.needed_count([990, 990], END) == 3
    assert in_sync.needed_count([990], END) == 2
    assert in_sync.needed_count([], END) == 2 and not in_sync.is_enough([], END)


def test_positions_the_master_acknowledged_alone_stay_acknowledged() -> None:
    in_sync = rules(in_sync_replicas=2, is_automatic=True)
    assert in_sync.replicated_end([], END) == NO_LIMIT
    assert in_sync.replicated_end([950], END + 10) == END
    assert in_sync.replicated_end([END + 10], END + 10) == END + 10
