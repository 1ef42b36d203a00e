"""Routes that reads of many slices share for a moment."""

from __future__ import annotations

import pytest

from contrail.client import raw_pulls
from contrail.client.raw_pulls import RecentRoutes
from contrail.client.settings import ClientSettings
from contrail.protocol.bodies.routes import TopicRouteData

HERE, THERE = ClientSettings.of("127.0.0.1:9876"), ClientSettings.of("127.0.0.1:9877")
ROUTE = TopicRouteData((), ())


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    times = [10_000]
    monkeypatch.setattr(raw_pulls, "monotonic_ms", lambda: times[0])
    return times


def test_a_route_is_used_again_for_two_seconds_in_its_own_cluster(now: list[int]) -> None:
    routes = RecentRoutes()
    routes.put(HERE, "orders", ROUTE)
    now[0] += 2_000
    assert routes.get(HERE, "orders") is ROUTE
    assert routes.get(THERE, "orders") is routes.get(HERE, "bills") is None
    now[0] += 1
    assert routes.get(HERE, "orders") is None


def test_remembered_routes_are_bounded(now: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_pulls, "_ROUTES_MAX", 2)
    routes = RecentRoutes()
    for topic in ("a", "b", "c"):
        routes.put(HERE, topic, ROUTE)
    assert [routes.get(HERE, topic) for topic in ("a", "b", "c")] == [None, None, ROUTE]
