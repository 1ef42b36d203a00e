"""A stream's progress as consumer offsets of a group: while it runs, and when it has ended.

Spark tells a source of the end of a batch when it plans the next one, so that the last batch of a
query is never told of. A program that wants the group to stand where the query ended commits that
itself, from the query's progress.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from contrail.client.blocking.admin import Admin
from contrail.errors import ClientError, OptionInvalid, PipelineError
from contrail.pipeline.cluster import ClusterView, client_settings
from contrail.pipeline.offsets import OffsetJson, QueueKey, from_json, queue_name, to_json
from contrail.pipeline.options import ClusterSettings, SourceSettings

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)


class GroupProgress:
    """Publishes a stream's progress as consumer offsets of a group, and creates the group."""

    def __init__(self, cluster: ClusterSettings, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._known_at: set[str] = set()
        self._published: dict[QueueKey, int] = {}

    def publish(self, view: ClusterView, offsets: Mapping[QueueKey, int]) -> set[QueueKey]:
        """Commit what has moved; returns the queues on which the group now stands so."""
        missing = {key.broker_name for key in offsets} - self._known_at
        if missing:
            self._make(missing)
        told = {
            key: at
            for key, at in offsets.items()
            if key.broker_name in self._known_at and self._published.get(key) != at
        }
        self._published |= {key: told[key] for key in view.publish(self._group, told)}
        return {key for key, at in offsets.items() if self._published.get(key) == at}

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


def commit_as_group(
    query: StreamingQuery, *, namesrv: str, group: str, **options: str
) -> OffsetJson:
    """Commit where a query has ended as the offsets of a group; returns the committed offsets.

    Only finished batches count. ``options`` are those that reach the cluster, such as TLS.

    Raises:
        OptionInvalid: the query runs, or has not read a topic.
        PipelineError: a broker did not take an offset.
    """
    if query.isActive:
        raise OptionInvalid("the query is running: commit as a group when it has ended")
    ends = _ends_of(query)
    topics = ",".join(sorted({key.topic for key in ends}))
    given = {**options, "namesrvAddr": namesrv, "subscribe": topics}
    settings = SourceSettings.of(given, streaming=True)
    with closing(ClusterView(settings)) as view:
        missing = set(ends) - GroupProgress(settings.cluster, group).publish(view, ends)
    if missing:
        names = ", ".join(queue_name(key) for key in sorted(missing)[:3])
        raise PipelineError(
            f"group {group!r} does not stand where the query ended on {len(missing)} of "
            f"{len(ends)} queues, such as {names}: see the warnings before this"
        )
    return to_json(ends)


def _ends_of(query: StreamingQuery) -> dict[QueueKey, int]:
    """The offsets at which the last finished batch of a query ended."""
    last = query.lastProgress
    ends: dict[QueueKey, int] = {}
    for source in last["sources"] if last is not None else ():
        ends |= _offsets_of(source["endOffset"])
    if not ends:
        raise OptionInvalid("the query has finished no batch of format('rocketmq') to commit")
    return ends


def _offsets_of(text: str) -> dict[QueueKey, int]:
    """The offsets of a source of ours; empty for others, of which Spark tells no name."""
    try:
        return from_json(json.loads(text))
    except (AttributeError, OptionInvalid, TypeError, ValueError):
        return {}
