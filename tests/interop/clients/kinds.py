"""A cluster whose clock is in the test's hand, for messages that wait for their time.

Clients keep the machine's time. With ``CONTRAIL_INTEROP_TARGET=apache`` the clock cannot be moved:
there the waiting times are set to seconds, and tests wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from contrail.clock import Clock, SharedClock, SystemClock
from contrail.testing import eventually
from tests.interop.clients.target import Broker, Cluster

ON_APACHE = os.environ.get("CONTRAIL_INTEROP_TARGET") == "apache"

_DELAYS_S = [1, 5, 10, 30, 60, 120, 180]
_APACHE_DELAYS_S = [1, 2, 3, 2, 1, 1, 1]
_APACHE_PROPERTIES = {
    "messageDelayLevel": " ".join(f"{delay_s}s" for delay_s in _APACHE_DELAYS_S),
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "2000",
    "transactionOpBatchInterval": "100",
    "recallMessageEnable": "true",
}
_PATIENCE_S = 120.0
_POLL_S = 0.05
_STEP_MS = 1000


class Kinds:
    """Brokers, and the time as they see it."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    @property
    def namesrv(self) -> str:
        return self._cluster.namesrv

    @property
    def brokers(self) -> Sequence[Broker]:
        return self._cluster.brokers

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def advance(self, ms: int) -> None:
        """Move the brokers' clock; the original's cannot be moved, and stays."""
        if isinstance(self._clock, SharedClock):
            self._clock.advance(ms=ms)

    def let_pass(self, ms: int) -> None:
        """Let that time go by for the brokers: by moving the clock where that can be done."""
        if isinstance(self._clock, SharedClock):
            self.advance(ms)
        else:
            time.sleep(ms / 1000)

    def delay_ms(self, level: int) -> int:
        """How long a message of that delay level waits."""
        delays_s = _APACHE_DELAYS_S if ON_APACHE else _DELAYS_S
        return 1000 * delays_s[level - 1]

    def wait_for(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        step_ms: int = _STEP_MS,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Move the clock step by step until the condition holds; a step of 0 leaves it alone."""

        def moved() -> bool:
            if condition():
                return True
            self.advance(step_ms)
            return False

        eventually(moved, what, timeout_s=patience_s, pause_s=_POLL_S)


@contextmanager
def open_kinds(
    folder: Path, *, brokers: int = 2, properties: Mapping[str, str] | None = None
) -> Iterator[Kinds]:
    """A NameServer and brokers, each a process of its own, that share one clock."""
    settings = dict(properties or {})
    if ON_APACHE:
        from tests.interop.apache_cluster import ApacheCluster

        settings = _APACHE_PROPERTIES | settings
        with ApacheCluster(brokers=brokers, folder=folder, properties=settings) as apache:
            yield Kinds(apache, SystemClock())
        return
    from contrail.testing import LocalCluster
    from tests.interop.ways import general_at_last

    folder.mkdir(parents=True, exist_ok=True)
    clock = SharedClock(folder / "clock")
    cluster = LocalCluster(
        brokers=brokers, in_children=True, folder=folder, clock=clock, properties=settings
    )
    with general_at_last(cluster) as ours:
        yield Kinds(ours, clock)
