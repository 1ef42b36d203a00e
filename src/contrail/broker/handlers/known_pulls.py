"""What is known of pulls that are like ones before, until a table changes."""

from __future__ import annotations

from contrail.broker.config import BrokerConfig
from contrail.broker.state.consumer_offsets import offsets_key
from contrail.broker.state.pull_plan import FLAG_COMMIT, PullPlan
from contrail.broker.state.stats import GetTally
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.command import FRAME_BYTES_MAX
from contrail.store.services.queue_runs import QueueRuns

# What fits a frame beside its header.
RECORD_BYTES_MAX = FRAME_BYTES_MAX - 1024


class KnownPull:
    """What is the same for all pulls of one key."""

    __slots__ = (
        "bytes_max",
        "commits",
        "count_max",
        "flags",
        "given_noted",
        "hold_ms",
        "is_filtered",
        "names",
        "offsets_key",
        "plan",
        "queue",
        "runs",
        "tally",
        "told_block",
        "told_epoch",
        "told_row_block",
    )

    def __init__(
        self,
        plan: PullPlan,
        runs: QueueRuns,
        config: BrokerConfig,
        tally: GetTally,
        hold_ms: int | None,
    ) -> None:
        """``hold_ms`` is how long it may be held while there is nothing to hand out, if at all."""
        self.plan = plan
        self.queue = (plan.topic, plan.queue_id)
        self.runs = runs
        self.count_max = BULK_COUNT_MAX if plan.is_bulk else config.transfer_count_in_memory_max
        self.bytes_max = config.transfer_bytes_in_memory_max
        self.names = (plan.topic_name, plan.group)
        self.tally = tally
        self.offsets_key = offsets_key(plan.group, plan.topic_name)
        self.commits = bool(plan.sys_flag & FLAG_COMMIT)
        self.flags = (plan.topic_sys_flag, plan.group_sys_flag)
        self.given_noted = False
        self.hold_ms = hold_ms
        self.is_filtered = plan.tag_codes is not None or plan.property_filter is not None
        # Of which place the disk was told last, and in which epoch of all that it was told.
        self.told_block = self.told_row_block = self.told_epoch = -1


class PullPattern:
    """Pulls of one consumer: alike but for their numbers, of which one is the queue's."""

    __slots__ = ("asked", "code", "knowns", "template", "times")

    def __init__(self, template: bytes, code: int, asked: int, times: list[float] | None) -> None:
        self.template = template
        self.code = code
        # How many messages each wants.
        self.asked = asked
        # Where the time they took is counted, if at all.
        self.times = times
        # By queue id; None for a queue whose pulls take another way.
        self.knowns: dict[int, KnownPull | None] = {}
