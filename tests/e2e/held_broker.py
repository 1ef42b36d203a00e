"""A broker in this process, whose clock and positions the test moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from contrail.broker.app import Broker
from contrail.broker.settings import read_broker_settings
from contrail.clock import ManualClock
from contrail.model.record import TRANSACTION_COMMIT
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import ReceivedResponse
from contrail.store.state.positions import NO_LIMIT
from contrail.testing.cluster import TEST_PROPERTIES, free_port_pair
from contrail.testing.loop import LoopThread
from tests.e2e.asking import properties_text
from tests.e2e.raw_client import RawClient, send_fields

SEND = RequestCode.SEND_MESSAGE_V2
DELAYED = {"DELAY": "1"}
TIMED = {"TIMER_DELAY_MS": "2000"}
HALF = {"TRAN_MSG": "true", "PGROUP": "producers"}


class Held:
    """A broker by itself, whose positions the test limits as replication would."""

    def __init__(self, folder: Path, clock: ManualClock | None = None, **settings: str) -> None:
        self.folder = folder
        properties = {
            **TEST_PROPERTIES,
            "contrailPrepareSegments": "false",
            "listenPort": str(free_port_pair()),
            "storePathRootDir": str(folder),
            **settings,
        }
        read = read_broker_settings(properties)
        self.clock, self.loop = clock or ManualClock(), LoopThread("held-broker")

        async def make() -> Broker:
            app = Broker(read.broker, read.store, clock=self.clock, replication=read.replication)
            await app.start()
            return app

        self.app = self.loop.run(make())
        self.store = self.app.store
        self.client = RawClient(self.app.port)
        self._key = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.limit(NO_LIMIT)
        self.client.close()
        self.loop.run(self.app.stop())
        self.loop.close()

    def on_loop(self, act: Callable[[], object]) -> None:
        async def work() -> None:
            act()

        self.loop.run(work())

    def limit(self, commit_limit: int, replicated_end: int = NO_LIMIT) -> None:
        """Let the log be committed, and replicated, so far; answers that are due go out."""

        def move() -> None:
            self.store.positions.commit_limit = commit_limit
            self.store.positions.replicated_end = replicated_end
            self.app._flushes.is_noted = True
            self.app.server.schedule_tick()

        self.on_loop(move)

    def freeze(self) -> int:
        """Commit the log up to its present end, and no later record."""
        self.store.wait_flushed(self.store.physical_end)
        self.limit(self.store.physical_end)
        return self.store.physical_end

    def pass_time(self, ms: int = 20_000) -> None:
        """All that is due is done, what is appended is synced, and tables are written."""
        for _ in range(ms // 500):
            self.clock.advance(ms=500)
            self.on_loop(lambda: self.app.run_due(self.clock.now_ms()))
            self.store.wait_flushed(self.store.physical_end)
        self.loop.run(self.app.tables.persistence.settled())

    def fields(self, topic: str, properties: Mapping[str, str], **changes: str) -> dict[str, str]:
        self._key += 1
        named = {"UNIQ_KEY": f"AC{self._key:06d}", **properties}
        return send_fields(topic, i=properties_text(named), **changes)

    def send(self, topic: str = "orders", **properties: str) -> ReceivedResponse:
        answer = self.client.call(SEND, self.fields(topic, properties), b"x")
        assert answer.code == 0, answer.remark
        return answer

    def half(self) -> dict[str, str]:
        """A half message, and the fields of its commit."""
        fields = self.fields("orders", HALF, f=str(4))
        half = self.client.call(SEND, fields, b"x")
        assert half.code == 0, half.remark
        return {
            "producerGroup": "producers",
            "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
            "commitOrRollback": str(TRANSACTION_COMMIT),
            "fromTransactionCheck": "false",
            "msgId": half.fields["transactionId"],
            "transactionId": half.fields["transactionId"],
        }

    def text(self, name: str) -> str:
        found = self.folder / "config" / name
        return found.read_text() if found.exists() else ""

    def count(self, topic: str) -> int:
        return self.store.queue_offset_max(topic.encode(), 0)
