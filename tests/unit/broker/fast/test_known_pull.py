"""What is kept of pulls that are alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast.known_pull import KnownPull, PullPattern
from contrail.broker.state.pull_plan import FLAG_COMMIT, PullPlan
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from tests.unit.broker.fast.pull_room import pull

PLAN = PullPlan("billing", "orders", b"orders", 3, 0, 32, 0, None, None, 5, 6)


def known(plan: PullPlan) -> KnownPull:
    nothing: Any = None
    config: Any = SimpleNamespace(transfer_count_in_memory_max=4, transfer_bytes_in_memory_max=900)
    return KnownPull(plan, nothing, config, nothing, None, b"key")


def test_limits_are_those_of_the_settings_but_a_bulk_pull_has_its_own_count() -> None:
    usual, bulk = known(PLAN), known(PLAN._replace(is_bulk=True))
    assert (usual.count_max, usual.bytes_max) == (4, 900)
    assert (bulk.count_max, bulk.bytes_max) == (BULK_COUNT_MAX, 900)


def test_places_and_names_are_those_of_the_plan() -> None:
    found = known(PLAN)
    assert found.queue == (b"orders", 3) and found.names == ("orders", "billing")
    assert found.offsets_key == "orders@billing" and found.flags == (5, 6)
    assert not found.is_filtered and not found.commits


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sys_flag": FLAG_COMMIT}, "commits"),
        ({"tag_codes": frozenset({3})}, "is_filtered"),
        ({"property_filter": SimpleNamespace(text="a = 1")}, "is_filtered"),
    ],
)
def test_what_a_plan_wants_beside_messages_is_known(changes: dict[str, Any], name: str) -> None:
    assert getattr(known(PLAN._replace(**changes)), name)


def test_a_pattern_makes_the_pull_that_the_kernel_would_have() -> None:
    pattern = PullPattern(b"template", pull(1, 5), None)
    item = pull(2, 9)
    opaque, _, _, _, key, queue_offset, _, consumer_offset, header = item
    assert pattern.item(opaque, key, queue_offset, consumer_offset, header) == item
    assert (pattern.code, pattern.asked) == (11, 32)
