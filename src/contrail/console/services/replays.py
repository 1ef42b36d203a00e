"""Replays of dead letters: at a bounded rate, with an outcome for each letter, resumable.

A replay is a file of JSON lines in the console's folder. Its first line is the plan (group,
letters, edits, rate); then each letter has a line ``sending`` before its copy is sent, and one with
its outcome after it. A replay that was interrupted goes on with the letters that have no line: one
that was being sent then is told as ``unknown`` and is not sent again by itself.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
from collections import Counter
from pathlib import Path

import msgspec

from contrail.client.message import ReceivedMessage
from contrail.clock import Clock
from contrail.errors import ClientError, NotOnCluster
from contrail.insight.changes.messages import message_copy, receipt_words
from contrail.insight.changes.planned import Hands
from contrail.insight.copies import Skipped
from contrail.insight.dead_letters import Wanted, letters_of, replay_copy
from contrail.insight.pacing import Pacer

_log = logging.getLogger(__name__)

RATE_MAX = 10_000.0
LETTERS_MAX = 10_000
RUNS_SHOWN_MAX = 100
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{8,32}")
_MODE = 0o600
_SENDING, _SENT, _FAILED, _SKIPPED, _UNKNOWN = "sending", "sent", "failed", "skipped", "unknown"


class ReplayPlan(msgspec.Struct, frozen=True):
    """The letters of a replay; ``edits`` are new bodies in base64 by dead letter's id."""

    run_id: str
    group: str
    account: str
    began_ms: int
    message_ids: list[str]
    rate: float
    to_topic: str | None = None
    edits: dict[str, str] = {}


class LetterOutcome(msgspec.Struct, frozen=True):
    """The outcome of one dead letter."""

    message_id: str
    outcome: str
    detail: str
    at_ms: int


class ReplayTold(msgspec.Struct):
    """A replay and how far it is; ``is_running`` only while this console works on it."""

    run_id: str
    group: str
    account: str
    began_ms: int
    rate: float
    to_topic: str | None
    total: int
    counts: dict[str, int]
    is_running: bool
    outcomes: list[LetterOutcome]


class Replays:
    """All replays of a console, and those that run."""

    def __init__(self, folder: Path, hands: Hands, clock: Clock) -> None:
        self._folder = folder / "replays"
        self._hands = hands
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def start(self, plan: ReplayPlan) -> None:
        """Write the plan down, and begin."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._append(plan.run_id, plan)
        self._begin(plan)

    def resume(self, run_id: str) -> None:
        """Go on with the letters that have no outcome.

        Raises:
            NotOnCluster: there is no such replay.
        """
        if run_id not in self._running:
            self._begin(self._read(run_id)[0])

    def halt(self, run_id: str) -> None:
        task = self._running.get(run_id)
        if task is not None:
            task.cancel()

    def told(self, run_id: str) -> ReplayTold:
        """Raises ``NotOnCluster``: there is no such replay."""
        plan, outcomes = self._read(run_id)
        return ReplayTold(
            plan.run_id,
            plan.group,
            plan.account,
            plan.began_ms,
            plan.rate,
            plan.to_topic,
            len(plan.message_ids),
            dict(Counter(one.outcome for one in outcomes.values())),
            run_id in self._running,
            list(outcomes.values()),
        )

    def every(self, group: str | None = None) -> list[ReplayTold]:
        """The newest first, without the outcomes."""
        paths = sorted(
            self._folder.glob("*.jsonl"), key=lambda one: one.stat().st_mtime, reverse=True
        )
        found = [self.told(path.stem) for path in paths[:RUNS_SHOWN_MAX]]
        for one in found:
            one.outcomes = []
        return [one for one in found if group in (None, one.group)]

    # The file.

    def _path(self, run_id: str) -> Path:
        if not _RUN_ID.fullmatch(run_id):
            raise NotOnCluster(f"there is no replay {run_id!r}")
        return self._folder / f"{run_id}.jsonl"

    def _append(self, run_id: str, line: msgspec.Struct) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self._path(run_id), flags, _MODE)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
        finally:
            os.close(descriptor)

    def _read(self, run_id: str) -> tuple[ReplayPlan, dict[str, LetterOutcome]]:
        try:
            lines = self._path(run_id).read_bytes().splitlines()
        except FileNotFoundError:
            raise NotOnCluster(f"there is no replay {run_id!r}") from None
        plan = msgspec.json.decode(lines[0], type=ReplayPlan)
        outcomes: dict[str, LetterOutcome] = {}
        for raw in lines[1:]:
            try:
                one = msgspec.json.decode(raw, type=LetterOutcome)
            except msgspec.MsgspecError:
                continue  # Torn by a stop: its letter is one that was being sent.
            outcomes[one.message_id] = one
        if run_id not in self._running:
            outcomes = {key: _settled(one) for key, one in outcomes.items()}
        return plan, outcomes

    # The work.

    def _begin(self, plan: ReplayPlan) -> None:
        task = asyncio.create_task(self._run(plan), name=f"replay-{plan.run_id}")
        self._running[plan.run_id] = task
        task.add_done_callback(lambda _: self._running.pop(plan.run_id, None))

    async def _run(self, plan: ReplayPlan) -> None:
        try:
            _, before = self._read(plan.run_id)
            left = [one for one in plan.message_ids if one not in before]
            wanted = Wanted(message_ids=left)
            letters = await letters_of(self._hands.admin, plan.group, wanted)
            by_id = {one.message_id: one for one in letters}
            loop = asyncio.get_running_loop()
            pacer = Pacer(plan.rate, loop.time())
            for message_id in left:
                letter = by_id.get(message_id)
                if letter is None:
                    self._note(plan, message_id, _SKIPPED, "it is not among the dead letters")
                    continue
                await asyncio.sleep(pacer.wait_s(1, loop.time()))
                await self._send(plan, letter)
        except ClientError as error:
            _log.warning("replay %s stopped: %s", plan.run_id, error)
        except Exception:
            _log.exception("replay %s failed", plan.run_id)

    async def _send(self, plan: ReplayPlan, letter: ReceivedMessage) -> None:
        copy = replay_copy(letter, plan.to_topic, f"console-{plan.run_id}")
        if isinstance(copy, Skipped):
            self._note(plan, letter.message_id, _SKIPPED, copy.reason)
            return
        message = message_copy(letter, copy.topic, copy.properties)
        edited = plan.edits.get(letter.message_id)
        if edited is not None:
            message.body = base64.b64decode(edited)
        self._note(plan, letter.message_id, _SENDING, copy.topic)
        try:
            receipt = await self._hands.send(message)
        except ClientError as error:
            self._note(plan, letter.message_id, _FAILED, str(error))
            return
        self._note(plan, letter.message_id, _SENT, receipt_words(receipt))

    def _note(self, plan: ReplayPlan, message_id: str, outcome: str, detail: str) -> None:
        self._append(plan.run_id, LetterOutcome(message_id, outcome, detail, self._clock.now_ms()))


def _settled(one: LetterOutcome) -> LetterOutcome:
    if one.outcome != _SENDING:
        return one
    told = "the console stopped while it was being sent: it may have arrived"
    return LetterOutcome(one.message_id, _UNKNOWN, told, one.at_ms)
