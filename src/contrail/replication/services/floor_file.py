"""``contrail.epochs``: the facts about a log's beginning that the log itself does not tell.

It is a cache: markers in the log win over it, and snapshots of the tables carry epoch and voters
too. It is written before a segment goes, and before the first byte of a log that begins late.
"""

from __future__ import annotations

import logging
from pathlib import Path

from contrail.errors import StateFileDamaged
from contrail.protocol.log_floor import LogFloor
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state

FLOOR_FILE = "contrail.epochs"
_log = logging.getLogger(__name__)


class FloorFile:
    """Reads and writes the file of one store folder."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self._files = files
        self._path = root / FLOOR_FILE

    def read(self) -> LogFloor | None:
        """The floor; None if there is none, or none that can be read."""
        try:
            read = read_state(self._files, self._path, sealed=True, parse=LogFloor.decode)
        except StateFileDamaged as error:
            _log.warning("%s", error)
            return None
        if read.problem is not None:
            # An older floor says nothing wrong: what is committed stays as it is.
            _log.warning("%s", read.problem)
        return read.value

    def write(self, floor: LogFloor) -> None:
        """Make the floor durable."""
        write_state(self._files, self._path, floor.encode(), sealed=True)
