"""Decisions of a pull consumer: offsets to write, messages held ahead, queues to read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from contrail.client.pull_settings import PullSettings, split_pull_settings
from contrail.client.state.allocation import Averagely
from contrail.client.state.prefetched import Prefetched, PrefetchLimits
from contrail.client.state.progress import Progress
from contrail.client.state.selection import Selection
from contrail.errors import ClientError, ConfigError
from contrail.model.subscription import SubscriptionData
from contrail.protocol.bodies.heartbeat import MessageModel
from contrail.protocol.json_style import MessageQueue

A, B = MessageQueue("t", "broker-a", 0), MessageQueue("u", "broker-b", 1)


@dataclass
class Held:
    queue_offset: int
    record_bytes: int = 100


def held(*queue_offsets: int) -> list[Held]:
    return [Held(queue_offset) for queue_offset in queue_offsets]


def places(messages: list[Held]) -> list[int]:
    return [message.queue_offset for message in messages]


# Progress.


def test_only_changed_offsets_are_written() -> None:
    progress = Progress()
    progress.stored(A, 5)
    assert progress.changed(None) == {}
    progress.update(A, 7, increase_only=False)
    progress.update(B, 1, increase_only=False)
    assert progress.changed(None) == {A: 7, B: 1}
    assert progress.changed([B]) == {B: 1}
    progress.update(A, 8, increase_only=False)
    progress.written(A, 7)
    assert progress.changed([A]) == {A: 8}
    progress.written(A, 8)
    assert progress.changed([A]) == {}


def test_offsets_go_back_only_by_a_reset() -> None:
    progress = Progress()
    progress.update(A, 7, increase_only=True)
    progress.update(A, 5, increase_only=True)
    assert progress.known(A) == 7
    progress.update(A, 5, increase_only=False)
    assert progress.known(A) == 5


def test_a_reset_is_not_undone_by_late_updates_until_the_queue_is_removed() -> None:
    progress = Progress()
    progress.update(A, 7, increase_only=False)
    progress.freeze(A, 2)
    progress.update(A, 8, increase_only=False)
    progress.stored(A, 9)
    assert progress.snapshot(None) == {A: 2}
    progress.remove(A)
    progress.update(A, 3, increase_only=False)
    assert progress.snapshot("t") == {A: 3}
    assert progress.snapshot("u") == {}


# Held ahead.


def test_queues_take_turns_and_each_keeps_its_order() -> None:
    table: Prefetched[Held] = Prefetched(PrefetchLimits())
    table.add(A)
    table.add(B)
    table.arrived(A, held(0, 1, 2), 3)
    table.arrived(B, held(10, 11), 20)
    assert places(table.take(2)) == [0, 1]
    assert places(table.take(3)) == [10, 11, 2]
    assert table.take(1) == []


def test_the_offset_to_commit_is_the_first_that_was_not_handed_out() -> None:
    table: Prefetched[Held] = Prefetched(PrefetchLimits())
    table.add(B)
    assert table.consumer_offsets() == {}
    # The offsets up to 8 held no message for this consumer.
    table.add(A)
    table.arrived(A, held(4, 5), 9)
    assert table.consumer_offsets() == {A: 4}
    table.take(1)
    assert table.consumer_offsets() == {A: 5}
    table.take(1)
    assert table.consumer_offsets() == {A: 9}
    table.seek(A, 2)
    assert table.consumer_offsets() == {A: 2}
    table.remove(A)
    assert table.consumer_offsets() == {}


@pytest.mark.parametrize(
    ("limits", "messages"),
    [
        (PrefetchLimits(queue_count_max=2), held(0, 1, 2)),
        (PrefetchLimits(queue_bytes_max=250), held(0, 1, 2)),
        (PrefetchLimits(queue_span_max=100), held(0, 101)),
        (PrefetchLimits(total_count_max=1), held(0, 1)),
    ],
    ids=["count", "bytes", "span", "total"],
)
def test_a_full_queue_is_not_pulled_until_messages_are_taken(
    limits: PrefetchLimits, messages: list[Held]
) -> None:
    table: Prefetched[Held] = Prefetched(limits)
    queue = table.add(A)
    assert table.may_pull(A)
    table.arrived(A, messages, 200)
    assert not table.may_pull(A)
    table.take(1)
    assert table.may_pull(A)
    table.arrived(A, messages, 200)
    table.seek(A, 0)
    assert (table.may_pull(A), queue.cached_bytes) == (True, 0)


def test_messages_of_a_removed_queue_do_not_count_any_more() -> None:
    table: Prefetched[Held] = Prefetched(PrefetchLimits(total_count_max=1))
    table.add(A)
    table.add(B)
    table.arrived(A, held(0, 1), 2)
    assert not table.may_pull(B)
    table.remove(A)
    assert table.may_pull(B)


def test_a_paused_queue_is_neither_pulled_nor_handed_out() -> None:
    table: Prefetched[Held] = Prefetched(PrefetchLimits())
    table.add(A)
    table.arrived(A, held(0), 1)
    table.set_paused([A], is_paused=True)
    assert (table.may_pull(A), table.take(1)) == (False, [])
    table.set_paused([A], is_paused=False)
    assert (table.may_pull(A), places(table.take(1))) == (True, [0])


# Queues to read.


def test_assigning_and_subscribing_exclude_each_other() -> None:
    selection = Selection("g")
    with pytest.raises(ClientError, match="call assign"):
        selection.require_chosen()
    with pytest.raises(ClientError, match="no queue"):
        selection.assign([], [])
    selection.assign([A, A], [SubscriptionData("t", "x")])
    selection.require_chosen()
    assert (selection.queues, selection.shared) == ((A,), {})
    assert selection.subscription_of("t").sub_string == "x"
    assert selection.subscription_of("other").takes_all
    with pytest.raises(ClientError, match=r"'g'.*exclude each other"):
        selection.subscribe(SubscriptionData("t"))

    other = Selection("h")
    other.subscribe(SubscriptionData("t"))
    assert list(other.shared) == ["t"]
    with pytest.raises(ClientError, match="exclude each other"):
        other.assign([A], [])
    assert other.unsubscribe("t")
    assert not other.unsubscribe("t")


# Settings.


def test_settings_are_split_from_those_of_the_client() -> None:
    given = {"pull_batch_size": 7, "instance_name": "x", "pull_threshold_size_for_queue": 2}
    own, shared = split_pull_settings(given)
    assert (own.pull_batch_size, own.limits.queue_bytes_max) == (7, 2 << 20)
    assert shared == {"instance_name": "x"}


def test_strategy_and_model_are_taken_by_name_or_as_they_are() -> None:
    assert PullSettings(allocate_strategy="AVG_BY_CIRCLE").strategy.name == "AVG_BY_CIRCLE"
    own = Averagely()
    assert PullSettings(allocate_strategy=own).strategy is own
    assert PullSettings(message_model="BROADCASTING").model is MessageModel.BROADCASTING
    with pytest.raises(ConfigError, match="CLUSTERING or BROADCASTING"):
        _ = PullSettings(message_model="EVERYBODY").model


@pytest.mark.parametrize(
    "wrong", [{"pull_batch_size": 0}, {"consumer_timeout_ms_when_suspend": 19_999}]
)
def test_invalid_settings_are_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PullSettings(**wrong)  # type: ignore[arg-type]
