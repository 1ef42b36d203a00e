"""Plans: run once, by their own account, before they are too old."""

from __future__ import annotations

from contrail.console.state.plans import PLAN_LIFE_MS, PLANS_MAX, Plans

NOW_MS = 1_800_000_000_000


def test_a_plan_is_taken_once_by_its_account_alone() -> None:
    plans: Plans[str] = Plans()
    kept = plans.add("p1", "ada", "seek", ["a -> b"], NOW_MS)
    assert kept.expires_ms == NOW_MS + PLAN_LIFE_MS
    assert plans.take("p1", "bob", NOW_MS) is None, "it is another account's"
    assert plans.take("p1", "ada", NOW_MS) == kept
    assert plans.take("p1", "ada", NOW_MS) is None, "it was run"


def test_a_plan_that_is_too_old_is_not_run() -> None:
    plans: Plans[str] = Plans()
    plans.add("p1", "ada", "seek", [], NOW_MS)
    assert plans.take("p1", "ada", NOW_MS + PLAN_LIFE_MS) is None
    assert len(plans) == 0


def test_the_oldest_plan_makes_room() -> None:
    plans: Plans[int] = Plans()
    for number in range(PLANS_MAX + 1):
        plans.add(str(number), "ada", number, [], NOW_MS)
    assert len(plans) == PLANS_MAX
    assert plans.take("0", "ada", NOW_MS) is None
