"""The fast path put together: what its ways share, and which there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contrail.broker.fast.path import FastNeed, FastPath, fast_path
from tests.unit.broker.fast.pull_room import PullRoom, pull
from tests.unit.broker.fast.send_room import SendRoom, bodies, rows, sends, told


class Setting:
    """The ways over the papers of both rooms."""

    def __init__(self, *, is_on: bool = True, is_watched: bool = False) -> None:
        self.room = SendRoom(is_watched=is_watched)
        self.pull_room = PullRoom()
        self.served: list[int] = []
        self.held: Any = SimpleNamespace(answer_fast=None, parked=[])
        handler: Any = SimpleNamespace(
            held=self.held,
            cold_reads=self.pull_room.cold_reads,
            read=None,
            log_fits_memory=False,
        )
        self.room.settings.config.parked_pulls_max = 0
        deriving: Any = SimpleNamespace(after_tick=lambda: None, is_behind=False)
        store: Any = self.room.store
        stats: Any = self.room.stats
        stats.unsettled_gets = []
        need = FastNeed(
            settings=self.room.settings,
            store=store,
            stats=stats,
            server=self.room.server,
            router=self.room.router,
            deriving=deriving,
            acknowledgements=self.room.acknowledgements,
            consumer_offsets=self.pull_room.offsets,
            ways=self.room.ways,
            is_watched=is_watched,
        )
        admission: Any = SimpleNamespace(watch=lambda forget: None, verdict=lambda request: None)
        self.fast: FastPath = fast_path(
            need,
            self.room.handler,
            self.room.admission,
            handler,
            admission,
            is_on=is_on,
            guards=self.room.guards,
            serve=lambda peer, request: self.served.append(request.opaque),
        )


def test_tickless_sends_and_the_tick_append_to_the_same_log() -> None:
    setting = Setting()
    peer, transport = setting.room.connected()
    assert setting.fast.tickless is not None
    setting.fast.tickless.take(peer, sends(0, 2))
    setting.fast.sends.take_runs([(peer, rows(2, 4), True)], 0, 1, 0.0)
    setting.fast.sends.append_run()
    assert setting.room.store.appended == [("rows", bodies(0, 2)), ("rows", bodies(2, 4))]
    assert told(peer, transport) == [(number, 0) for number in range(4)]
    assert setting.room.ways.send_tickless == setting.room.ways.send_rows == 2


def test_no_send_is_tickless_when_every_message_is_told_of() -> None:
    setting = Setting(is_watched=True)
    peer, _ = setting.room.connected()
    assert setting.fast.tickless is None
    assert setting.fast.sends.take_runs([(peer, rows(0, 2), True)], 0, 1, 0.0) == 0


def test_pulls_without_a_form_are_served_the_general_way() -> None:
    setting = Setting()
    peer, _ = setting.room.connected()
    left = setting.fast.pulls.take_before_tick(peer, [pull(1), pull(2)])
    assert left == [] and setting.served == [1, 2]


def test_the_fast_pulls_answer_for_the_held_ones_and_know_the_log() -> None:
    setting = Setting()
    assert setting.held.answer_fast is not None
    assert not setting.fast.pulls.forms.log_fits_memory


@pytest.mark.parametrize("is_on", [True, False])
def test_whether_it_is_on_is_told_to_the_gate(is_on: bool) -> None:
    assert Setting(is_on=is_on).fast.is_on is is_on
