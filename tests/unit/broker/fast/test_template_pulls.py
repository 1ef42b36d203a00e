"""Templates of pulls: how many are kept, and what becomes of those that were known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from contrail.broker.fast import known_pulls
from contrail.broker.fast.known_pulls import KnownPulls
from contrail.broker.fast.template_pulls import TemplatePulls
from contrail.kernels.frame_scan import Item
from contrail.wire.limits import Limits
from contrail.wire.server import Server
from tests.unit.broker.fast.pull_room import pull


def started(at: int) -> Item:
    """A pull of a consumer that was started at that time."""
    return pull(7, subVersion=str(at))


def test_more_templates_than_are_kept_harm_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_pulls, "_PATTERNS_MAX", 3)
    admission = SimpleNamespace(watch=lambda forget: None)
    offsets = SimpleNamespace(pending_resets={}, read_on=None)
    stats = SimpleNamespace(unsettled_gets=[])
    parts: list[Any] = [None, admission, None, offsets, stats, None, None, None]
    kept = KnownPulls(*parts)
    nobody: Any = None
    pulls: Any = SimpleNamespace(known=kept)
    templates = TemplatePulls(pulls, nobody, cast(Server, SimpleNamespace(limits=Limits())), nobody)
    known = []
    for number in range(7):
        item = started(number)
        known.append(SimpleNamespace(queue=(b"orders", 0), is_filtered=False))
        kept.known_pulls[item[3:5]] = known[-1]  # type: ignore[assignment]
        templates.learn([item])
        assert not templates.is_missing
    # All are still known; the ones that were not asked for lately are learned when they come again.
    assert list(kept.known_pulls.values()) == known
    assert len(kept._patterns) <= 3


def test_one_who_waits_with_too_much_already_is_looked_at() -> None:
    limits = Limits(in_flight_count_max=2)
    held: list[Item] = []
    pulls: Any = SimpleNamespace(known=None, hold=lambda item, peer: held.append(item) or True)
    server = cast(Server, SimpleNamespace(limits=limits, times=None))
    peer: Any = SimpleNamespace(in_flight_count=1)
    templates = TemplatePulls(pulls, peer, server, cast(Any, None))
    assert templates._hold(started(0))
    peer.in_flight_count = 2
    assert not templates._hold(started(0))
    assert len(held) == 1
