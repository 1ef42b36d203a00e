"""A store with its timers and a clock that the test moves: no sockets, no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.delivery_memory import DeliveryMemory, recall_deliveries
from contrail.broker.services.persistence import Persistence
from contrail.broker.services.timers import Timers
from contrail.broker.state.placement import TimerRules, place
from contrail.broker.state.stats import BrokerStats
from contrail.clock import ManualClock
from contrail.model.message import MessageDraft, StoredMessage
from contrail.model.properties import RECALL_NONCE, encode_properties
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.store.log import MessageStore
from tests.fault.store_setup import small_config

START_MS = 1_760_000_000_000
YEAR_S = 31_536_000


def timer_config(root: Path, **changes: Any) -> StoreConfig:
    """Segments of 1 MiB and timer log files of 80 rows."""
    return small_config(
        root,
        **{
            "segment_bytes": 1 << 20,
            "queue_file_bytes": 20 * 20_000,
            "index_enabled": False,
            "timer_log_file_bytes": 4192,
            # A test that waits for the disk should not wait long.
            "flush_interval_ms": 1,
            "flush_pages_min": 0,
            **changes,
        },
    )


class TimerBroker:
    """The timers of a broker. ``crash`` leaves the folder as a power cut would."""

    def __init__(
        self,
        root: Path,
        clock: ManualClock,
        *,
        files: FileSystem | None = None,
        delay_s_max: int = YEAR_S,
        **changes: Any,
    ) -> None:
        self.clock = clock
        self.changes = {"delay_s_max": delay_s_max, **changes}
        self.files = files or FileSystem()
        self.config = timer_config(root, **changes)
        self.rules = TimerRules(True, self.config.timer_precision_ms, delay_s_max)
        self.store = MessageStore.open(self.config, clock=clock, files=self.files)
        stats = BrokerStats(
            "c", started_ms=clock.now_ms(), utc_offset_ms=0, is_system=lambda topic: False
        )
        self.deliveries = Deliveries(self.store, stats, on_appended=lambda: None)
        self.persistence = Persistence(root, self.files)
        self.timers = Timers(
            self.store,
            self.deliveries,
            self.persistence,
            config=self.config,
            files=self.files,
            clock=clock,
        )
        self.memory = DeliveryMemory(self.persistence, [lambda: self.timers.durable_end])
        self.timers.recover(recall_deliveries(self.files, root, self.store))

    # Actions of clients.

    def send(
        self,
        key: str,
        *,
        topic: str = "orders",
        queue_id: int = 0,
        nonce: str = "",
        **timer: int | str,
    ) -> None:
        """Send a timer message with DELIVER_MS=..., DELAY_MS=... or DELAY_SEC=..."""
        properties = {"UNIQ_KEY": key, **({RECALL_NONCE: nonce} if nonce else {})}
        for name, value in timer.items():
            known = name if name.startswith("TIMER_") else f"TIMER_{name}"
            properties[known] = str(value)
        draft = MessageDraft(topic.encode(), queue_id, key.encode())
        placed = place(
            draft, properties, level_max=18, timers=self.rules, now_ms=self.clock.now_ms()
        )
        self.store.append([placed._replace(properties=encode_properties(properties))])
        self.dispatch()

    def delete(self, key: str, deliver_ms: int, *, topic: str = "orders", nonce: str = "") -> None:
        deleted = f"{topic}+{key}"
        self.send(f"D{key}", topic=topic, nonce=nonce, DELIVER_MS=deliver_ms, DEL_UNIQKEY=deleted)

    def delivered(self, topic: str = "orders", queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        name = topic.encode()
        queue_offset = self.store.queue_offset_min(name, queue_id)
        while queue_offset < self.store.queue_offset_max(name, queue_id):
            result = self.store.get(name, queue_id, queue_offset, bytes_max=1 << 20)
            found += result.messages
            assert result.next_queue_offset > queue_offset, result.status
            queue_offset = result.next_queue_offset
        return found

    def keys(self, topic: str = "orders") -> list[str]:
        return [message.properties["UNIQ_KEY"] for message in self.delivered(topic)]

    def times(self, topic: str = "orders") -> dict[str, int]:
        """When each message was delivered; for a message delivered twice the last time."""
        return {m.properties["UNIQ_KEY"]: m.store_timestamp_ms for m in self.delivered(topic)}

    # Actions of the schedule.

    def run(self) -> None:
        """Run the timers until nothing is left to do at this moment."""
        while True:
            self.timers.run(self.clock.now_ms())
            self.dispatch()
            if self.timers.interval_ms > 0:
                return

    def advance(self, ms: int = 0, *, hours: float = 0, step_ms: int | None = None) -> None:
        """Let time pass, in steps of some milliseconds or all at once."""
        left_ms = ms + int(hours * 3_600_000)
        while left_ms > 0:
            step = min(step_ms or left_ms, left_ms)
            self.clock.advance(ms=step)
            left_ms -= step
            self.run()
            if step >= 3_600_000:
                self.flush_log()

    def settle(self) -> None:
        """Make everything durable, and write timer files and delivery memory."""
        self.flush_log()
        self.wait_filed()
        asyncio.run(self._flush_tables())

    def dispatch(self) -> None:
        if self.config.syncs_before_ack:
            self.store.wait_flushed(self.store.physical_end)
        self.store.dispatch()

    def flush_log(self) -> None:
        self.store.wait_flushed(self.store.physical_end)

    def wait_filed(self) -> None:
        """Run until the timer files hold everything that happened."""
        filing = self.timers._filing
        for _ in range(1000):
            if filing._batch is None and not len(filing._marks):
                self.clock.advance(ms=self.config.timer_flush_interval_ms)
            self.run()
            self.flush_log()
            if filing._running is not None:
                filing._running.exception()
            self.timers.run(self.clock.now_ms())
            if filing._batch is None and not filing.unfiled_count and not len(filing._marks):
                return
        raise AssertionError("the timer files were not written")

    async def _flush_tables(self) -> None:
        self.persistence.flush_due(self.clock.now_ms())
        while self.persistence.busy:
            await asyncio.sleep(0.001)

    # The end.

    def stop(self) -> None:
        """Stop as an operator stops a broker."""
        self.flush_log()
        self.timers.close()
        asyncio.run(self.persistence.close())
        self.store.close()

    def crash(self) -> None:
        """Release everything without further writes: the written files stay."""
        filing = self.timers._filing
        if filing._running is not None:
            filing._running.exception()
        filing._writer.shutdown()
        self.timers._files.close()
        self.persistence._writer.shutdown()
        self.store.poisoned = self.store.poisoned or _gone()
        self.store.close()


def _gone() -> Any:
    from contrail.errors import StorePoisoned

    return StorePoisoned("the power is gone")


def restarted(broker: TimerBroker, end: Callable[[TimerBroker], None] | None = None) -> TimerBroker:
    """A new broker on the same folder, after a crash by default."""
    (end or TimerBroker.crash)(broker)
    return TimerBroker(broker.config.root, broker.clock, **broker.changes)
