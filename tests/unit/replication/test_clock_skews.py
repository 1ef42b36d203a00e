import pytest

from contrail.replication.state.clock_skews import SKEW_MS_MAX, ClockSkews


@pytest.mark.proves("replication.failover.skew")
def test_a_clock_is_warned_of_once_while_it_differs_by_more_than_a_second() -> None:
    skews = ClockSkews()
    assert skews.new_ones({"n1": SKEW_MS_MAX, "n2": -SKEW_MS_MAX}) == []
    assert skews.new_ones({"n1": SKEW_MS_MAX + 1, "n2": -SKEW_MS_MAX - 1}) == ["n1", "n2"]
    assert skews.new_ones({"n1": 9_000, "n2": 0}) == []
    assert skews.new_ones({"n1": 9_000, "n2": -9_000}) == ["n2"]
    assert skews.new_ones({}) == []
    assert skews.new_ones({"n1": 9_000}) == ["n1"]
