"""A slave's lag in time."""

from __future__ import annotations

from contrail.broker.state.replica_lag import ReplicaLag


def sampled(*samples: tuple[int, int]) -> ReplicaLag:
    lag = ReplicaLag()
    for elapsed_ms, physical_end in samples:
        lag.sample(elapsed_ms, physical_end)
    return lag


def test_a_slave_that_lacks_nothing_is_not_late() -> None:
    assert ReplicaLag().lag_ms(0, 1000) == 0
    assert sampled((0, 100), (100, 200)).lag_ms(200, 900) == 0


def test_the_lag_is_the_age_of_the_first_byte_that_is_missing() -> None:
    lag = sampled((0, 100), (100, 200), (200, 300))
    assert lag.lag_ms(100, 900) == 800
    assert lag.lag_ms(150, 900) == 800
    assert lag.lag_ms(250, 900) == 700


def test_a_log_that_rests_takes_one_sample() -> None:
    lag = sampled((0, 100), *((moment, 100) for moment in range(100, 1000, 100)), (1000, 200))
    assert lag.lag_ms(100, 1500) == 500
    assert lag.lag_ms(0, 1500) == 1500
