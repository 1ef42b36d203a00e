"""What is known of pulls that are like ones before, until a table changes."""

from __future__ import annotations

from contrail.broker.config import BrokerConfig
from contrail.broker.state.consumer_offsets import offsets_key
from contrail.broker.state.pull_plan import FLAG_COMMIT, PullPlan
from contrail.broker.state.stats import GetTally
from contrail.kernels.frame_scan import Item
from contrail.protocol.bulk_pulls import BULK_COUNT_MAX
from contrail.protocol.command import FRAME_BYTES_MAX
from contrail.store import QueueRuns

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
        "key",
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
        key: bytes,
    ) -> None:
        """``key`` is what the kernel makes of all fields but the numbers.

        ``hold_ms`` is how long it may be held while there is nothing to hand out, if at all.
        """
        self.key = key
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
        # The last read-ahead hint: log block, row block, hint epoch.
        self.told_block = self.told_row_block = self.told_epoch = -1


class PullPattern:
    """Pulls of one consumer: alike but for their numbers, of which one is the queue's."""

    __slots__ = ("_begin", "asked", "code", "knowns", "template", "times")

    def __init__(self, template: bytes, first: Item, times: list[float] | None) -> None:
        """``first`` is a pull with this template, as the kernel took it apart."""
        self.template = template
        self._begin = first[1:4]
        self.code = first[3]
        # How many messages each wants.
        self.asked = first[6]
        # Where the time they took is counted, if at all.
        self.times = times
        # By queue id; None for a queue whose pulls take another way.
        self.knowns: dict[int, KnownPull | None] = {}

    def item(
        self, opaque: int, key: bytes, queue_offset: int, consumer_offset: int, header: bytes
    ) -> Item:
        """Such a pull as the kernel would have taken it apart."""
        flag, version, code = self._begin
        asked = self.asked
        return opaque, flag, version, code, key, queue_offset, asked, consumer_offset, header
