"""Five positions in the log, and the rule of each: how far it is written, safe, seen and settled.

| position           | up to it the log is                                                      |
| ------------------ | ------------------------------------------------------------------------ |
| `physical_end`     | written: the next record begins there                                    |
| `flushed_end`      | on the disk                                                              |
| `visible_end`      | derived into queues and index, and read                                  |
| `acknowledged_end` | as safe as a producer was promised: its answers may go out               |
| `settled_end`      | safe to build on: cursors and ledgers on disk, and retention, go so far  |

Replication lowers the last three by two limits. ``commit_limit`` holds back what a later leader may
cut off again; ``replicated_end`` holds back answers until enough replicas have the bytes.
"""

from __future__ import annotations

NO_LIMIT = (1 << 63) - 1
"""A limit that holds nothing back."""


class Positions:
    """The positions that others own, and the rules that make three of them from two."""

    __slots__ = (
        "_syncs_before_ack",
        "commit_limit",
        "committed_end",
        "cut_count",
        "derive_limit",
        "flushed_end",
        "in_group",
        "physical_end",
        "replicated_end",
    )

    def __init__(
        self, physical_end: int, *, syncs_before_ack: bool, in_group: bool = False
    ) -> None:
        self._syncs_before_ack = syncs_before_ack
        self.in_group = in_group
        self.physical_end = physical_end
        # Written to the file; behind ``physical_end`` only with the transient pool.
        self.committed_end = physical_end
        self.flushed_end = physical_end
        self.commit_limit = NO_LIMIT
        self.replicated_end = NO_LIMIT
        # A record that changes how those behind it are derived, and is not carried out yet.
        self.derive_limit = NO_LIMIT
        # How often the log of a group's member was cut: a sync that began before the last cut says
        # nothing of the bytes written since.
        self.cut_count = 0

    @property
    def kept_end(self) -> int:
        """As durable as ``flushDiskType`` promises: flushed, or in the file under ASYNC_FLUSH."""
        return self.flushed_end if self._syncs_before_ack else self.committed_end

    @property
    def visible_end(self) -> int:
        """Flushed bytes under SYNC_FLUSH, those in the file under ASYNC_FLUSH."""
        end = self.flushed_end if self._syncs_before_ack else self.committed_end
        limit = self.commit_limit if self.commit_limit < self.derive_limit else self.derive_limit
        return end if end < limit else limit

    @property
    def acknowledged_end(self) -> int:
        """Flushed bytes under SYNC_FLUSH, written ones under ASYNC_FLUSH; on enough replicas.

        In a failover group committed ones: a majority has them on its disks, this member's or not.
        """
        if self.in_group:
            return self.commit_limit
        end = self.flushed_end if self._syncs_before_ack else self.physical_end
        return min(end, self.commit_limit, self.replicated_end)

    @property
    def settled_end(self) -> int:
        """Flushed bytes, whatever the flush policy."""
        return min(self.flushed_end, self.commit_limit)
