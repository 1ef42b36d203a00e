"""How far each group has consumed each queue.

Three tables, all by topic, group and queue: committed offsets (persisted), pulled offsets (only
shown to operators), and resets that an operator asked for and the group has not seen yet. While a
reset is pending it is the answer to a query, and the group's own commits are ignored: they are
older than the operator's wish.

Groups of the system are in a table of their own (``own_cursors``): shown and persisted with the
others, and changed by the broker alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contrail.broker.state.own_cursors import OwnCursors, is_own_key
from contrail.broker.state.shares import THIS_HOST, Shares
from contrail.broker.state.watched import Watched
from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import DOCUMENT_BYTES_MAX, JsonValue, dumps, text_bytes
from contrail.model.stored_entries import check_offset_entry
from contrail.protocol.codes import ResponseCode

UNKNOWN = -1
SEPARATOR = "@"

# RocketMQ gives the table a new version once in this many commits; slaves poll it.
_COMMITS_PER_VERSION = 500

PAIRS_MAX = 250_000
"""How many groups with a topic each may be read or committed for; a quarter of one address."""
FILE_BYTES_MAX = DOCUMENT_BYTES_MAX * 3 // 4
"""How long the table's file may become, each offset counted with the digits it can have at most;
an eighth for one address."""
# A line of the file: three tabs, a queue id, an offset of 20 characters, quotes, colon and comma.
QUEUE_BYTES = 1 + 3 + 12 + 1 + 20 + 1
# The text around the names of a topic and group in the table and in a group's list of topics.
_PAIR_BYTES = 64

_Offsets = dict[str, dict[int, int]]


class OffsetsSnapshot(NamedTuple):
    """The fields of ``consumerOffset.json``, in the order its table type takes them."""

    offsets: dict[str, dict[int, int]]
    data_version: DataVersion
    unknown: Mapping[str, JsonValue]


def offsets_key(group: str, topic: str) -> str:
    """The key of a group's offsets in a topic."""
    return f"{topic}{SEPARATOR}{group}"


class _Keys:
    """The keys of all tables, by group and by topic: asking for one group looks at no other.

    A key whose offsets are gone may stay until its group or topic is removed.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, None]] = {}
        self._by_topic: dict[str, dict[str, None]] = {}

    def add(self, key: str) -> None:
        self._by_group.setdefault(key.rpartition(SEPARATOR)[2], {})[key] = None
        self._by_topic.setdefault(key.partition(SEPARATOR)[0], {})[key] = None

    def of_group(self, group: str) -> list[str]:
        return [key for key in self._by_group.get(group, ()) if SEPARATOR in key]

    def of_topic(self, topic: str) -> list[str]:
        return [key for key in self._by_topic.get(topic, ()) if SEPARATOR in key]

    def remove(self, key: str) -> None:
        for table, name in (
            (self._by_group, key.rpartition(SEPARATOR)[2]),
            (self._by_topic, key.partition(SEPARATOR)[0]),
        ):
            keys = table[name]
            del keys[key]
            if not keys:
                del table[name]


class ConsumerOffsets(Watched):
    """The offsets of all groups. Every change sets ``changed``; the writer of the file clears it.

    Commits and pulls have their queue admitted first (``admit``): new entries are counted in bytes
    of the table's file. ``epoch`` grows when an admission ends.
    """

    def __init__(
        self,
        offsets: Mapping[str, Mapping[int, int]] | None = None,
        *,
        data_version: DataVersion | None = None,
        unknown: Mapping[str, JsonValue] | None = None,
        pairs_max: int = PAIRS_MAX,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> None:
        super().__init__()
        self._own = OwnCursors(offsets or {})
        self._committed: _Offsets = {
            key: dict(queues) for key, queues in (offsets or {}).items() if not is_own_key(key)
        }
        self._keys = _Keys()
        for key in self._committed:
            self._keys.add(key)
        self._pulled: _Offsets = {}
        self._resets: _Offsets = {}
        # The same object for good: frequent callers keep hold of it.
        self.pending_resets: Mapping[str, Mapping[int, int]] = self._resets
        self._commits = 0
        # The address that each group with a topic counts for. Other tables by group and topic, for
        # statistics and operators, hold only groups and topics admitted here.
        self._owners = dict.fromkeys(self._committed, THIS_HOST)
        self.shares = Shares(pairs_max, pairs_max // 4)
        self.shares.add(THIS_HOST, len(self._owners))
        # The address that each queue of a group with a topic counts for.
        self._admitted = {
            key: dict.fromkeys(queues, THIS_HOST) for key, queues in self._committed.items()
        }
        self.unknown: Mapping[str, JsonValue] = dict(unknown or {})
        self.bytes = Shares(bytes_max, bytes_max // 8)
        self.bytes.add(THIS_HOST, len(dumps(self.unknown)) + _table_bytes(offsets or {}))
        self.data_version = data_version or DataVersion()
        self.changed = False
        self.too_long: str | None = None
        """Why the table can no longer be written, if its file has become longer than allowed."""

    def admit(self, group: str, topic: str, owner: str, *queue_ids: int) -> None:
        """Let a group read queues of a topic, and commit there; ``owner`` is the asking address.

        Raises:
            RequestRejected: SYSTEM_BUSY if there are too many groups and topics already, or too
                many offsets; NO_PERMISSION for a group of the system.
        """
        key = _moveable(group, topic)
        admitted = self._admitted.get(key, {})
        fresh = [queue_id for queue_id in queue_ids if queue_id not in admitted]
        if not fresh and key in self._owners:
            return
        needed = QUEUE_BYTES * len(fresh) + (0 if key in self._owners else _pair_bytes(key))
        if self.bytes.room(owner) < needed:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"group {group!r} cannot have offsets on more queues of topic {topic!r}: offsets "
                f"take {self.bytes.total} bytes, at most {self.bytes.total_max} are kept in all "
                f"and {self.bytes.share_max} for one address; delete groups with their offsets",
            )
        self._admit_pair(group, topic, owner)
        self.bytes.add(owner, QUEUE_BYTES * len(fresh))
        self._admitted.setdefault(key, {}).update(dict.fromkeys(fresh, owner))

    def _admit_pair(self, group: str, topic: str, owner: str) -> None:
        key, shares = offsets_key(group, topic), self.shares
        if key in self._owners:
            return
        if shares.room(owner) <= 0:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"group {group!r} cannot begin with topic {topic!r}: {shares.total} groups with a "
                f"topic each are known here, at most {shares.total_max} are in all and "
                f"{shares.share_max} of one address; delete groups with their offsets",
            )
        self._owners[key] = owner
        self._keys.add(key)
        shares.add(owner)
        self.bytes.add(owner, _pair_bytes(key))

    def _disown(self, key: str) -> None:
        owner = self._owners.pop(key, None)
        if owner is not None:
            self.shares.remove(owner)
            self.bytes.remove(owner, _pair_bytes(key))
        for asker, count in Counter(self._admitted.pop(key, {}).values()).items():
            self.bytes.remove(asker, count * QUEUE_BYTES)

    def require_writable(self) -> None:
        """Raises ``RequestRejected`` while the table's file is longer than its reader takes."""
        if self.too_long is not None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"the offset is known until the broker stops and cannot be written: "
                f"{self.too_long}",
            )

    # One queue.

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """A pending reset, else the committed offset, else -1."""
        pending = self.peek_reset(group, topic, queue_id)
        if pending is not None:
            return pending
        queues = self._queues(offsets_key(group, topic))
        return UNKNOWN if queues is None else queues.get(queue_id, UNKNOWN)

    def _queues(self, key: str) -> Mapping[int, int] | None:
        own = self._own.get(key)
        return self._committed.get(key) if own is None else own

    def keep_own(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note a cursor of the broker's own, which no request can move."""
        self._own.keep(offsets_key(group, topic), queue_id, queue_offset)
        self.changed = True

    def commit(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> bool:
        """Note a group's progress; False if a pending reset made it void.

        Raises:
            EntryIllegal: the reader of the table's file would refuse it.
        """
        key = offsets_key(group, topic)
        check_offset_entry(key, queue_id, consumer_offset)
        if self._resets and queue_id in self._resets.get(key, ()):
            return False
        self._put(self._committed, key, queue_id, consumer_offset)
        self._commits += 1
        self.changed = True
        return True

    def commit_pulled(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note where a group's next pull is going to start."""
        self._put(self._pulled, offsets_key(group, topic), queue_id, queue_offset)

    def read_on(self, key: str, queue_id: int, consumer_offset: int, queue_offset: int) -> None:
        """Note the offsets of one pull, when no reset is pending: its group's and its own.

        ``key`` is an ``offsets_key``; a ``consumer_offset`` below 0 tells nothing. Its caller
        has had the key and the queue admitted, and takes numbers of 18 digits at most.
        """
        if consumer_offset >= 0:
            committed = self._committed.get(key)
            if committed is None:
                committed = self._committed[key] = {}
                self._keys.add(key)
            committed[queue_id] = consumer_offset
            self._commits += 1
            self.changed = True
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
            self._keys.add(key)
        queues[queue_id] = queue_offset

    def query_pulled(self, group: str, topic: str, queue_id: int) -> int:
        queues = self._pulled.get(offsets_key(group, topic))
        found = None if queues is None else queues.get(queue_id)
        return self.query(group, topic, queue_id) if found is None else found

    def stamp(self, now_ms: int) -> None:
        """Give the table a new version if there were enough commits since the last one."""
        while self._commits >= _COMMITS_PER_VERSION:
            self._commits -= _COMMITS_PER_VERSION
            self.data_version = self.data_version.bump(now_ms)

    # Resets by an operator.

    def assign_reset(self, group: str, topic: str, queue_id: int, consumer_offset: int) -> None:
        """The group must go on from there; it learns of it from its next pull.

        Raises:
            EntryIllegal: the reader of the table's file would refuse it.
        """
        key = _moveable(group, topic)
        check_offset_entry(key, queue_id, consumer_offset)
        self.admit(group, topic, THIS_HOST, queue_id)
        self._put(self._resets, key, queue_id, consumer_offset)
        self._put(self._committed, key, queue_id, consumer_offset)
        self.changed = True

    def peek_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        if not self._resets:
            return None
        return self._resets.get(offsets_key(group, topic), {}).get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset, which is then no longer pending."""
        pending = self.peek_reset(group, topic, queue_id)
        if pending is not None:
            key = offsets_key(group, topic)
            del self._resets[key][queue_id]
            if not self._resets[key]:
                del self._resets[key]
        return pending

    # Whole groups and topics.

    def of_group(self, group: str, topic: str) -> dict[int, int]:
        """A group's committed offsets on a topic, by queue."""
        return dict(self._queues(offsets_key(group, topic)) or {})

    def queue_count(self, group: str, topic: str) -> int:
        """On how many queues of a topic a group has committed."""
        return len(self._committed.get(offsets_key(group, topic), ()))

    def topics_of(self, group: str) -> set[str]:
        keys = [key for key in self._keys.of_group(group) if key in self._committed]
        return {topic for topic, owner in self._pairs(keys) if owner == group}

    def groups_of(self, topic: str) -> set[str]:
        keys = [key for key in self._keys.of_topic(topic) if key in self._committed]
        return {group for name, group in self._pairs(keys) if name == topic}

    def clone(self, source: str, destination: str, topic: str) -> bool:
        """Copy a group's offsets on a topic to another group; False if there are none.

        Raises:
            EntryIllegal: no group can have the name ``destination``.
            RequestRejected: there are too many offsets.
        """
        key = _moveable(destination, topic)
        check_offset_entry(key, 0, 0)
        queues = self._queues(offsets_key(source, topic))
        if queues is None:
            return False
        self.admit(destination, topic, THIS_HOST, *queues)
        self._committed[key] = dict(queues)
        self._keys.add(key)
        self.changed = True
        return True

    def remove_group(self, group: str) -> None:
        self._remove(self._keys.of_group(group))

    def remove_topic(self, topic: str) -> None:
        self._remove(self._keys.of_topic(topic))

    def _remove(self, keys: list[str]) -> None:
        for key in keys:
            self._keys.remove(key)
            self._disown(key)
            for table in (self._committed, self._pulled, self._resets):
                if table.pop(key, None) is not None:
                    self.changed = True
        if keys:
            # Pulls that were admitted are to be admitted again.
            self.moved()

    def put_over(self, offsets: Mapping[str, Mapping[int, int]], data_version: DataVersion) -> int:
        """Take the committed offsets of another broker; for a slave. Returns how many changed.

        The broker's own cursors are left out: a slave finds its own in the log. Offsets that the
        other broker no longer has stay, as in RocketMQ.

        Raises:
            EntryIllegal: the reader of the table's file would refuse an entry.
            RequestRejected: there are too many offsets.
        """
        changed_count = 0
        for key, queues in offsets.items():
            topic, found, group = key.partition(SEPARATOR)
            if not found or SEPARATOR in group or is_own_key(key):
                continue
            known = self._committed.get(key, {})
            fresh = {
                queue_id: one for queue_id, one in queues.items() if known.get(queue_id) != one
            }
            for queue_id, consumer_offset in fresh.items():
                check_offset_entry(key, queue_id, consumer_offset)
            self.admit(group, topic, THIS_HOST, *fresh)
            for queue_id, consumer_offset in fresh.items():
                self._put(self._committed, key, queue_id, consumer_offset)
            changed_count += len(fresh)
        if changed_count or self.data_version != data_version:
            self.data_version = data_version
            self.changed = True
        return changed_count

    def adopt(self, offsets: Mapping[str, Mapping[int, int]], data_version: DataVersion) -> int:
        """Take over progress that a slave counted for this broker; returns how many changed.

        Of each queue the larger offset counts: both tables were one until the broker went away,
        and the last moments before that may be in either of them only.

        Raises:
            EntryIllegal: the reader of the table's file would refuse an entry.
            RequestRejected: there are too many offsets.
        """
        ahead = {
            key: {
                queue_id: one
                for queue_id, one in queues.items()
                if one > self._committed.get(key, {}).get(queue_id, UNKNOWN)
            }
            for key, queues in offsets.items()
        }
        return self.put_over(ahead, max(data_version, self.data_version))

    def replace(
        self,
        offsets: Mapping[str, Mapping[int, int]],
        resets: Mapping[str, Mapping[int, int]],
        data_version: DataVersion,
    ) -> None:
        """Hold these committed offsets and pending resets, and no others; own cursors stay.

        Raises:
            EntryIllegal: the reader of the table's file would refuse an entry.
            RequestRejected: there are too many offsets.
        """
        self._remove([key for key in self._committed if key not in offsets])
        self.put_over(offsets, data_version)
        for key, queues in self._committed.items():
            for queue_id in queues.keys() - offsets[key].keys():
                del queues[queue_id]
        self._resets.clear()
        self._resets.update({key: dict(queues) for key, queues in resets.items()})
        self.changed = True

    def assign(self, key: str, queue_id: int, offset: int | None, reset: int | None) -> None:
        """Hold this offset and this pending reset of one queue, or none; for members of groups.

        Raises:
            EntryIllegal: the reader of the table's file would refuse an entry.
            RequestRejected: there are too many offsets.
        """
        for table, one in ((self._committed, offset), (self._resets, reset)):
            if one is not None:
                topic, _, group = key.partition(SEPARATOR)
                check_offset_entry(key, queue_id, one)
                self.admit(group, topic, THIS_HOST, queue_id)
                self._put(table, key, queue_id, one)
            elif key in table:
                table[key].pop(queue_id, None)
                if not table[key]:
                    del table[key]
        if key in self._owners and key not in self._committed and key not in self._resets:
            self._remove([key])
        self.changed = True

    def all_committed(self) -> Mapping[str, Mapping[int, int]]:
        """The committed offsets by key and queue, not to be changed; without own cursors."""
        return self._committed

    def keys_unlike(self, seen: Mapping[str, Mapping[int, int]]) -> list[str]:
        """The keys whose committed offsets differ from those in ``seen``."""
        committed = self._committed
        changed = [key for key, queues in committed.items() if seen.get(key) != queues]
        return changed + [key for key in seen if key not in committed]

    def committed_keys(self) -> list[str]:
        """The keys that have offsets: topic and group, with ``SEPARATOR`` between them."""
        return [*self._committed, *self._own]

    def pulled(self) -> dict[str, dict[int, int]]:
        """A copy of where the groups' next pulls start, by topic, group and queue."""
        return {key: dict(queues) for key, queues in self._pulled.items()}

    def snapshot(self) -> OffsetsSnapshot:
        """A copy for the writer of the file."""
        offsets = {key: dict(queues) for key, queues in self._committed.items()}
        offsets |= self._own.snapshot()
        return OffsetsSnapshot(offsets, self.data_version, self.unknown)

    def _pairs(self, keys: list[str]) -> Iterator[tuple[str, str]]:
        """Topic and group of keys and of the broker's own cursors.

        A key without both is kept in the file and otherwise idle.
        """
        for key in (*keys, *self._own):
            topic, found, group = key.partition(SEPARATOR)
            if found and SEPARATOR not in group:
                yield topic, group

    def _put(self, table: _Offsets, key: str, queue_id: int, value: int) -> None:
        queues = table.get(key)
        if queues is None:
            queues = table[key] = {}
            self._keys.add(key)
        queues[queue_id] = value


def _pair_bytes(key: str) -> int:
    """The bytes of a topic and group in the file, without their queues."""
    return _PAIR_BYTES + 2 * text_bytes(key)


def _table_bytes(offsets: Mapping[str, Mapping[int, int]]) -> int:
    return sum(_pair_bytes(key) + QUEUE_BYTES * len(of) for key, of in offsets.items())


def _moveable(group: str, topic: str) -> str:
    """The key of a group's offsets; raises ``RequestRejected`` for a group of the system."""
    key = offsets_key(group, topic)
    if is_own_key(key):
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"consumer group {group!r} is the broker's own: its cursors are not moved",
        )
    return key
