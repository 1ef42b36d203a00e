"""Brokers of fixed roles: alone, master, slave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.pair_side import AloneSide, MasterOfPair, SlaveOfPair
from contrail.broker.replica_side import SideNeed
from contrail.broker.replica_wiring import replica_side
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.acknowledgements import Acknowledgements, FlushNews
from contrail.clock import ManualClock
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.files import FileSystem
from contrail.store import StoreConfig
from tests.fakes.peers import FakePeer

SLAVE_ID = 2
MASTER = BrokerConfig(role=BrokerRole.SYNC_MASTER)
SLAVE = BrokerConfig(role=BrokerRole.SLAVE, broker_id=SLAVE_ID)


class Broker:
    """The parts of a broker that a side asks; nothing is started."""

    def __init__(self, tmp_path: Path, config: BrokerConfig, *, compat: bool = True) -> None:
        self.clock = ManualClock()
        self.held = Acknowledgements(self.clock, waits=True, disk_timeout_ms=1000)
        self.flushes = FlushNews()
        self.settings = SimpleNamespace(config=config)
        self.tick_count = 0
        tables = SimpleNamespace(
            topics=SimpleNamespace(table={}),
            groups=SimpleNamespace(table={}),
            consumer_offsets=None,
            settings=self.settings,
            request_modes=SimpleNamespace(body=lambda: b"{}"),
        )
        # Links are made, and none is opened: they ask the store for its sizes only.
        store = MagicMock(physical_end=0, segment_bytes=1 << 20)
        self.need = SideNeed(
            config=config,
            replication=ReplicationConfig(compat=compat),
            store=store,
            store_config=StoreConfig(root=tmp_path),
            clock=self.clock,
            address="127.0.0.1:10911",
            ha_address="127.0.0.1:10912",
            ha_port=10912,
            tls_files=None,
            tables=cast(Any, tables),
            kinds=cast(Any, SimpleNamespace(delays=None, timers=None)),
            deliveries=cast(Any, None),
            dedupe=cast(Any, None),
            caller=cast(Any, None),
            registration=cast(Any, None),
            acknowledgements=self.held,
            flushes=self.flushes,
            tick=self.tick,
            loop=cast(Any, SimpleNamespace(call_soon=lambda call: call())),
            derive=lambda: None,
            derive_soon=lambda: None,
            fail=lambda: None,
            files=FileSystem(),
        )

    def tick(self) -> None:
        self.tick_count += 1


def test_a_broker_without_peers_redirects_nobody_and_refuses_nothing(tmp_path: Path) -> None:
    side = replica_side(Broker(tmp_path, BrokerConfig(), compat=False).need)
    assert type(side) is AloneSide
    assert side.redirect is None
    assert side.gated({1: _served}) == {1: _served}
    assert side.status() is None
    assert not side.wants_flushes
    assert not side.lacks_slaves()


def test_a_master_without_slaves_answers_held_sends_with_the_next_tick(tmp_path: Path) -> None:
    broker = Broker(tmp_path, MASTER)
    side = replica_side(broker.need)
    assert isinstance(side, MasterOfPair)
    assert side.lacks_slaves()
    broker.held.hold(100, [], lambda code: None)
    assert broker.flushes.is_noted
    assert broker.tick_count == 1


def test_a_slave_refuses_sends_and_keeps_readers_while_no_master_is_there(tmp_path: Path) -> None:
    broker = Broker(tmp_path, SLAVE)
    side = replica_side(broker.need)
    assert isinstance(side, SlaveOfPair)
    handlers = side.gated({int(RequestCode.SEND_MESSAGE_V2): _served})
    with pytest.raises(RequestRejected, match="slave"):
        handlers[RequestCode.SEND_MESSAGE_V2](
            Request(RequestCode.SEND_MESSAGE_V2, 1, {}), FakePeer()
        )
    assert side.redirect is not None
    assert side.redirect("group", ResponseCode.SUCCESS, False).broker_id == SLAVE_ID


def _served(request: Request, peer: object) -> Response:
    return Response()
