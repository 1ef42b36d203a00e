"""Shared by every end-to-end test: patience that a stalled machine cannot use up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contrail.client.admin_asking import AdminAsking
from contrail.client.blocking.admin import Admin
from contrail.client.producer_settings import ProducerSettings
from contrail.client.settings import ClientSettings
from contrail.testing import BlockingCaller

PATIENCE_MS = 60_000
# The functions with a default timeout that tests rely on.
_DEFAULTS: tuple[tuple[Any, str], ...] = (
    (ProducerSettings.__init__, "send_timeout_ms"),
    (ClientSettings.__init__, "api_timeout_ms"),
    (AdminAsking.__init__, "timeout_ms"),
    (Admin.__init__, "timeout_ms"),
    (BlockingCaller.call, "timeout_ms"),
)


@pytest.fixture(scope="module", params=["on", "off"])
def fast_path(request: pytest.FixtureRequest) -> str:
    """Whether brokers may take shortcuts: a test that asks for it runs both ways."""
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def _patient_clients() -> Iterator[None]:
    """Timeouts that a test does not give are not what it is about.

    Three seconds are right for an application. Here both ends share a machine that stands still
    for longer at times: a send would fail, or be stored twice. Tests of timeouts name theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        for function, name in _DEFAULTS:
            assert name in function.__kwdefaults__
            patch.setitem(function.__kwdefaults__, name, PATIENCE_MS)
        yield
