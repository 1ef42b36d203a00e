"""The members of a campaign's consumer groups: started, killed, closed, and read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from tests.history.client_member import CLOSED, GOT, HAS, PERSIST_INTERVAL_MS, MemberSettings
from tests.history.client_rules import Cause, Delivery, Queue

_FOLDER = Path(__file__).parents[2]
_CLOSE_S = 120.0
_MS = 1_000_000

# Consumer offsets are written every interval and with every pull; the machine may be busy.
KILLED_REACH_MS = 9_000 + PERSIST_INTERVAL_MS
# A queue that goes to another member: it reads from the last stored offset, while the old member
# may finish.
MOVED_REACH_MS = 4_000 + PERSIST_INTERVAL_MS
MOVED_OVERLAP_MS = 3_000


Seen = dict[tuple[str, Queue], set[int]]
"""The queue offsets that a group has got of a queue."""


class MemberNotes:
    """The notes of one life of one consumer."""

    def __init__(self, settings: MemberSettings, number: int, seen: Seen) -> None:
        self.settings = settings
        self._seen = seen
        self.group = settings.group
        self.name = f"{settings.name}.{number}"
        self.deliveries: list[Delivery] = []
        self.queues: frozenset[Queue] = frozenset()
        # The times at which it had each queue.
        self.shares: list[tuple[int, frozenset[Queue]]] = []
        self.killed_ns = 0
        self.closing_ns = 0
        self.is_closed = False
        self._read_bytes = 0
        self._last_ns = 0

    @property
    def is_up(self) -> bool:
        return not self.killed_ns and not self.closing_ns

    def read_on(self) -> None:
        """Read the lines that the member has noted since the last call."""
        path = Path(self.settings.notes_path)
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._read_bytes += end
        for line in data[:end].splitlines():
            self._take(json.loads(line))

    def _take(self, note: list[object]) -> None:
        word, at_ns, *values = note
        assert isinstance(at_ns, int)
        self._last_ns = at_ns
        if word == GOT:
            queue, *rest = values
            delivery = Delivery(at_ns, self.group, self.name, Queue(*queue), *rest)  # type: ignore[misc, arg-type]
            self.deliveries.append(delivery)
            self._seen[self.group, delivery.queue].add(delivery.queue_offset)
        elif word == HAS:
            self.queues = frozenset(Queue(*queue) for queue in values[0])  # type: ignore[attr-defined]
            self.shares.append((at_ns, self.queues))
        elif word == CLOSED:
            self.is_closed = True

    def touched(self) -> frozenset[Queue]:
        """Every queue the member ever had, by its notes."""
        seen = frozenset(delivery.queue for delivery in self.deliveries)
        return seen.union(*(queues for _, queues in self.shares))


class Member(MemberNotes):
    """One life of one consumer process."""

    def __init__(self, settings: MemberSettings, number: int, seen: Seen) -> None:
        super().__init__(settings, number, seen)
        with open(f"{settings.notes_path}.log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.history.client_member",
                    json.dumps(dataclasses.asdict(settings)),
                ],
                cwd=_FOLDER,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def require_running(self) -> None:
        code = self._process.poll()
        assert code is None, f"{self.name} ended with {code}: see {self.settings.notes_path}.log"

    # Its end.

    def kill(self) -> None:
        """End it with signal 9."""
        self.require_running()
        began_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        self._close_pipe()
        self.read_on()
        self.killed_ns = max(began_ns, self._last_ns + 1)

    def close(self) -> None:
        """Have the member close."""
        self.require_running()
        self.closing_ns = time.monotonic_ns()
        self._close_pipe()
        code = self._process.wait(_CLOSE_S)
        self.read_on()
        assert code == 0 and self.is_closed, f"{self.name} closed with {code}: see its log"

    def end(self) -> None:
        """Kill the member: the test is over."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._close_pipe()

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()


M = TypeVar("M", bound=MemberNotes)


class Roster(Generic[M]):
    """All members, by the name that a member shares with its restarts."""

    def __init__(self, folder: Path, namesrv: str, seed: int) -> None:
        self._folder = folder
        self._namesrv = namesrv
        self._seed = seed
        self.seen: Seen = defaultdict(set)
        self.members: list[M] = []
        self.posts: dict[str, M] = {}

    def settings_of(
        self, name: str, kind: str, group: str, topics: tuple[str, ...], number: int
    ) -> MemberSettings:
        return MemberSettings(
            name,
            kind,  # type: ignore[arg-type]
            group,
            topics,
            self._namesrv,
            str(self._folder / f"{name}.{number}.notes"),
            self._seed + number,
        )

    def add(self, name: str, member: M) -> None:
        self.members.append(member)
        self.posts[name] = member

    def read_on(self) -> None:
        for member in self.members:
            member.read_on()

    def up(self, group: str) -> list[M]:
        return [one for one in self.posts.values() if one.is_up and one.group == group]

    def owners(self, group: str) -> dict[Queue, list[str]]:
        found: dict[Queue, list[str]] = {}
        for member in self.up(group):
            for queue in member.queues:
                found.setdefault(queue, []).append(member.name)
        return found

    def deliveries(self) -> list[Delivery]:
        """The deliveries of all members, in the order of time."""
        return sorted(
            itertools.chain.from_iterable(one.deliveries for one in self.members),
            key=lambda delivery: delivery.at_ns,
        )

    def move_causes(self, kinds: Mapping[str, str]) -> Iterator[Cause]:
        """Queues that were taken from a running member, by another or by itself again.

        Not for ordered groups, whose members wait for each other.
        """
        for delivery, former in _changes_of_hands(self.members, self.deliveries()):
            if kinds[delivery.group] != "orderly" and not _was_gone(former, delivery.at_ns):
                yield _moved(delivery.group, {delivery.queue}, delivery.at_ns)
        for one in self.members:
            if kinds[one.group] != "orderly":
                for (_, before), (at_ns, after) in itertools.pairwise(one.shares):
                    if before - after:
                        yield _moved(one.group, before - after, at_ns)


class Crew(Roster[Member]):
    """Members in processes of their own."""

    def __init__(self, folder: Path, namesrv: str, seed: int) -> None:
        super().__init__(folder, namesrv, seed)
        self._numbers = itertools.count(1)

    def start(self, name: str, kind: str, group: str, topics: tuple[str, ...]) -> Member:
        number = next(self._numbers)
        settings = self.settings_of(name, kind, group, topics, number)
        member = Member(settings, number, self.seen)
        self.add(name, member)
        return member

    def start_again(self, name: str) -> Member:
        settings = self.posts[name].settings
        return self.start(name, settings.kind, settings.group, settings.topics)

    def end(self) -> None:
        for member in self.members:
            member.end()

    def kill_causes(self) -> Iterator[Cause]:
        """Why messages may have come again."""
        for one in self.members:
            if one.killed_ns:
                begin_ns = one.killed_ns - KILLED_REACH_MS * _MS
                yield Cause("consumer killed", one.group, one.touched(), begin_ns, one.killed_ns)


def _changes_of_hands(
    members: Sequence[MemberNotes], deliveries: Iterable[Delivery]
) -> Iterator[tuple[Delivery, MemberNotes]]:
    """Deliveries of a queue whose preceding delivery went to another member."""
    by_name = {one.name: one for one in members}
    last: dict[tuple[str, Queue], Delivery] = {}
    for delivery in deliveries:
        before = last.get((delivery.group, delivery.queue))
        last[delivery.group, delivery.queue] = delivery
        if before is not None and before.member != delivery.member:
            yield delivery, by_name[before.member]


def _was_gone(member: MemberNotes, at_ns: int) -> bool:
    """Whether the member had been killed, or had begun to close."""
    return any(0 < end_ns <= at_ns for end_ns in (member.killed_ns, member.closing_ns))


def _moved(group: str, queues: Collection[Queue], at_ns: int) -> Cause:
    begin_ns, end_ns = at_ns - MOVED_REACH_MS * _MS, at_ns + MOVED_OVERLAP_MS * _MS
    return Cause("queue moved", group, frozenset(queues), begin_ns, end_ns)
