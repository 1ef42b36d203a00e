"""A broker that fails on request: the real one, with faults around its requests and answers.

All faults sit around the broker, in place of the gate that the server calls: the broker that users
run has no such code, and pays nothing for it.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from contrail.broker.access_config import AccessConfig
from contrail.broker.app import Broker
from contrail.broker.config import BrokerConfig
from contrail.broker.group_side import GroupSide
from contrail.broker.intake import Intake
from contrail.broker.pair_side import SlaveOfPair
from contrail.broker.replication_config import ReplicationConfig
from contrail.clock import Clock
from contrail.errors import CallFailed
from contrail.kernels.frame_scan import Item
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import FLAG_ONE_WAY, Frame, Request, Response
from contrail.protocol.frames import Frames, SendRequest
from contrail.runtime.files import FileSystem
from contrail.store.config import StoreConfig
from contrail.wire.caller import Caller
from contrail.wire.cluster_port import Link, LinkFiller, LinkUser, dial
from contrail.wire.connection import Connection
from contrail.wire.server import Arrived

_SENDS = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
_CUT_OFF = "cut off by the test"
# The kernel gives sends, and only sends, as tuples of this length.
_SEND_LENGTH = len(SendRequest._fields)


@dataclass(slots=True)
class Refusal:
    """How sends are refused; ``count`` is how many more are, None means all."""

    code: int
    remark: str
    count: int | None

    def take(self) -> bool:
        """Whether the next send is refused too."""
        if self.count is None:
            return True
        self.count -= 1
        return self.count >= 0


class FaultyBroker(Broker):
    """One broker of a test. All methods belong on the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        *,
        clock: Clock,
        replication: ReplicationConfig | None = None,
        access: AccessConfig | None = None,
    ) -> None:
        self._disk = CuttableDisk()
        super().__init__(
            config,
            store_config,
            clock=clock,
            files=self._disk,
            replication=replication,
            access=access,
        )
        self._refusal: Refusal | None = None
        self._lost_answer_count = 0
        self._to_drop: list[Connection] = []
        self.is_dead = False
        self.is_cut_off = False
        self.answer_delay_s = 0.0
        # Whether a member of this broker's group can be reached at an address.
        self.may_reach: Callable[[str], bool] = lambda address: True

    # Faults on request.

    def refuse_sends(self, refusal: Refusal) -> None:
        self._refusal = refusal

    def lose_answers(self, count: int) -> None:
        """Store the next sends, and drop their connection instead of an answer."""
        self._lost_answer_count = count

    def delay_answers(self, ms: int) -> None:
        self.answer_delay_s = ms / 1000
        for peer in self.server.connections:
            self.make_late(peer)

    def drop_connections(self) -> None:
        for peer in list(self.server.connections):
            peer.abort("dropped_by_the_test")

    def clear_faults(self) -> None:
        """End all faults; answers already delayed stay so."""
        self._refusal = None
        self._lost_answer_count = 0
        self.answer_delay_s = 0.0

    def cut_off(self, is_cut_off: bool) -> None:
        """Whether a slave loses its master: the link of the log, and questions for tables."""
        if is_cut_off == self.is_cut_off:
            return
        self.is_cut_off = is_cut_off
        if isinstance(self.replicas, SlaveOfPair):
            follower = self.replicas.link.ha
            # Told and mended at once, not only with the next attempt to connect.
            if is_cut_off:
                follower._disconnect("cut_off_by_the_test")
                follower._state.fault("unreachable", _CUT_OFF)
            else:
                follower._state.connect_at_ms = self._clock.elapsed_ms()

    def end_member_links(self) -> None:
        """Lose the links to the other members of the group; ``may_reach`` says which come back."""
        if isinstance(self.replicas, GroupSide):
            self.replicas.runner.links.end_all("cut_off_by_the_test")

    async def _dial_member(
        self, user: LinkUser | LinkFiller, address: str, *, tls: ssl.SSLContext | None = None
    ) -> Link:
        if not self.may_reach(address):
            raise CallFailed(f"{address} cannot be reached: {_CUT_OFF}")
        return await dial(user, address, tls=tls)

    def _wire_replicas(self) -> None:
        super()._wire_replicas()
        if isinstance(self.replicas, GroupSide):
            self.replicas.runner.links.dial = self._dial_member
        if isinstance(self.replicas, SlaveOfPair):
            self.replicas.link.ha.dial = self._dial
            self.replicas.link._tables._caller = _CuttableCaller(self, self._caller)

    async def _dial(
        self, user: LinkUser | LinkFiller, address: str, *, tls: ssl.SSLContext | None = None
    ) -> Link:
        self.require_way_to(address)
        return await dial(user, address, tls=tls)

    def require_way_to(self, address: str) -> None:
        if self.is_cut_off:
            raise CallFailed(f"{address} cannot be reached: {_CUT_OFF}")

    async def die(self) -> None:
        """End as if the process were killed: written bytes stay, no more are written.

        The broker does not unregister: NameServers see their connections close, as after a real
        kill.
        """
        self.is_dead = True
        if isinstance(self.replicas, GroupSide):
            # A killed member acknowledges nothing that its disk does not have.
            self.may_reach = lambda address: False
            self.replicas.runner.member = None
            self.end_member_links()
        self._disk.cut()
        self.drop_connections()
        self.registration._caller = _NobodyCalls()
        await self._caller.close()
        await self.stop()

    # Checks of the gate before it serves a request.

    def _make_intake(self) -> Intake:
        parts = (self.router, self.kinds, self._deriving, self._acknowledgements)
        return _FaultyIntake(self, *parts, self._flushes, self.store, self.changes)

    def end_tick(self) -> None:
        dropped, self._to_drop = self._to_drop, []
        for peer in dropped:
            peer.abort("answer_lost_by_the_test")

    @property
    def meddles(self) -> bool:
        return self._refusal is not None or self._lost_answer_count > 0

    def is_refused(self, peer: Connection, frame: Frame | Item) -> bool:
        send = _send_of(frame)
        if send is None:
            return False
        opaque, flag = send
        if self._refusal is not None and self._refusal.take():
            if not flag & FLAG_ONE_WAY:
                peer.answer(opaque, Response(self._refusal.code, self._refusal.remark))
            return True
        if self._lost_answer_count > 0:
            self._lost_answer_count -= 1
            self._to_drop.append(peer)
        return False

    def make_late(self, peer: Connection) -> None:
        transport = peer._transport
        if transport is not None and not isinstance(transport, _LateTransport):
            late = _LateTransport(transport, lambda: self.answer_delay_s)
            peer._transport = cast(asyncio.Transport, late)


class _FaultyIntake(Intake):
    """The gate of a faulty broker."""

    def __init__(self, broker: FaultyBroker, *parts: Any) -> None:
        super().__init__(*parts)
        self._broker = broker

    def take(self, peer: Connection, data: bytes) -> int:
        broker = self._broker
        return 0 if broker.is_dead or broker.meddles else super().take(peer, data)

    def take_runs(self, arrived: list[Arrived], at: int) -> int:
        return at if self._broker.meddles else super().take_runs(arrived, at)

    def take_before_tick(self, peer: Connection, frames: Frames) -> Frames:
        broker = self._broker
        return (
            frames if broker.is_dead or broker.meddles else super().take_before_tick(peer, frames)
        )

    def received(self, peer: Connection, frames: Frames, until_s: float) -> int:
        broker = self._broker
        if broker.is_dead:
            return len(frames)
        if not broker.meddles:
            return super().received(peer, frames, until_s)
        wanted = [frame for frame in frames if not broker.is_refused(peer, frame)]
        if wanted:
            super().received(peer, wanted, math.inf)
        return len(frames)

    def end_of_tick(self) -> None:
        super().end_of_tick()
        self._broker.end_tick()

    def connection_opened(self, peer: Connection) -> None:
        super().connection_opened(peer)
        if self._broker.is_dead:
            peer.abort("dead")
        elif self._broker.answer_delay_s:
            self._broker.make_late(peer)


def _send_of(frame: Frame | Item) -> tuple[int, int] | None:
    """A send's number and flag; None for any other request."""
    if isinstance(frame, Request):
        return (frame.opaque, frame.flag) if frame.code in _SENDS else None
    if len(frame) == _SEND_LENGTH:
        opaque, flag = frame[:2]
        return opaque, flag
    return None


class _NobodyCalls(Caller):
    """A dead broker's caller of NameServers."""

    async def connection_to(self, address: str) -> Connection:
        raise CallFailed(f"{address} is not called: this broker was killed by the test")


class _CuttableCaller(Caller):
    """A slave's caller for questions to its master; none passes while it is cut off."""

    def __init__(self, broker: FaultyBroker, caller: Caller) -> None:
        super().__init__(credentials=caller.credentials)
        self._broker = broker
        self._caller = caller

    async def connection_to(self, address: str) -> Connection:
        self._broker.require_way_to(address)
        return await self._caller.connection_to(address)


class _LateTransport:
    """Writes answers in order, each after the delay that held when it was made."""

    def __init__(self, transport: asyncio.Transport, delay_s: Callable[[], float]) -> None:
        self._transport = transport
        self._delay_s = delay_s
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes | memoryview) -> None:
        # A copy: the viewed buffer may be reused by then.
        copy = bytes(data)
        self._later(lambda: self._transport.write(copy))

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self._later(self._transport.close)

    def _later(self, act: Callable[[], None]) -> None:
        delay_s = self._delay_s()
        if delay_s <= 0 and not self._waiting:
            act()
            return
        self._waiting.append(act)
        self._loop.call_later(delay_s, self._act)

    def _act(self) -> None:
        act = self._waiting.popleft()
        if not self._transport.is_closing():
            act()


class CuttableDisk(FileSystem):
    """The file system until it is cut off: later writes are dropped, as after a kill."""

    def __init__(self) -> None:
        self._is_cut = False

    def cut(self) -> None:
        self._is_cut = True

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return len(data) if self._is_cut else super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        if not self._is_cut:
            super().fdatasync(fd)

    def fsync(self, fd: int) -> None:
        if not self._is_cut:
            super().fsync(fd)

    def truncate(self, fd: int, byte_count: int) -> None:
        if not self._is_cut:
            super().truncate(fd, byte_count)

    def allocate(self, fd: int, byte_count: int) -> None:
        if not self._is_cut:
            super().allocate(fd, byte_count)

    def rename(self, source: Path, target: Path) -> None:
        if not self._is_cut:
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if not self._is_cut:
            super().unlink(path)
