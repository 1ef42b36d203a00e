"""A real cluster for tests: NameServers and brokers on free loopback ports."""

from contrail.testing.caller import BlockingCaller
from contrail.testing.cluster import LocalBroker, LocalCluster, LocalNameServer

__all__ = ["BlockingCaller", "LocalBroker", "LocalCluster", "LocalNameServer"]
