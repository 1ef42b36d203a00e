"""Writes damaged records of the log anew, from a copy that another member of the group has.

Only whole records that belong exactly there are written, into bytes that were found damaged, and
the log is never cut. A crash in between leaves the damage, or the record.
"""

from __future__ import annotations

from contrail.kernels.record_layout import REASON_END
from contrail.kernels.record_scan import scan_records
from contrail.runtime.crashpoints import crashpoint
from contrail.runtime.files import FileSystem, opened, write_fully
from contrail.store.disk.segments import SegmentList
from contrail.store.services.damage import DamageWatch


class LogRepair:
    """Belongs to the store's owner thread; a repair waits for the disk."""

    def __init__(self, files: FileSystem, segments: SegmentList, damage: DamageWatch) -> None:
        self._files = files
        self._segments = segments
        self._damage = damage

    def run(self, physical_start: int, data: bytes) -> bool:
        """Write the records of a damaged range anew; False if they are not those of the range."""
        known = self._damage.records.at(physical_start)
        segment = self._segments.at(physical_start)
        physical_end = physical_start + len(data)
        if known is None or segment is None or not data:
            return False
        if physical_end != known.physical_end or physical_end > segment.end:
            return False
        end, reason, count, _, _ = scan_records(data, 0, len(data), physical_start, True, 1)
        if (end, reason) != (len(data), REASON_END) or not count:
            return False
        with opened(self._files, segment.path) as fd:
            write_fully(self._files, fd, data, physical_start - segment.start)
            crashpoint("log_repair.written")
            self._files.fdatasync(fd)
        self._damage.records.forget(physical_start)
        return True
