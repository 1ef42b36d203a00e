"""The settings, plan and rules of a migration. Uses no Spark."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrail.client.blocking.admin import Admin
from contrail.errors import NotThere, OptionInvalid, RouteMissing, SinkRefused
from contrail.pipeline.jobs.targets import (
    check_target,
    offers_idempotence,
    require_readable,
    require_topic,
)
from contrail.pipeline.options import CLUSTER_OPTIONS
from contrail.protocol.json_style import MessageQueue

ORIGIN_PROPERTY = "CONTRAIL_ORIGIN"
ORIGIN_BORN_PROPERTY = "CONTRAIL_ORIGIN_BORN_MS"
# The property that names the migration of a copy: several may have the same target.
MIGRATION_PROPERTY = "CONTRAIL_MIGRATION"
KEY_AUTO = "auto"
KEY_KEYS = "keys"
KEY_SHARDING = "sharding-key"
_QUEUES_NAMED_MAX = 10
_IDEMPOTENCE = "idempotence"
_DEDUPE, _NONE = _MODES = ("dedupe", "none")


@dataclass(frozen=True, kw_only=True)
class MigrateSettings:
    """A migration. ``key`` is ``auto``, ``sharding-key``, ``keys`` or a property's name."""

    namesrv: str
    topic: str
    to_topic: str
    checkpoint: str
    # None: the same cluster.
    to_namesrv: str | None = None
    # Queues on each broker, for a target that does not exist yet.
    queues: int | None = None
    key: str = KEY_AUTO
    # None: every group that has offsets on the topic.
    groups: tuple[str, ...] | None = None
    follow: bool = False
    # While following: cut over once there was nothing left to copy for this long.
    cut_over_after_s: float | None = None
    # While following: cut over once this file exists.
    cut_over_file: str | None = None
    rows_per_batch: int = 200_000
    # Options of both clusters, such as TLS; and ``idempotence``. May hold a password.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    dry_run: bool = False

    @property
    def target_namesrv(self) -> str:
        return self.to_namesrv or self.namesrv

    @property
    def cluster_options(self) -> dict[str, str]:
        """The options of both clusters, without their addresses."""
        return {name: value for name, value in self.options.items() if name.lower() != _IDEMPOTENCE}

    @property
    def idempotence(self) -> str | None:
        """None: the best that the target's brokers can do."""
        given = [value for name, value in self.options.items() if name.lower() == _IDEMPOTENCE]
        return given[0] if given else None

    def fixed(self) -> dict[str, object]:
        """The settings that a resumed run may not change."""
        return {
            "topic": self.topic,
            "to_topic": self.to_topic,
            "to_namesrv": self.to_namesrv,
            "key": self.key,
        }

    def check(self) -> None:
        """Refuse contradicting settings.

        Raises:
            OptionInvalid: the text names the setting and a remedy.
        """
        if self.topic == self.to_topic and self.to_namesrv in (None, self.namesrv):
            raise OptionInvalid(
                f"topic {self.topic!r} cannot be migrated to itself: name another topic, or "
                "another cluster with to_namesrv"
            )
        if not self.follow and (self.cut_over_after_s is not None or self.cut_over_file):
            raise OptionInvalid("a cut-over is for a migration that follows: add follow")
        if not self.key.strip():
            raise OptionInvalid(
                f"key is {self.key!r}: it is {KEY_AUTO}, {KEY_SHARDING}, {KEY_KEYS} or the name of "
                "a property"
            )
        if self.rows_per_batch < 1:
            raise OptionInvalid(f"rows_per_batch is {self.rows_per_batch}: it must be 1 or more")
        self._check_options()

    def _check_options(self) -> None:
        known = {name.lower(): name for name in CLUSTER_OPTIONS if name != "namesrvAddr"}
        for name in self.cluster_options:
            if name.lower() not in known:
                raise OptionInvalid(
                    f"option {name!r} is none of a migration: it takes {_IDEMPOTENCE}, "
                    f"{', '.join(known.values())}"
                )
        if self.idempotence not in (None, *_MODES):
            raise OptionInvalid(
                f"option {_IDEMPOTENCE} is {self.idempotence!r}: a migration takes "
                f"{' or '.join(_MODES)}"
            )


@dataclass(frozen=True)
class QueueRange:
    """One queue and its range of queue offsets."""

    broker_name: str
    queue_id: int
    queue_offset_min: int
    queue_offset_max: int

    @property
    def name(self) -> str:
        return f"{self.broker_name}:{self.queue_id}"

    @property
    def count(self) -> int:
        return self.queue_offset_max - self.queue_offset_min


@dataclass(frozen=True)
class MigratePlan:
    """Source and target queues of a migration; ``target`` is empty if it is not created yet."""

    source: tuple[QueueRange, ...]
    target: tuple[QueueRange, ...]
    groups: tuple[str, ...]

    @property
    def backlog(self) -> int:
        return sum(queue.count for queue in self.source)


def plan_migration(
    settings: MigrateSettings, source: Admin, target: Admin, notes: Mapping[str, Any]
) -> MigratePlan:
    """Look at both clusters; changes nothing. ``notes`` are the notes of earlier runs.

    Refuses all that a run would refuse, so that a dry run refuses it too.

    Raises:
        OptionInvalid: the source may not be read, or the target not be written or created; it
            is missing and the settings give no number of queues, or exists with another number.
        NotThere: a named group never consumed the topic.
        SinkRefused: the target's brokers do not have the wanted idempotence.
    """
    plan = MigratePlan(
        source=ranges(source, settings.topic),
        target=ranges_or_none(target, settings.to_topic),
        groups=chosen_groups(settings, source.topic_consumers(settings.topic)),
    )
    require_readable(source, queue_starts(settings.topic, plan.source))
    check_target(settings.to_topic, settings.queues, is_there=bool(plan.target))
    check_width(settings, plan.target)
    check_same_queues(settings, plan.target, notes.get("target_start"))
    if plan.target:
        require_topic(target, settings.to_topic)
    _check_idempotence(settings, target)
    return plan


def check_same_queues(
    settings: MigrateSettings, target: Iterable[QueueRange], noted: Mapping[str, int] | None
) -> None:
    """Refuse a target with other queues than at the beginning of the migration."""
    if noted is not None and noted.keys() != ends(target).keys():
        raise OptionInvalid(
            f"topic {settings.to_topic!r} has other queues than when this migration began, so "
            "keys would change their queue: give it back its old width, or begin anew with "
            "another topic and checkpoint"
        )


def _check_idempotence(settings: MigrateSettings, target: Admin) -> None:
    if settings.idempotence == _DEDUPE and not offers_idempotence(target):
        raise SinkRefused(
            f"{_IDEMPOTENCE}={_DEDUPE}: not every broker at {settings.target_namesrv} can tell "
            f"what was sent before, only Contrail's can: set {_IDEMPOTENCE}={_NONE}"
        )


def ranges(admin: Admin, topic: str) -> tuple[QueueRange, ...]:
    """Every queue of a topic with its present range, in order."""
    found = admin.topic_stats(topic).queues
    return tuple(
        QueueRange(
            one.queue.broker_name,
            one.queue.queue_id,
            max(0, one.queue_offset_min),
            max(0, one.queue_offset_min, one.queue_offset_max),
        )
        for one in sorted(found, key=lambda one: one.queue)
    )


def ranges_or_none(admin: Admin, topic: str) -> tuple[QueueRange, ...]:
    """As ``ranges``; empty for a topic that no broker has."""
    try:
        return ranges(admin, topic)
    except RouteMissing:
        return ()


def brokers_text(queues: Iterable[str]) -> list[str]:
    """Each broker, with how many of the queues it has."""
    return [f"{name}: {len(ids)} queues" for name, ids in sorted(_by_broker(queues).items())]


def away_text(noted: Iterable[str], now: Iterable[str], registered: Iterable[str]) -> str | None:
    """The brokers of a migration that are away, by their missing queues; None if none is."""
    missing = _by_broker(set(noted) - set(now))
    away = sorted(missing.keys() - set(registered))
    if not away:
        return None
    told = [
        f"broker {name}, which has queues {', '.join(map(str, missing[name]))} of this migration,"
        for name in away
    ]
    verb, pronoun = ("is", "it") if len(away) == 1 else ("are", "them")
    return f"{' and '.join(told)} {verb} away: start {pronoun}, then run again"


def _by_broker(queues: Iterable[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for name in queues:
        queue = queue_of("", name)
        found[queue.broker_name].append(queue.queue_id)
    return {name: sorted(ids) for name, ids in found.items()}


def chosen_groups(settings: MigrateSettings, known: Iterable[str]) -> tuple[str, ...]:
    """The groups whose offsets are mapped.

    Raises:
        NotThere: a named group has no offsets on the topic.
    """
    known = tuple(sorted(known))
    if settings.groups is None:
        return known
    unknown = sorted(set(settings.groups) - set(known))
    if unknown:
        raise NotThere(
            f"group {', '.join(unknown)} has no offsets on topic {settings.topic!r}; those that "
            f"have: {', '.join(known) or 'none'}"
        )
    return tuple(sorted(set(settings.groups)))


def check_width(settings: MigrateSettings, target: Iterable[QueueRange]) -> None:
    """Refuse a target with another number of queues than the settings say."""
    widths: dict[str, int] = {}
    for queue in target:
        widths[queue.broker_name] = widths.get(queue.broker_name, 0) + 1
    if settings.queues is not None and any(width != settings.queues for width in widths.values()):
        told = ", ".join(f"{width} on {name}" for name, width in sorted(widths.items()))
        raise OptionInvalid(
            f"topic {settings.to_topic!r} exists with other queues ({told}) than "
            f"{settings.queues}: leave queues out, or name a new topic"
        )


def starts(queues: Iterable[QueueRange]) -> dict[str, int]:
    """The first queue offset of each queue, by its name."""
    return {queue.name: queue.queue_offset_min for queue in queues}


def queue_starts(topic: str, queues: Iterable[QueueRange]) -> dict[MessageQueue, int]:
    """The first queue offset of each queue."""
    return {queue_of(topic, name): place for name, place in starts(queues).items()}


def ends(queues: Iterable[QueueRange]) -> dict[str, int]:
    """The end of each queue, by its name."""
    return {queue.name: queue.queue_offset_max for queue in queues}


def offsets_option(topic: str, places: Mapping[str, int]) -> str:
    """The value of ``startingOffsets`` and ``endingOffsets`` for one topic."""
    return json.dumps({topic: dict(sorted(places.items()))})


def queue_of(topic: str, name: str) -> MessageQueue:
    """The queue named ``broker:id``; a broker's name may have colons too."""
    broker_name, _, queue_id = name.rpartition(":")
    return MessageQueue(topic, broker_name, int(queue_id))


def committed_offsets(query_folder: Path, topic: str) -> dict[str, int] | None:
    """The offsets of a query's last finished batch, from its checkpoint; None without one.

    ``offsets/N`` holds a version line, a line of metadata and a line for each source; ``commits/N``
    exists once batch N is finished.
    """
    commits = [int(one.name) for one in _listed(query_folder / "commits")]
    if not commits:
        return None
    text = (query_folder / "offsets" / str(max(commits))).read_text(encoding="utf-8")
    places = json.loads(text.splitlines()[2]).get(topic, {})
    return {name: int(place) for name, place in places.items()}


def _listed(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.name.isdecimal()] if folder.is_dir() else []


class CutOver:
    """Decides when following ends: on request, by a file, or after a while without lag."""

    def __init__(self, after_s: float | None) -> None:
        self._after_s = after_s
        self._idle_since_s: float | None = None

    def is_due(self, lag: int | None, now_s: float, *, asked: bool) -> bool:
        """Whether to cut over now; ``lag`` is None while it is unknown."""
        if lag != 0:
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now_s
        if asked:
            return True
        if self._after_s is None or self._idle_since_s is None:
            return False
        return now_s - self._idle_since_s >= self._after_s


@dataclass(frozen=True)
class QueueCheck:
    """One source queue beside its copies. ``copies`` counts each origin once."""

    name: str
    queue_offset_start: int
    queue_offset_end: int
    messages: int
    copies: int
    repeats: int
    checksum: int
    copied_checksum: int

    @property
    def is_equal(self) -> bool:
        return self.messages == self.copies and self.checksum == self.copied_checksum

    def as_row(self) -> dict[str, object]:
        return {
            "queue": self.name,
            "from": self.queue_offset_start,
            "to": self.queue_offset_end,
            "messages": self.messages,
            "copies": self.copies,
            "repeats": self.repeats,
            "checksum": f"{self.checksum:x}",
            "equal": self.is_equal,
        }


def differences_text(checks: Iterable[QueueCheck], *, allow_repeats: bool) -> str | None:
    """The differences, queue by queue, in one line; None if there are none."""
    wrong = [one for one in checks if not one.is_equal or (one.repeats and not allow_repeats)]
    if not wrong:
        return None
    told = [
        f"queue {one.name} has {one.messages} messages (checksum {one.checksum:x}), "
        f"{one.copies} copied (checksum {one.copied_checksum:x}), {one.repeats} of them again"
        for one in wrong[:_QUEUES_NAMED_MAX]
    ]
    more = len(wrong) - len(told)
    return "; ".join(told) + (f"; and {more} queues more" if more else "")


def group_place(
    *, unconsumed: int | None, foreign: int | None, queue_offset_max: int, known: int | None
) -> int:
    """A group's offset in a target queue: no message that it has not consumed may lie before.

    ``unconsumed`` is the first copy that it has not consumed at the source, ``foreign`` the first
    message of the queue that is no copy, ``known`` its present offset in the target: it has
    consumed all messages before that are no copies.
    """
    others = foreign if known is None else known
    places = [queue_offset_max, unconsumed, others]
    return min(place for place in places if place is not None)
