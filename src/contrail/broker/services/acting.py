"""A slave at its master's work: what waits in its log is delivered through the escape bridge.

A takeover learns from the log and the ledger what was delivered already, off the loop; the log
does not grow meanwhile, for the master is away. Handing over again waits until the fate of every
send is known, so that the ledger is whole when the master asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from contrail.broker.services.delay_levels import DelayLevels
from contrail.broker.services.delivery_memory import read_deliveries
from contrail.broker.services.escape_bridge import EscapeBridge
from contrail.broker.services.stored_records import record_at
from contrail.broker.services.timers import Timers
from contrail.broker.services.transaction_recovery import rebuild
from contrail.broker.state.acting_master import ActingMaster
from contrail.broker.state.causes import Delivered
from contrail.broker.state.escaped import Escaped
from contrail.broker.state.escapes import half_escape
from contrail.broker.state.transaction_records import HALF, OP, QUEUE_ID, Fate, Half
from contrail.broker.state.transactions import OpenTransactions
from contrail.clock import Clock
from contrail.errors import ContrailError, MessageIllegal, RecordDamaged
from contrail.protocol.bodies.ha_status import ACTS_AS_MASTER
from contrail.runtime.schedule import Schedule
from contrail.store import MessageStore

_log = logging.getLogger(__name__)

_CHECK_MS = 100
_RUN_MS = 40
# After a takeover that failed.
_REST_S = 1.0


class _Work(NamedTuple):
    """The messages that wait in the log, as a takeover found them."""

    timers: Timers
    transactions: OpenTransactions


class Acting:
    """Begins and ends the master's work at a slave."""

    def __init__(
        self,
        state: ActingMaster,
        store: MessageStore,
        bridge: EscapeBridge,
        delays: DelayLevels,
        escaped: Escaped,
        *,
        new_timers: Callable[[], Timers],
        clock: Clock,
        master_sends: Callable[[], bool],
        check_interval_ms: Callable[[], int],
    ) -> None:
        """``check_interval_ms`` is how often open transactions are looked at."""
        self.state = state
        self._store = store
        self._bridge = bridge
        self._delays = delays
        self._escaped = escaped
        self._new_timers = new_timers
        self._clock = clock
        self._master_sends = master_sends
        self._check_interval_ms = check_interval_ms
        self._turn: asyncio.Task[None] | None = None
        self._work: _Work | None = None
        self._is_closed = False
        self._halves_due_ms = 0
        self._halves: asyncio.Task[None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the master's work is this slave's now."""
        return not self._is_closed and self.state.acts(master_sends=self._master_sends())

    @property
    def is_at_work(self) -> bool:
        return self._work is not None

    @property
    def stage(self) -> str:
        """How far the work is, for operators; empty if there is none."""
        is_turning = self._turn is not None and not self._turn.done()
        if is_turning:
            return "takes over" if self.is_wanted else "hands back"
        return ACTS_AS_MASTER if self.is_at_work else ""

    def register(self, schedule: Schedule) -> None:
        schedule.every(_CHECK_MS, lambda now_ms: self.check(), name="acting master")
        schedule.every(_RUN_MS, self.run, name="deliveries of an acting master")

    def check(self) -> None:
        """Begin or end the work, if that is due."""
        is_turning = self._turn is not None and not self._turn.done()
        if not is_turning and self.is_wanted != self.is_at_work:
            turn = self._take_over() if self.is_wanted else self._hand_back()
            self._turn = asyncio.get_running_loop().create_task(turn, name="acting master")

    async def handed_back(self) -> Escaped | None:
        """The ledger, once nothing is sent any more; None while this slave has to go on."""
        while not self.is_wanted:
            if self._turn is not None and not self._turn.done():
                await asyncio.wait([self._turn])
            elif self._work is None:
                return self._escaped
            else:
                self.check()
        return None

    async def close(self) -> None:
        """Hand over nothing any more."""
        self._is_closed = True
        if self._turn is not None:
            await asyncio.gather(self._turn, return_exceptions=True)
        if self._work is not None:
            await self._hand_back()

    # Turns.

    async def _take_over(self) -> None:
        _log.warning("the master is away: this slave acts for it")
        try:
            work = await asyncio.get_running_loop().run_in_executor(None, self._learn)
        except (ContrailError, OSError):
            _log.exception("this slave cannot act as master; it tries again")
            await asyncio.sleep(_REST_S)
            return
        self._halves_due_ms = self._clock.elapsed_ms() + self._check_interval_ms()
        self._work = work
        self._bridge.open()
        _log.warning(
            "this slave acts as master: %d timed messages wait and %d transactions are open",
            work.timers.pending_count,
            len(work.transactions),
        )

    async def _hand_back(self) -> None:
        work, self._work = self._work, None
        await self._bridge.close()
        if self._halves is not None:
            await asyncio.gather(self._halves, return_exceptions=True)
        if work is not None:
            await asyncio.get_running_loop().run_in_executor(None, work.timers.close)
        _log.warning("this slave no longer acts as master")

    def _learn(self) -> _Work:
        """Off the loop: it may take long."""
        self._escaped.forget_before(self._store.physical_min)
        # Timers and transactions find out by themselves; each reads what concerns it.
        waiting_from = self._delays.waiting_from
        start = self._store.visible_end if waiting_from is None else waiting_from
        delivered = read_deliveries(self._store, start)
        delivered.take_escaped(self._escaped.waited, self._escaped.halves)
        self._delays.recover(delivered)
        timers = self._new_timers()
        timers.recover(delivered, is_anew=True)
        return _Work(timers, self._open_transactions(delivered))

    def _open_transactions(self, delivered: Delivered) -> OpenTransactions:
        table = OpenTransactions()
        store = self._store
        rebuild(
            store,
            table,
            delivered,
            half_cursor=store.queue_offset_min(HALF, QUEUE_ID),
            op_cursor=store.queue_offset_min(OP, QUEUE_ID),
        )
        return table

    # At work.

    def run(self, now_ms: int) -> None:
        """Deliver what is due."""
        if self._work is None or not self.is_wanted:
            return
        self._delays.run(now_ms)
        self._work.timers.run(now_ms)
        is_busy = self._halves is not None and not self._halves.done()
        if not is_busy and self._clock.elapsed_ms() >= self._halves_due_ms:
            self._halves_due_ms = self._clock.elapsed_ms() + self._check_interval_ms()
            self._halves = asyncio.get_running_loop().create_task(
                self._hand_over_halves(self._work), name="half messages to other brokers"
            )

    async def _hand_over_halves(self, work: _Work) -> None:
        """In the order in which they were stored; a message that no broker takes holds the rest.

        The rows of a sink stay: the sink commits them together, at the master.
        """
        table = work.transactions
        for half in sorted(table, key=lambda one: one.queue_offset):
            if self._work is not work or not self.is_wanted:
                return
            if half.sink is None and not await self._hand_over(half):
                return
            if half.sink is None and half in table:
                table.close(half, Fate.ESCAPED)

    async def _hand_over(self, half: Half) -> bool:
        try:
            draft = half_escape(record_at(self._store, half.physical_offset), half)
            return await self._bridge.send_half(draft, half.physical_offset)
        except (RecordDamaged, MessageIllegal) as error:
            _log.error("transaction %s waits for the master: %s", half.key, error)
            return True
        except ContrailError as error:
            _log.warning("open transactions wait: %s", error)
            return False
