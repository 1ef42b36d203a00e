"""Clusters of ours whose brokers take different ways: fast, and general.

Every topic of these suites has queues on all brokers of its cluster, so that a test that passes has
sent and pulled both ways. ``CONTRAIL_FAST_PATH`` names one way for all brokers instead: ``on`` in
the parts ``clients`` and ``scenarios`` of `make test-all`, ``off`` in ``general``.
"""

from __future__ import annotations

import os
from typing import Final

from contrail.testing import LocalCluster
from contrail.testing.cluster import FAST_PATH_VARIABLE

# None when each broker takes a way of its own.
WAY_OF_ALL: Final = os.environ.get(FAST_PATH_VARIABLE)
FAST_PATH = "contrailFastPath"


def general_at_last(cluster: LocalCluster) -> LocalCluster:
    """Leave the fast path off at the last of several brokers; to be told before the start."""
    if WAY_OF_ALL is None and len(cluster.brokers) > 1:
        cluster.brokers[-1].own_properties[FAST_PATH] = "off"
    return cluster
