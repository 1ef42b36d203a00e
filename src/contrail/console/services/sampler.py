"""Asks the cluster every 10 s, whether many pages are open or none, and notes the history.

One request to each Contrail broker, few to each of Apache's; pages are answered from the last
sample. A change is never planned from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contrail.client.admin import Admin
from contrail.clock import Clock
from contrail.console.state.absent import AbsentBrokers
from contrail.console.state.series import SeriesTable
from contrail.errors import ClientError
from contrail.insight.brokers import broker_rows
from contrail.insight.lists import GroupRow, TopicRow, group_rows, queue_lags, topic_rows
from contrail.insight.looks import ClusterLook, look
from contrail.protocol.bodies.figures import Figures

_log = logging.getLogger(__name__)

# The busiest topics and the groups that are furthest behind have a history each.
_WATCHED_MAX = 4_000
# Groups of which each queue has a history: those that are looked at, and the furthest behind.
_HEATED_MAX = 50
_LOOKED_AT_MAX = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """A cluster at one moment; ``partial`` has the error of each broker that did not answer."""

    sampled_ms: int = 0
    name_servers: tuple[str, ...] = ()
    groups: list[GroupRow] = field(default_factory=list)
    topics: list[TopicRow] = field(default_factory=list)
    brokers: list[dict[str, Any]] = field(default_factory=list)
    partial: Mapping[str, str] = field(default_factory=dict)
    timers: int | None = None
    halves: int | None = None
    queue_lags: Mapping[tuple[str, str, str, int], int] = field(default_factory=dict)
    # Why there is no sample at all: no NameServer answers.
    error: str | None = None


class Sampler:
    """Owns the admin client's questions that repeat."""

    def __init__(self, admin: Admin, clock: Clock, *, interval_s: float) -> None:
        self.sample = Sample(error="the first sample is not there yet")
        self.series = SeriesTable()
        self._admin = admin
        self._clock = clock
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._absent = AbsentBrokers()
        self._looked_at: dict[str, None] = {}

    def look_at(self, group: str) -> None:
        """Keep a history of each queue of a group, as one of the hundred looked at last."""
        self._looked_at.pop(group, None)
        self._looked_at[group] = None
        if len(self._looked_at) > _LOOKED_AT_MAX:
            del self._looked_at[next(iter(self._looked_at))]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console-sampler")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def after(self, sampled_ms: int) -> Sample:
        """The first sample that is newer."""
        async with self._news:
            await self._news.wait_for(lambda: self.sample.sampled_ms > sampled_ms)
            return self.sample

    async def take(self) -> None:
        """Take one sample now."""
        now_ms = self._clock.now_ms()
        try:
            sample = await self._asked(now_ms)
        except ClientError as error:
            sample = Sample(now_ms, tuple(self._admin.name_servers), error=str(error))
        self.series.note(_noted(sample), now_ms)
        await self.publish(sample)

    async def publish(self, sample: Sample) -> None:
        """Answer pages from this sample from now on, and wake the streams."""
        async with self._news:
            self.sample = sample
            self._news.notify_all()

    async def _asked(self, now_ms: int) -> Sample:
        brokers = await self._admin.brokers()
        info, seen = await asyncio.gather(self._admin.cluster_info(), look(self._admin))
        rows = await broker_rows(self._admin, brokers, now_ms)
        failed = self._absent.registered({one.broker_name for one in brokers}, now_ms)
        failed |= {name: str(error) for name, error in seen.failed.items()}
        for row in rows:
            if row["error"] is not None:
                failed.setdefault(row["broker"], row["error"])
        groups = group_rows(seen)
        behind = sorted((one for one in groups if one.lag), key=lambda one: -one.lag)
        heated = {one.group for one in behind[:_HEATED_MAX]} | set(self._looked_at)
        return Sample(
            now_ms,
            tuple(self._admin.name_servers),
            groups=groups,
            queue_lags=queue_lags(seen, heated),
            topics=topic_rows(seen, frozenset(info.clusters)),
            brokers=rows,
            partial=failed,
            timers=_told(seen, lambda one: one.timers),
            halves=_told(seen, lambda one: one.halves),
        )

    async def _run(self) -> None:
        while True:
            begun_s = asyncio.get_running_loop().time()
            try:
                await self.take()
            except Exception:
                # An answer that breaks this code must not end the samples of all other pages.
                _log.exception("a sample could not be taken")
            spent_s = asyncio.get_running_loop().time() - begun_s
            # A cluster that answers slowly is not asked without a pause.
            await asyncio.sleep(max(self._interval_s - spent_s, self._interval_s / 4))


def _told(seen: ClusterLook, of: Callable[[Figures], int]) -> int | None:
    """A sum over the brokers; None if one of them does not tell it."""
    if seen.tables_only or not seen.figures:
        return None
    return sum(map(of, seen.figures.values()))


def _noted(sample: Sample) -> dict[str, float | None]:
    rates = totals_of(sample)
    groups = sorted(sample.groups, key=lambda row: -row.lag)[:_WATCHED_MAX]
    topics = [one for one in sample.topics if one.put_per_second is not None]
    topics = sorted(topics, key=lambda row: -(row.put_per_second or 0.0))[:_WATCHED_MAX]
    return {
        **{queue_series(*key): float(lag) for key, lag in sample.queue_lags.items()},
        **{f"group:{row.group}": float(row.lag) for row in groups},
        **{f"topic:{row.topic}": row.put_per_second for row in topics},
        # Last, so that they are never the ones that make room.
        **{name: rates[name] for name in ("in", "out", "lag")},
    }


def queue_series(group: str, topic: str, broker: str, queue_id: int) -> str:
    return f"queue:{group} {topic} {broker} {queue_id}"


def totals_of(sample: Sample) -> dict[str, float | None]:
    """Rates and lag of the cluster; None while no broker has told them."""
    masters = [row for row in sample.brokers if row["error"] is None and row["broker_id"] == 0]
    if not masters:
        return {"in": None, "out": None, "lag": None}
    return {
        "in": sum(row["put_per_second"] for row in masters),
        "out": sum(row["get_per_second"] for row in masters),
        "lag": float(sum(row.lag for row in sample.groups)),
    }
