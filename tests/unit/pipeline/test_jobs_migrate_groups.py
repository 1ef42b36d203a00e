"""A migration's groups: created on every broker before they are set, and set only once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contrail.errors import BrokerRefused, ClientError, JobFailed
from contrail.model.group import SubscriptionGroupConfig
from contrail.pipeline.jobs import migrate_groups
from contrail.pipeline.jobs.checkpoints import Checkpoint
from contrail.pipeline.jobs.migrate_groups import GroupMover
from contrail.pipeline.jobs.migrate_verify import FirstPlaces, Stretch
from contrail.protocol.json_style import MessageQueue

GROUPS = ["billing", "mail", "stock"]
# Broker-b knows none of the groups at first.
QUEUES = ["broker-a:0", "broker-a:1", "broker-b:0"]
ENDS = dict.fromkeys(QUEUES, 100)
PLACES = {
    (group, queue): 10 * number + at
    for number, group in enumerate(GROUPS)
    for at, queue in enumerate(QUEUES)
}
CONSUMED = 5


class Killed(BaseException):
    """Stands for the end of the process."""


class Steps:
    """Counts changes of the cluster and the checkpoint, and ends the run before one of them."""

    def __init__(self) -> None:
        self.end_at: int | None = None
        self.count = 0

    def take(self, work: Callable[[], Any]) -> Any:
        number, self.count = self.count, self.count + 1
        if self.end_at == number:
            raise Killed
        return work()


class Cluster:
    """The groups and offsets of a target cluster, as an admin client shows them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.configs: dict[str, dict[str, SubscriptionGroupConfig]] = {
            "broker-a": {"billing": SubscriptionGroupConfig("billing", retry_count_max=7)},
            "broker-b": {},
        }
        self.offsets: dict[tuple[str, str], int] = {}
        self.busy: set[str] = set()
        self.refusing: set[str] = set()

    def group_connections(self, group: str) -> Any:
        return SimpleNamespace(is_online=group in self.busy, subscriptions={"wide": None})

    def group_configs(self) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        return {broker: dict(known) for broker, known in self.configs.items()}

    def create_group(self, group: str, *, broker: str, **settings: Any) -> None:
        made = SubscriptionGroupConfig(group, **settings)
        self.steps.take(lambda: self.configs[broker].update({group: made}))

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        return self.offsets.get((group, f"{queue.broker_name}:{queue.queue_id}"))

    def commit_offset(self, group: str, queue: MessageQueue, place: int) -> None:
        if group not in self.configs[queue.broker_name] or queue.broker_name in self.refusing:
            raise BrokerRefused(f"{queue.broker_name} says no", code=26, remark="no")
        name = f"{queue.broker_name}:{queue.queue_id}"
        self.steps.take(lambda: self.offsets.update({(group, name): place}))


class Source:
    """The source cluster; one of the groups has settings here."""

    def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        return {MessageQueue(topic, "broker-s", 0): 3}

    def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        if group == "mail":
            return {"broker-s": SubscriptionGroupConfig("mail", retry_count_max=2)}
        raise ClientError("no broker has it")


class NotingCheckpoint(Checkpoint):
    def __init__(self, folder: Path, steps: Steps) -> None:
        super().__init__(folder)
        self._steps = steps

    def note(self, **facts: object) -> None:
        self._steps.take(lambda: Checkpoint.note(self, **facts))


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_places(spark: Any, copied: Stretch, migration: str, consumed: Any) -> FirstPlaces:
        found = {key: place for key, place in PLACES.items() if key[0] in consumed}
        return FirstPlaces(found, {})

    monkeypatch.setattr(migrate_groups, "first_places", first_places)


def claimed(folder: Path, steps: Steps) -> NotingCheckpoint:
    checkpoint = NotingCheckpoint(folder, steps)
    checkpoint.claim("migrate", {})
    if "groups_set" not in checkpoint.notes:
        Checkpoint.note(checkpoint, groups_set=[], migration="m")
    return checkpoint


def moved(target: Cluster, folder: Path) -> list[str]:
    mover = GroupMover(Source(), target, "orders", "m", claimed(folder, target.steps))  # type: ignore[arg-type]
    copied = Stretch("", "wide", dict.fromkeys(QUEUES, 0), ENDS, {})
    return [f"{one.group}: {one}" for one in mover.move(None, GROUPS, copied)]  # type: ignore[arg-type]


def step_count(folder: Path) -> int:
    steps = Steps()
    moved(Cluster(steps), folder)
    return steps.count


@pytest.mark.proves("spark.migration.unknown-groups")
def test_every_broker_of_the_target_knows_a_group_before_any_offset_is_set(tmp_path: Path) -> None:
    target = Cluster(Steps())
    moved(target, tmp_path)
    assert target.offsets == PLACES
    for known in target.configs.values():
        retries = {group: known[group].retry_count_max for group in GROUPS}
        # Settings of another broker of the target, else of the source, else the defaults.
        assert retries == {
            "billing": 7,
            "mail": 2,
            "stock": SubscriptionGroupConfig("x").retry_count_max,
        }


@pytest.mark.proves("spark.migration.unknown-groups")
def test_a_run_killed_at_any_step_is_finished_by_the_next_and_sets_no_offset_back(
    tmp_path: Path,
) -> None:
    """Groups that were set consume messages before the next run."""
    count = step_count(tmp_path / "whole")
    assert count == 5 + 1 + len(PLACES) + len(GROUPS)
    for step in range(count):
        target = Cluster(Steps())
        target.steps.end_at = step
        folder = tmp_path / str(step)
        with pytest.raises(Killed):
            moved(target, folder)
        target.steps.end_at = None
        target.offsets = {key: place + CONSUMED for key, place in target.offsets.items()}
        gone_on = dict(target.offsets)
        moved(target, folder)
        assert target.offsets == {**PLACES, **gone_on}, step
        assert all(set(GROUPS) <= set(known) for known in target.configs.values())
        # A third run finds all done.
        target.offsets = {key: place + CONSUMED for key, place in target.offsets.items()}
        at_last = dict(target.offsets)
        moved(target, folder)
        assert target.offsets == at_last


def test_a_broker_that_refuses_is_named_and_set_offsets_stay(tmp_path: Path) -> None:
    target = Cluster(Steps())
    target.refusing = {"broker-b"}
    with pytest.raises(JobFailed, match=r"'billing' is set on 2 of 3 queues of 'wide'.*says no"):
        moved(target, tmp_path)
    target.refusing = set()
    target.offsets["billing", "broker-a:0"] += CONSUMED
    moved(target, tmp_path)
    gone_on = PLACES["billing", "broker-a:0"] + CONSUMED
    assert target.offsets == {**PLACES, ("billing", "broker-a:0"): gone_on}


def test_a_half_set_group_that_consumes_again_is_left_and_reported(tmp_path: Path) -> None:
    target = Cluster(Steps())
    # After the groups are made, their places noted, and one offset set.
    target.steps.end_at = 7
    with pytest.raises(Killed):
        moved(target, tmp_path)
    target.steps.end_at = None
    target.busy = {"billing"}
    before = dict(target.offsets)
    told = moved(target, tmp_path)
    assert "billing: set in part by a run before" in told[0]
    assert {key: place for key, place in target.offsets.items() if key[0] == "billing"} == before
    target.busy = set()
    moved(target, tmp_path)
    assert target.offsets == PLACES


def test_a_checkpoint_of_an_older_version_has_its_groups_set(tmp_path: Path) -> None:
    """Its notes name whole groups only."""
    target = Cluster(Steps())
    Checkpoint.note(claimed(tmp_path, target.steps), groups_set=["billing", "stock"])
    moved(target, tmp_path)
    assert {group for group, _ in target.offsets} == {"mail"}
