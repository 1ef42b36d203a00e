"""The small files of a group's member, written one after the other on a thread of their own.

| file               | holds                                                      |
| ------------------ | ---------------------------------------------------------- |
| `contrail.replica` | group, identity, term and vote                             |
| `contrail.epochs`  | the floor of the log                                       |
| `contrail.peers`   | the highest terms and acknowledged ends of other members   |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contrail.errors import StateFileDamaged
from contrail.protocol.log_floor import LogFloor
from contrail.replication.services.floor_file import FloorFile
from contrail.replication.services.replica_file import ReplicaFile
from contrail.replication.state.peer_memory import PeerMemory
from contrail.runtime.files import FileSystem
from contrail.runtime.state_file import read_state, write_state

PEERS_FILE = "contrail.peers"
_log = logging.getLogger(__name__)


class MemberFiles:
    """The files of one store folder."""

    def __init__(self, files: FileSystem, root: Path) -> None:
        self.replica = ReplicaFile(files, root)
        self.floor = FloorFile(files, root)
        self._files = files
        self._peers_path = root / PEERS_FILE
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-vote")

    def read_peers(self) -> PeerMemory:
        """The memory of the other members' terms and acknowledged ends."""
        try:
            read = read_state(self._files, self._peers_path, sealed=True, parse=PeerMemory.decode)
        except StateFileDamaged as error:
            _log.warning("%s", error)
            return PeerMemory()
        if read.problem is not None:
            _log.warning("%s", read.problem)
        return read.value or PeerMemory()

    def keep_peers(self, data: bytes) -> None:
        """Write the memory of the other members, in its turn; what is lost of it is forgotten."""
        self.write(lambda: write_state(self._files, self._peers_path, data, sealed=True), _told)

    def save_floor(self, floor: LogFloor, then: Callable[[BaseException | None], None]) -> None:
        """Write the floor on the thread; ``then`` gets the error, or None."""
        self.write(lambda: self.floor.write(floor), then)

    def write(
        self, action: Callable[[], None], then: Callable[[BaseException | None], None]
    ) -> None:
        """Carry out a write on the thread, behind those before; then go on, on the loop."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, action)

        def written(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                then(done.exception())

        future.add_done_callback(written)

    async def stop(self, peers: bytes | None) -> None:
        """End behind the writes under way, and one more of ``contrail.peers`` if it is given."""
        if peers is not None:
            self.keep_peers(peers)
        await asyncio.to_thread(self._thread.shutdown, wait=True)


def _told(error: BaseException | None) -> None:
    if error is not None:
        _log.warning("the memory of the other members could not be written: %s", error)
