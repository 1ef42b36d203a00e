"""Forms of pulls: what is kept of them, how long, and how answers are laid out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast import pull_forms
from contrail.broker.fast.pull_forms import FilteredReader, PullForm, laid_out
from contrail.broker.state.pull_plan import FLAG_COMMIT, PullPlan
from contrail.errors import RequestRejected
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.codes import ResponseCode
from contrail.store import FAR, GetResult, GetStatus, Reach
from tests.unit.broker.fast.pull_room import PLAN, PullRoom, pull


def form_of(plan: PullPlan) -> PullForm:
    nothing: Any = None
    config: Any = SimpleNamespace(transfer_count_in_memory_max=4, transfer_bytes_in_memory_max=900)
    return PullForm(plan, nothing, config, nothing, None, b"key")


@pytest.fixture
def room() -> PullRoom:
    return PullRoom()


def test_limits_are_those_of_the_settings_but_a_bulk_pull_has_its_own_count() -> None:
    common, bulk = form_of(PLAN), form_of(PLAN._replace(is_bulk=True))
    assert (common.count_max, common.bytes_max) == (4, 900)
    assert (bulk.count_max, bulk.bytes_max) == (BULK_COUNT_MAX, 900)


def test_queue_and_offsets_are_those_of_the_plan() -> None:
    form = form_of(PLAN._replace(queue_id=3))
    assert form.queue == (b"orders", 3) and form.queue_id == 3
    assert form.offsets_key == "orders@billing"
    assert not form.is_filtered and not form.commits


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"sys_flag": FLAG_COMMIT}, "commits"),
        ({"tag_codes": frozenset({3})}, "is_filtered"),
        ({"property_filter": SimpleNamespace(text="a = 1")}, "is_filtered"),
    ],
)
def test_a_form_tells_what_its_plan_wants_beside_messages(
    changes: dict[str, Any], name: str
) -> None:
    assert getattr(form_of(PLAN._replace(**changes)), name)


def test_an_answer_is_laid_out_with_the_flags_and_the_suggested_broker_of_the_plan() -> None:
    pieces = laid_out(PLAN._replace(suggested_broker_id=3), GetStatus.FOUND)
    assert len(pieces) == 5
    assert b'"suggestWhichBrokerId":"3"' in pieces[0]
    assert b'"topicSysFlag":"5","groupSysFlag":"6"' in pieces[3]
    assert b'"remark":"NO_MATCHED_MESSAGE"' in laid_out(PLAN, GetStatus.NO_MATCHED_MESSAGE)[4]


# The forms that are kept.


def test_a_form_ends_when_a_table_changes(room: PullRoom) -> None:
    room.learn(pull(1))
    dropped: list[bool] = []
    room.forms.on_dropped.append(lambda: dropped.append(True))
    assert room.forms.find(pull(2)) is not None
    room.table_changes()
    assert room.forms.find(pull(2)) is None and dropped


def test_a_pending_reset_and_a_log_beyond_memory_are_for_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))
    room.offsets.pending_resets["billing"] = {}
    assert room.forms.find(pull(2)) is None
    room.offsets.pending_resets.clear()
    assert room.forms.find(pull(2)) is not None
    room.forms.log_fits_memory = False
    assert room.forms.find(pull(2)) is None


def test_a_negative_offset_to_commit_is_for_the_general_way(room: PullRoom) -> None:
    room.learn(pull(1))
    negative = pull(2)._replace(consumer_offset=-1)
    assert room.forms.find(negative) is None
    room.table_changes()
    room.plan = PLAN
    room.learn(pull(1))
    assert room.forms.find(negative) is not None, "it is not committed at all"


def test_a_form_that_is_learned_again_stays_the_one_that_templates_have(room: PullRoom) -> None:
    room.learn(pull(1))
    form = room.forms.find(pull(1))
    room.learn(pull(2))
    assert list(room.forms.by_key.values()) == [form]


def test_how_long_a_pull_may_be_held_is_part_of_its_form(room: PullRoom) -> None:
    room.learn(pull(1))
    room.plan = room.plan._replace(sys_flag=FLAG_COMMIT)
    room.learn(pull(1, subVersion="1"))
    assert [form.hold_ms for form in room.forms.by_key.values()] == [15_000, None]


def test_a_header_that_is_longer_than_those_of_clients_is_not_kept(room: PullRoom) -> None:
    room.learn(pull(1, subscription="x" * 3000))
    assert not room.forms.by_key


def test_more_forms_than_may_be_are_all_dropped(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_forms, "_FORMS_MAX", 2)
    for number in range(3):
        room.learn(pull(1, subVersion=str(number)))
    assert len(room.forms.by_key) == 1


# Refusals.


def test_no_more_refusals_are_kept_than_may_be(
    room: PullRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_forms, "_REFUSED_MAX", 2)
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    for number in range(3):
        room.learn(pull(1, subVersion=str(number)))
    assert len(room.forms._refused) == 1
    room.learn(pull(1, subVersion="x" * 3000))
    assert len(room.forms._refused) == 1, "nor one with longer fields than a client's"


def test_a_refused_pull_that_asks_for_too_many_is_told_so_the_general_way(room: PullRoom) -> None:
    room.refusal = RequestRejected(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
    room.learn(pull(1))
    assert room.forms.refusal(pull(2)) is room.forms.refusal(pull(3))
    assert room.forms.refusal(pull(2)._replace(count_max=1 << 31)) is None


# Reads with a filter.


def filtered(room: PullRoom, result: GetResult, reach: Reach, queue_offset: int = 5) -> Any:
    reader = FilteredReader(PLAN, room.store, lambda plan: result)
    return reader.read(queue_offset, 4, 900, reach, 0)


def test_a_filtered_read_is_the_general_one_as_a_run(room: PullRoom) -> None:
    views = [memoryview(b"007")]
    found = GetResult(GetStatus.FOUND, 8, 1, 10, views, message_count=1, byte_count=3)
    assert filtered(room, found, Reach.NEAR) == (views, 3, 1, 8, 1, 10, 0)
    nothing = GetResult(GetStatus.NO_MATCHED_MESSAGE, 9, 1, 10)
    assert filtered(room, nothing, Reach.WARM) == ([], 0, 0, 9, 1, 10, 700)
    assert filtered(room, GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 10, 1, 10), Reach.NEAR) is None


def test_a_filtered_read_beyond_its_reach_reads_nothing(room: PullRoom) -> None:
    room.runs.near = 8
    found = GetResult(GetStatus.FOUND, 8, 1, 10)
    assert filtered(room, found, Reach.NEAR) is FAR
    room.store.warm_end = lambda *place: 0
    assert filtered(room, found, Reach.WARM) is FAR
