"""Log-ins that fail wait longer and longer, and are forgotten in the end."""

from __future__ import annotations

from contrail.console.state.throttle import (
    ENTRIES_MAX,
    FORGOTTEN_AFTER_MS,
    FREE_FAILURES,
    WAIT_MS_MAX,
    Throttle,
)


def fail(throttle: Throttle, count: int, now_ms: int = 0) -> None:
    for _ in range(count):
        throttle.failed("a", "10.0.0.1", now_ms)


def test_the_wait_doubles_up_to_its_bound() -> None:
    throttle = Throttle()
    fail(throttle, FREE_FAILURES)
    waits = [throttle.wait_ms("a", "10.0.0.1", 0)]
    for _ in range(12):
        fail(throttle, 1)
        waits.append(throttle.wait_ms("a", "10.0.0.1", 0))
    assert waits[:5] == [0, 1_000, 2_000, 4_000, 8_000]
    assert waits[-1] == WAIT_MS_MAX == max(waits)
    assert throttle.wait_ms("a", "10.0.0.1", WAIT_MS_MAX) == 0


def test_an_hour_without_failures_is_a_new_beginning() -> None:
    throttle = Throttle()
    fail(throttle, FREE_FAILURES + 5)
    fail(throttle, 1, FORGOTTEN_AFTER_MS)
    assert throttle.wait_ms("a", "10.0.0.1", FORGOTTEN_AFTER_MS) == 0


def test_a_success_forgets_account_and_address() -> None:
    throttle = Throttle()
    fail(throttle, FREE_FAILURES + 5)
    throttle.succeeded("a", "10.0.0.1")
    assert throttle.wait_ms("a", "10.0.0.1", 0) == 0


def test_a_flood_of_names_takes_bounded_room() -> None:
    throttle = Throttle()
    for number in range(ENTRIES_MAX):
        throttle.failed(f"a{number}", f"10.{number}", 0)
    assert len(throttle._failures) == ENTRIES_MAX
