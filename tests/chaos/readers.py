"""All consumers of a chaos campaign in one process; each notes its messages in a file of its own.

Usage: ``python -m tests.chaos.readers SETTINGS``, a JSON list of ``MemberSettings``. They consume
until standard input ends, and close then.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

from tests.history.client_crew import MemberNotes, Roster
from tests.history.client_member import CLOSED, MemberSettings, Notes, consume
from tests.history.client_story import Plan

_ROOT = Path(__file__).parents[2]
_CLOSE_S = 120.0


class Readers(Roster[MemberNotes]):
    """The consumers, started and closed together."""

    def __init__(self, folder: Path, namesrv: str, seed: int) -> None:
        super().__init__(folder, namesrv, seed)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = folder / "readers.log"

    def start_all(self, plan: Plan) -> None:
        given = []
        for number, (name, group) in enumerate(plan.posts.items(), 1):
            settings = self.settings_of(name, plan.kinds[group], group, plan.topics[group], number)
            notes = MemberNotes(settings, number, self.seen)
            self.add(name, notes)
            given.append(dataclasses.asdict(settings))
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.readers", json.dumps(given)],
                cwd=_ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def close_all(self) -> None:
        """Have all close; fails if one could not."""
        process = self._process
        assert process is not None and process.stdin is not None
        assert process.poll() is None, f"the consumers have ended: see {self._log_path}"
        process.stdin.close()
        code = process.wait(_CLOSE_S)
        self.read_on()
        left = [one.name for one in self.members if not one.is_closed]
        assert code == 0 and not left, f"{left} closed with {code}: see {self._log_path}"

    def end(self) -> None:
        """The test is over, whatever they do."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        if process is not None and process.stdin is not None:
            process.stdin.close()


async def _run(all_settings: list[MemberSettings]) -> None:
    closing = asyncio.Event()

    async def consume_one(settings: MemberSettings) -> None:
        notes = Notes(settings.notes_path)
        await consume(settings, notes, closing)
        notes.add(CLOSED)

    async def wait_for_the_end() -> None:
        await asyncio.to_thread(sys.stdin.buffer.read)
        closing.set()

    await asyncio.gather(wait_for_the_end(), *map(consume_one, all_settings))


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    found = json.loads(sys.argv[1])
    asyncio.run(_run([MemberSettings(**{**one, "topics": tuple(one["topics"])}) for one in found]))
