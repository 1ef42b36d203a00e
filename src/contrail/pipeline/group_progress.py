"""A stream's progress as consumer offsets of a group, for monitors of lag."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError
from contrail.pipeline.cluster import ClusterView, client_settings
from contrail.pipeline.offsets import QueueKey
from contrail.pipeline.options import ClusterSettings

log = logging.getLogger(__name__)


class GroupProgress:
    """Publishes a stream's progress as consumer offsets of a group, and creates the group."""

    def __init__(self, cluster: ClusterSettings, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._known_at: set[str] = set()
        self._published: dict[QueueKey, int] = {}

    def publish(self, view: ClusterView, offsets: Mapping[QueueKey, int]) -> None:
        """Commit the offsets that have moved."""
        missing = {key.broker_name for key in offsets} - self._known_at
        if missing:
            self._make(missing)
        told = {
            key: at
            for key, at in offsets.items()
            if key.broker_name in self._known_at and self._published.get(key) != at
        }
        self._published |= {key: told[key] for key in view.publish(self._group, told)}

    def _make(self, brokers: set[str]) -> None:
        """Create the group at these brokers, which refuse offsets of an unknown group."""
        client = client_settings(self._cluster)
        with Admin(client.namesrv, tls=client.tls, credentials=client.credentials) as admin:
            found = admin.group_configs(allow_partial=True)
            for broker in sorted(brokers):
                try:
                    if self._group not in found.get(broker, {}):
                        admin.create_group(self._group, broker=broker)
                    self._known_at.add(broker)
                except ClientError as error:
                    # The broker is away, or refuses to create groups; the next commit tries again.
                    log.warning("the progress is not published at %s: %s", broker, error)
