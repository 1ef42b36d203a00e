"""A slave's tables: copies of its master's, asked for again and again.

Topics and groups are replaced when the master's version of them is another; consumer offsets are
put over those that are there, as far as the log reaches; delay offsets are written down for a later
life as a master, once the slave's log holds the deliveries that they speak of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from contrail.broker.services.groups import Groups
from contrail.broker.services.topics import Topics
from contrail.broker.state.consumer_offsets import SEPARATOR, ConsumerOffsets
from contrail.broker.state.followed_tables import FollowedTable, FollowingSchedule
from contrail.errors import CallFailed, ContrailError
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError, Fields, loads
from contrail.protocol.bodies.tables import KVTable
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.store import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    GROUPS,
    TOPICS,
    DelayOffsetTable,
    TimerCheck,
)
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 10_000
# A page behind the last entry: an unchanged table answers with its version alone.
_BEHIND_ALL = str((1 << 31) - 1)


# Masters before 5.0 have no timers and no modes, and one without timers refuses to tell of them.
_MAY_LACK = (FollowedTable.TIMERS, FollowedTable.REQUEST_MODES)
# Where the log ended when the answer was made; an Apache master is asked for its runtime.
LOG_END_FIELD = "contrailLogEnd"
_RUNTIME_LOG_END = "commitLogMaxOffset"


class FollowedDelays(Protocol):
    """Where a slave keeps how far its master has delivered the delay levels."""

    def follow(self, table: DelayOffsetTable, physical_end: int) -> None: ...


class FollowedTimers(Protocol):
    """Where a slave keeps how far its master's timers are."""

    def follow(self, check: TimerCheck) -> None: ...


class FollowedModes(Protocol):
    """Where a slave keeps how its master's groups ask for messages."""

    def follow(self, body: bytes) -> None: ...


class OwnLog(Protocol):
    """The slave's log."""

    @property
    def physical_end(self) -> int: ...

    def queue_offset_max(self, topic: bytes, queue_id: int) -> int: ...


class _Refused(CallFailed):
    """The master answered, with another code than 0."""


class _HeldDelays(NamedTuple):
    """Delay offsets of the master that the log is still to reach."""

    table: DelayOffsetTable
    physical_end: int


class SlaveTables:
    """Keeps a slave's tables as its master's; ``run`` is called by the schedule."""

    def __init__(
        self,
        caller: Caller,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delays: FollowedDelays,
        timers: FollowedTimers,
        modes: FollowedModes,
        log: OwnLog,
        *,
        elapsed_ms: Callable[[], int],
        on_topic_gone: Callable[[str], None],
    ) -> None:
        """``on_topic_gone`` removes the remains of a topic that the master no longer has."""
        self._caller = caller
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delays = delays
        self._timers = timers
        self._modes = modes
        self._log = log
        self._held_delays: _HeldDelays | None = None
        self._elapsed_ms = elapsed_ms
        self._on_topic_gone = on_topic_gone
        self._master: str | None = None
        self._schedule = FollowingSchedule(master_is_contrail=True)
        self._probes = False
        self._task: asyncio.Task[bool] | None = None
        self._problem: str | None = None
        self._asks = {
            FollowedTable.TOPICS: self._ask_topics,
            FollowedTable.GROUPS: self._ask_groups,
            FollowedTable.OFFSETS: self._ask_offsets,
            FollowedTable.DELAYS: self._ask_delays,
            FollowedTable.TIMERS: self._ask_timers,
            FollowedTable.REQUEST_MODES: self._ask_modes,
        }
        self.taken_counts = dict.fromkeys(FollowedTable, 0)
        self.last_taken_ms: int | None = None

    def follow(self, master: str, *, is_contrail: bool) -> None:
        """Ask the broker at ``master`` from now on; asked again it changes nothing."""
        if (master, is_contrail) == (self._master, self._probes):
            return
        self._master, self._probes = master, is_contrail
        self._schedule = FollowingSchedule(master_is_contrail=is_contrail)
        self._held_delays = None

    @property
    def contrail_master(self) -> str | None:
        """The master's address, empty while it is unknown; None for a master of Apache."""
        if self._master is None:
            return ""
        return self._master if self._probes else None

    def run(self, now_ms: int) -> None:
        """Begin to ask for tables that are due, unless a round is under way already."""
        is_asking = self._task is not None and not self._task.done()
        if self._master is None or is_asking or not self._schedule.due(self._elapsed_ms()):
            return
        self._task = asyncio.get_running_loop().create_task(self.catch_up(), name="slave tables")

    async def catch_up(self) -> bool:
        """Ask for all tables that are due; whether the master answered with all of them."""
        schedule, done = self._schedule, True
        for table in schedule.due(self._elapsed_ms()):
            began_ms = self._elapsed_ms()
            try:
                await self._asks[table]()
            except (ContrailError, FastJsonError) as error:
                if isinstance(error, _Refused) and table in _MAY_LACK:
                    schedule.lacking(table, self._elapsed_ms())
                    continue
                schedule.failed(table, self._elapsed_ms())
                self._note(f"the {table} of master {self._master} were not taken: {error}")
                done = False
            else:
                now_ms = self._elapsed_ms()
                schedule.taken(table, now_ms, took_ms=now_ms - began_ms)
                self.taken_counts[table] += 1
                self.last_taken_ms = now_ms
        if done:
            self._note(None)
        return done

    async def close(self) -> None:
        """Ask nothing any more."""
        self._master = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _note(self, problem: str | None) -> None:
        if problem is not None and self._problem is None:
            _log.warning("%s; it is asked again", problem)
        elif problem is None and self._problem is not None:
            _log.info("the tables of master %s are taken again", self._master)
        self._problem = problem

    # One table each.

    async def _ask_topics(self) -> None:
        known = self._topics.table.data_version
        if await self._is_unchanged(
            RequestCode.GET_ALL_TOPIC_CONFIG, "topicSeq", "maxTopicNum", known
        ):
            return
        table = TOPICS.parse(await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG))
        if table.data_version == known:
            return
        for gone in self._topics.follow(table.topics, table.data_version):
            self._on_topic_gone(gone)
            self._offsets.remove_topic(gone)

    async def _ask_groups(self) -> None:
        known = self._groups.table.data_version
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        if await self._is_unchanged(code, "groupSeq", "maxGroupNum", known):
            return
        table = GROUPS.parse(await self._ask(code))
        if table.data_version != known:
            self._groups.follow(table.groups, table.forbidden, table.data_version)

    async def _ask_offsets(self) -> None:
        body = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = CONSUMER_OFFSETS.parse(body)
        self._offsets.put_over(self._within_log(table.offsets), table.data_version)

    def _within_log(self, offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[int, int]]:
        """No offset behind the end of its queue here, while the log has not come as far.

        Should the master be lost now, other messages will take the places of those that are
        missing: a group that had consumed those would pass over these.
        """
        end_of = self._log.queue_offset_max
        found = {}
        for key, queues in offsets.items():
            topic = key.partition(SEPARATOR)[0].encode()
            found[key] = {
                queue_id: min(one, end_of(topic, queue_id)) for queue_id, one in queues.items()
            }
        return found

    async def _ask_delays(self) -> None:
        if self._held_delays is not None and not self._take_held_delays():
            return
        answer = await self._answer(RequestCode.GET_ALL_DELAY_OFFSET)
        table = DELAY_OFFSETS.parse(answer.body)
        end = answer.fields.get(LOG_END_FIELD) or await self._log_end()
        self._held_delays = _HeldDelays(table, _whole(end))
        self._take_held_delays()

    def _take_held_delays(self) -> bool:
        """Believe the delay offsets once all deliveries they speak of are in this log."""
        held = self._held_delays
        if held is None or self._log.physical_end < held.physical_end:
            return False
        self._held_delays = None
        self._delays.follow(*held)
        return True

    async def _log_end(self) -> str:
        """Where the log of an Apache master ends, asked after what is to be judged by it."""
        body = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(body).table.get(_RUNTIME_LOG_END, "")

    async def _ask_timers(self) -> None:
        body = await self._ask(RequestCode.GET_TIMER_CHECK_POINT)
        try:
            self._timers.follow(TimerCheck.decode(body))
        except ValueError as error:
            raise CallFailed(str(error)) from error

    async def _ask_modes(self) -> None:
        self._modes.follow(await self._ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))

    async def _is_unchanged(
        self, code: RequestCode, first_field: str, count_field: str, known: DataVersion
    ) -> bool:
        """Whether a Contrail master has a table in the version that is known of it."""
        if not self._probes:
            return False
        version = encode_body(known.to_fields()).decode()
        fields = {first_field: _BEHIND_ALL, count_field: "1", "dataVersion": version}
        table = Fields(loads(await self._ask(code, fields)), "a table")
        found = table.child("dataVersion")
        return found is not None and DataVersion.from_fields(found) == known

    async def _ask(self, code: RequestCode, fields: Mapping[str, str] | None = None) -> bytes:
        return (await self._answer(code, fields)).body

    async def _answer(
        self, code: RequestCode, fields: Mapping[str, str] | None = None
    ) -> ReceivedResponse:
        assert self._master is not None, "run and catch_up look first"
        answer = await self._caller.call(self._master, code, fields, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            raise _Refused(f"request {code} was answered {answer.code}: {answer.remark}")
        return answer


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise CallFailed(f"the master's log does not end at {text!r}")
    return int(text)
