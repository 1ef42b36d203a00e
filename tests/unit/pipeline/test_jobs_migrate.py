"""The rules of a migration: refused settings, the cut-over, offsets of groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import NotThere, OptionInvalid
from contrail.pipeline.jobs.migrate_plan import (
    CutOver,
    MigrateSettings,
    QueueCheck,
    QueueRange,
    away_text,
    brokers_text,
    check_same_queues,
    check_width,
    chosen_groups,
    committed_offsets,
    differences_text,
    group_place,
    offsets_option,
    queue_of,
)


def settings(**changed: Any) -> MigrateSettings:
    given: dict[str, Any] = {
        "namesrv": "here:9876",
        "topic": "orders",
        "to_topic": "orders-wide",
        "checkpoint": "/x",
    }
    return MigrateSettings(**{**given, **changed})


def target(*widths: int) -> list[QueueRange]:
    return [
        QueueRange(f"broker-{number}", queue_id, 0, 0)
        for number, width in enumerate(widths)
        for queue_id in range(width)
    ]


# Refused settings.


@pytest.mark.parametrize("to_namesrv", [None, "here:9876"])
def test_a_topic_is_not_migrated_to_itself(to_namesrv: str | None) -> None:
    with pytest.raises(OptionInvalid, match="to itself"):
        settings(to_topic="orders", to_namesrv=to_namesrv).check()
    settings(to_topic="orders", to_namesrv="there:9876").check()


def test_a_cut_over_needs_following() -> None:
    with pytest.raises(OptionInvalid, match="add follow"):
        settings(cut_over_after_s=5).check()
    settings(cut_over_after_s=5, follow=True).check()


def test_only_options_of_both_clusters_and_the_idempotence_are_accepted() -> None:
    wish = settings(options={"TLS.enable": "true", "idempotence": "none"})
    wish.check()
    assert wish.cluster_options == {"TLS.enable": "true"}
    assert wish.idempotence == "none"
    assert settings().idempotence is None
    with pytest.raises(OptionInvalid, match=r"option 'sinkId' is none of a migration.*tls\.enable"):
        settings(options={"sinkId": "x"}).check()
    with pytest.raises(OptionInvalid, match="takes dedupe or none"):
        settings(options={"idempotence": "transactional"}).check()


def test_a_password_is_not_shown_and_may_change() -> None:
    wish = settings(options={"tls.client.keyPassword": "secret"})
    assert "secret" not in repr(wish)
    assert wish.fixed() == settings().fixed()


@pytest.mark.parametrize("key", ["", " "])
def test_a_key_without_a_name_is_refused(key: str) -> None:
    with pytest.raises(OptionInvalid, match="sharding-key, keys or the name of a property"):
        settings(key=key).check()


def test_a_target_with_other_queues_than_at_first_is_refused() -> None:
    noted = {"broker-0:0": 5, "broker-0:1": 7}
    check_same_queues(settings(), target(2), noted)
    check_same_queues(settings(), [], None)
    for now in (target(1), target(3), []):
        with pytest.raises(OptionInvalid, match="other queues than when this migration began"):
            check_same_queues(settings(), now, noted)


def test_a_target_of_another_width_is_refused_with_its_widths() -> None:
    with pytest.raises(OptionInvalid, match="8 on broker-0, 4 on broker-1"):
        check_width(settings(queues=8), target(8, 4))
    check_width(settings(queues=8), target(8, 8))
    check_width(settings(), target(8, 4))
    check_width(settings(queues=8), [])


def test_all_groups_are_moved_unless_some_are_named() -> None:
    assert chosen_groups(settings(), ["b", "a"]) == ("a", "b")
    assert chosen_groups(settings(groups=("b",)), ["b", "a"]) == ("b",)
    assert chosen_groups(settings(groups=()), ["b", "a"]) == ()


def test_a_group_that_never_consumed_the_topic_is_refused() -> None:
    with pytest.raises(NotThere, match=r"group c has no offsets on topic 'orders'.*: a, b"):
        chosen_groups(settings(groups=("a", "c")), ["b", "a"])


# Places.


def test_a_queue_is_found_by_its_name_though_a_broker_has_colons() -> None:
    assert queue_of("orders", "rack:7:broker:3") == ("orders", "rack:7:broker", 3)


def test_the_source_gets_offsets_in_its_own_form() -> None:
    text = offsets_option("orders", {"b:1": 5, "a:0": 7})
    assert json.loads(text) == {"orders": {"a:0": 7, "b:1": 5}}


def write_batch(folder: Path, batch_id: int, places: dict[str, int], *, finished: bool) -> None:
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    (folder / "commits").mkdir(parents=True, exist_ok=True)
    lines = ["v1", '{"batchWatermarkMs":0}', json.dumps({"orders": places})]
    (folder / "offsets" / str(batch_id)).write_text("\n".join(lines))
    (folder / "offsets" / f".{batch_id}.crc").write_text("crc")
    if finished:
        (folder / "commits" / str(batch_id)).write_text("v1\n{}")


def test_only_finished_batches_count_as_copied(tmp_path: Path) -> None:
    assert committed_offsets(tmp_path, "orders") is None
    for number in range(12):
        write_batch(tmp_path, number, {"a:0": 10 * number}, finished=number < 11)
    assert committed_offsets(tmp_path, "orders") == {"a:0": 100}


def test_an_unfinished_first_batch_counts_as_nothing(tmp_path: Path) -> None:
    write_batch(tmp_path, 0, {"a:0": 10}, finished=False)
    assert committed_offsets(tmp_path, "orders") is None


# Brokers.


def test_a_broker_that_is_away_is_named_with_its_queues() -> None:
    noted = ["rack:a:0", "b:1", "b:0"]
    assert away_text(noted, ["rack:a:0"], ["rack:a"]) == (
        "broker b, which has queues 0, 1 of this migration, is away: start it, then run again"
    )
    both = away_text(noted, [], [])
    assert both is not None
    assert "broker rack:a, which has queues 0" in both
    assert both.endswith("are away: start them, then run again")


def test_no_broker_is_away_when_all_queues_are_there_or_theirs_are_registered() -> None:
    assert away_text(["a:0"], ["a:0", "a:1"], ["a"]) is None
    assert away_text(["a:0", "a:1"], ["a:0"], ["a"]) is None


def test_brokers_are_listed_with_the_number_of_their_queues() -> None:
    assert brokers_text(["b:0", "a:1", "a:0"]) == ["a: 2 queues", "b: 1 queues"]


# Cutting over.


def test_following_ends_when_there_was_no_lag_for_long_enough() -> None:
    rule = CutOver(5)
    assert not rule.is_due(0, 100.0, asked=False)
    assert not rule.is_due(0, 104.9, asked=False)
    assert rule.is_due(0, 105.0, asked=False)


@pytest.mark.parametrize("lag", [3, None], ids=["something arrived", "nobody knows"])
def test_the_wait_begins_anew_when_there_is_lag(lag: int | None) -> None:
    rule = CutOver(5)
    rule.is_due(0, 100.0, asked=False)
    assert not rule.is_due(lag, 104.0, asked=False)
    assert not rule.is_due(0, 106.0, asked=False)
    assert rule.is_due(0, 111.0, asked=False)


def test_following_ends_on_request_and_never_by_itself_without_a_time() -> None:
    rule = CutOver(None)
    assert not rule.is_due(0, 1.0, asked=False)
    assert not rule.is_due(0, 1e9, asked=False)
    assert rule.is_due(77, 1e9, asked=True)


# Checks.


def check(**changed: Any) -> QueueCheck:
    same: dict[str, Any] = {
        "name": "a:0",
        "queue_offset_start": 0,
        "queue_offset_end": 10,
        "messages": 10,
        "copies": 10,
        "repeats": 0,
        "checksum": 99,
        "copied_checksum": 99,
    }
    return QueueCheck(**{**same, **changed})


def test_equal_sides_are_no_difference() -> None:
    assert differences_text([check(), check(name="a:1")], allow_repeats=False) is None


@pytest.mark.parametrize("changed", [{"copies": 9}, {"copied_checksum": 98}, {"repeats": 1}])
def test_a_difference_names_the_queue(changed: dict[str, int]) -> None:
    text = differences_text([check(), check(name="a:1", **changed)], allow_repeats=False)
    assert text is not None
    assert "queue a:1" in text
    assert "queue a:0" not in text


def test_repeats_are_allowed_where_brokers_cannot_drop_them() -> None:
    assert differences_text([check(repeats=3)], allow_repeats=True) is None
    assert differences_text([check(copies=9, repeats=3)], allow_repeats=True) is not None


def test_many_differences_are_counted() -> None:
    text = differences_text([check(name=f"a:{n}", copies=0) for n in range(14)], allow_repeats=True)
    assert text is not None
    assert text.endswith("and 4 queues more")


# Groups.


def test_a_group_that_consumed_all_messages_begins_at_the_end() -> None:
    assert group_place(unconsumed=None, foreign=None, queue_offset_max=70, known=None) == 70


def test_a_message_that_is_no_copy_is_not_skipped() -> None:
    assert group_place(unconsumed=50, foreign=40, queue_offset_max=70, known=None) == 40


places = st.none() | st.integers(0, 1_000)


@given(places, places, st.integers(0, 1_000), places)
def test_a_group_never_begins_after_an_unconsumed_message(
    unconsumed: int | None, foreign: int | None, queue_offset_max: int, known: int | None
) -> None:
    place = group_place(
        unconsumed=unconsumed, foreign=foreign, queue_offset_max=queue_offset_max, known=known
    )
    # A group has consumed all messages that are no copies before its own offset.
    consumed = 0 if known is None else known
    assert unconsumed is None or place <= unconsumed
    assert foreign is None or place <= max(foreign, consumed)
    assert known is None or place <= known
    assert place in [queue_offset_max, unconsumed, foreign, known]


def test_a_group_with_its_own_offset_does_not_go_back_to_consumed_messages() -> None:
    assert group_place(unconsumed=None, foreign=0, queue_offset_max=70, known=40) == 40
