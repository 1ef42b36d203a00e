"""The clusters that every scenario runs on: ours, Apache RocketMQ 5.x and 4.9."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contrail.testing import LocalCluster
from tests.interop.apache_cluster import ApacheCluster
from tests.interop.ways import WAY_OF_ALL, general_at_last

OURS, OLD = "contrail", "apache-4"
# Without the fast path only ours is another.
KINDS = [OURS] if WAY_OF_ALL == "off" else [OURS, "apache-5", OLD]
SEGMENT_BYTES = 8 << 20

# Seconds instead of minutes; the first retry of a message has level 3. Nobody is asked about a
# transaction whose end is only on its way.
_PROPERTIES = {
    "messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s 1s",
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "cleanResourceInterval": "1000",
}


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """The cluster's address and kind."""

    kind: str
    namesrv: str

    @property
    def is_old(self) -> bool:
        """Brokers before 5.0 have neither timers nor recall."""
        return self.kind == OLD


@contextmanager
def open_cluster(
    kind: str, folder: Path, *, brokers: int = 2, **settings: str
) -> Iterator[RunningCluster]:
    """A cluster of that kind, stopped at the end; skips where it cannot be had."""
    properties = _PROPERTIES | settings
    if kind == OURS:
        cluster = LocalCluster(
            brokers=brokers, in_children=True, folder=folder, properties=properties
        )
        with general_at_last(cluster) as ours:
            yield RunningCluster(kind, ours.namesrv)
    else:
        with ApacheCluster(
            # Each is a JVM; one is enough to hear the old dialect.
            brokers=1 if kind == OLD else brokers,
            folder=folder,
            properties=properties,
            peer=f"{kind}-server",
        ) as apache:
            yield RunningCluster(kind, apache.namesrv)
