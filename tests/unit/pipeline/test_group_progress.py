"""Where a query has ended, by its progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contrail.errors import OptionInvalid
from contrail.pipeline.group_progress import _ends_of, commit_as_group
from contrail.pipeline.offsets import QueueKey


class FakeQuery:
    def __init__(self, *ends: object, is_active: bool = False) -> None:
        self.isActive = is_active
        sources = [{"endOffset": end} for end in ends]
        self.lastProgress: dict[str, Any] | None = {"sources": sources} if ends else None


def ends_of(*ends: object) -> dict[QueueKey, int]:
    return _ends_of(FakeQuery(*ends))  # type: ignore[arg-type]


def test_all_sources_of_topics_count_and_others_do_not() -> None:
    ours = json.dumps({"orders": {"broker-a:0": 12}})
    more = json.dumps({"bills": {"broker:b:1": 3}})
    kafka = json.dumps({"orders": {"0": 12}})
    found = ends_of(ours, kafka, "17", "null", "no json", '["a"]', '{"a": 3}', more)
    assert found == {QueueKey("orders", "broker-a", 0): 12, QueueKey("bills", "broker:b", 1): 3}


@pytest.mark.parametrize("ends", [(), ("null",), ('{"orders": {"0": 12}}',)])
def test_a_query_without_a_finished_batch_of_ours_is_refused(ends: tuple[str, ...]) -> None:
    with pytest.raises(OptionInvalid, match="has finished no batch"):
        ends_of(*ends)


def test_a_running_query_is_refused() -> None:
    query: Any = FakeQuery(is_active=True)
    with pytest.raises(OptionInvalid, match="the query is running"):
        commit_as_group(query, namesrv="127.0.0.1:1", group="billing")
