"""Where a group's progress is kept: on the brokers, or for broadcasting in a local file.

Both keep consumer offsets in memory and write the changed ones on ``persist``.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from contrail.client.instance import VERSION_5, ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.queue_places import queue_fields, reader_for
from contrail.client.settings import DEFAULT_INSTANCE
from contrail.client.state.progress import Progress
from contrail.errors import BrokerRefused, ClientError, ConfigError, RequestRejected
from contrail.model.entry_sieve import EntrySieve, Refused
from contrail.model.fastjson import FastJsonError, Fields, JsonValue, loads, whole_number
from contrail.protocol.bodies.reset import encode_reset_offsets
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import decode_message_queue
from contrail.runtime.files import FileSystem
from contrail.runtime.quarantine import quarantine
from contrail.runtime.state_file import BACKUP_SUFFIX, read_state, write_state

_log = logging.getLogger(__name__)

LOCAL_FOLDER = ".rocketmq_offsets"
_FILE_NAME = "offsets.json"
_TIMEOUT_MS = 5_000

Failures = Mapping[MessageQueue, ClientError]
"""The queues whose offsets could not be written, and why; they are written the next time."""


class OffsetStore(Protocol):
    """A group's progress as a consumer sees it."""

    async def load(self) -> None:
        """Read stored offsets before consuming begins."""
        ...

    async def stored(self, queue: MessageQueue) -> int | None:
        """The stored offset, not that in memory; None when the group has none.

        Raises:
            ClientError: it could not be read, which must not be taken for "no offset".
        """
        ...

    async def read(self, queue: MessageQueue) -> int | None:
        """Like ``stored``; also puts the offset into memory."""
        ...

    def known(self, queue: MessageQueue) -> int | None:
        """The offset in memory."""
        ...

    def update(
        self, queue: MessageQueue, consumer_offset: int, *, increase_only: bool = False
    ) -> None: ...

    def freeze(self, queue: MessageQueue, consumer_offset: int) -> None:
        """Set the offset, and ignore updates until ``remove``: an operator has reset the group."""
        ...

    def moved(self, queue: MessageQueue, consumer_offset: int) -> None:
        """A broker moved the reader: an operator reset the group, or messages are deleted."""
        ...

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> Failures:
        """Write the changed offsets, of these queues or of all."""
        ...

    async def remove(self, queue: MessageQueue) -> None:
        """Forget a queue's offset in memory; the stored one stays."""
        ...

    def forget(self, queue: MessageQueue) -> None:
        """Write no offset but an operator's reset for a queue that another member may have."""
        ...

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """The offsets in memory, of one topic or of all."""
        ...


class _InMemory(ABC):
    """The part of both stores: offsets in memory, and the write under way."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._progress = Progress()

    def known(self, queue: MessageQueue) -> int | None:
        return self._progress.known(queue)

    def update(
        self, queue: MessageQueue, consumer_offset: int, *, increase_only: bool = False
    ) -> None:
        self._progress.update(queue, consumer_offset, increase_only=increase_only)

    def freeze(self, queue: MessageQueue, consumer_offset: int) -> None:
        self._progress.freeze(queue, consumer_offset)

    def moved(self, queue: MessageQueue, consumer_offset: int) -> None:
        self._progress.moved(queue, consumer_offset)

    @abstractmethod
    async def stored(self, queue: MessageQueue) -> int | None: ...

    async def read(self, queue: MessageQueue) -> int | None:
        stored = await self.stored(queue)
        if stored is not None:
            self._progress.stored(queue, stored)
        return stored

    async def remove(self, queue: MessageQueue) -> None:
        self._progress.remove(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._progress.forget(queue)

    def snapshot(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return self._progress.snapshot(topic)


class RemoteOffsets(_InMemory):
    """Progress kept by the brokers, for groups whose members share the queues."""

    async def load(self) -> None:
        """Nothing to load: ``read`` asks the broker queue by queue."""

    async def stored(self, queue: MessageQueue) -> int | None:
        what = f"the progress of group {self._group!r} in {queue}"
        # Brokers would answer 0 for a new group as long as they have message 0 in memory.
        fields = {
            "consumerGroup": self._group,
            **queue_fields(queue),
            "setZeroIfNotFound": "false",
        }
        try:
            answer = await self._instance.ask_master(
                queue.broker_name,
                queue.topic,
                RequestCode.QUERY_CONSUMER_OFFSET,
                fields,
                what=what,
                timeout_ms=_TIMEOUT_MS,
                reads=True,
            )
        except BrokerRefused as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = int(answer.fields["offset"])
        if offset == 0 and answer.version < VERSION_5:
            address = await reader_for(self._instance, queue)
            return await self._stored_before_5_0(address, queue, what)
        return offset

    async def _stored_before_5_0(self, address: str, queue: MessageQueue, what: str) -> int | None:
        """Such a broker answers 0 in any case: only its whole table shows whether 0 is stored.

        A broker that does not show its table is trusted.
        """
        try:
            answer = await self._instance.ask(
                address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, what=what, timeout_ms=_TIMEOUT_MS
            )
            table = Fields(loads(answer.body), "the table of offsets").children("offsetTable")
        except (BrokerRefused, FastJsonError) as error:
            _log.warning("%s: %s; it is taken to be 0", what, error)
            return 0
        queues = table.get(f"{queue.topic}@{self._group}")
        stored = None if queues is None else queues.unknown(frozenset()).get(str(queue.queue_id))
        return stored if isinstance(stored, int) else None

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> Failures:
        changed = self._progress.changed(queues)
        problems = await asyncio.gather(*(self._write(*entry) for entry in changed.items()))
        failed = zip(changed, problems, strict=True)
        return {queue: problem for queue, problem in failed if problem is not None}

    async def _write(self, queue: MessageQueue, consumer_offset: int) -> ClientError | None:
        fields = {
            "consumerGroup": self._group,
            "commitOffset": str(consumer_offset),
            **queue_fields(queue),
        }
        try:
            await self._instance.ask_master(
                queue.broker_name,
                queue.topic,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                fields,
                what=f"to note the progress of group {self._group!r} in {queue}",
                timeout_ms=_TIMEOUT_MS,
            )
        except ClientError as error:
            _log.warning("progress was not written: %s", error)
            return error
        self._progress.written(queue, consumer_offset)
        return None


class LocalOffsets(_InMemory):
    """Progress in a file of this client, as RocketMQ's broadcasting consumers keep it.

    The file is ``<folder>/<client>/<group>/offsets.json``, ``folder`` being
    ``~/.rocketmq_offsets`` unless given. Two processes of one machine must not write the same
    file: give each an ``instance_name`` of its own that stays the same when it is started again.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        folder: Path | str | None = None,
        *,
        files: FileSystem | None = None,
    ) -> None:
        super().__init__(instance, group)
        root = Path(folder) if folder is not None else Path.home() / LOCAL_FOLDER
        self.path = root / _lasting_client_id(instance) / group / _FILE_NAME
        self._files = files or FileSystem()
        self._file_content: dict[MessageQueue, int] = {}
        self._one_writer = asyncio.Lock()

    async def load(self) -> None:
        """Raises ``StateFileDamaged`` when neither the file nor its backup can be read."""
        self._file_content = await asyncio.to_thread(self._read_file)
        for queue, consumer_offset in self._file_content.items():
            self._progress.stored(queue, consumer_offset)

    async def stored(self, queue: MessageQueue) -> int | None:
        return self._file_content.get(queue)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> Failures:
        async with self._one_writer:
            changed = self._progress.changed(queues)
            if not changed:
                return {}
            content = {**self._file_content, **changed}
            try:
                await asyncio.to_thread(self._write_file, content)
            except OSError as error:
                return self._failed(changed, error)
            self._file_content = content
            for queue, consumer_offset in changed.items():
                self._progress.written(queue, consumer_offset)
            return {}

    def _failed(self, changed: Collection[MessageQueue], error: OSError) -> Failures:
        problem = ClientError(f"{self.path} cannot be written: {error}; give offset_folder=")
        _log.warning("progress was not written: %s", problem)
        return dict.fromkeys(changed, problem)

    def _read_file(self) -> dict[MessageQueue, int]:
        """The file's offsets. A malformed entry is kept aside, and replaced from the backup.

        Without an offset its queue would begin as that of a new group, and could miss messages.
        """
        try:
            found = read_state(self._files, self.path, sealed=False, parse=_parse)
            if found.problem:
                _log.warning("%s", found.problem)
            places, refused = found.value or ({}, ())
            if refused:
                quarantine(self._files, self.path, refused)
                places = {**self._backup(), **places}
        except OSError as error:
            raise ConfigError(
                f"{self.path} cannot be read: {error}; give offset_folder="
            ) from error
        return places

    def _backup(self) -> dict[MessageQueue, int]:
        """The sound entries of the backup file; none if it cannot be read."""
        try:
            data = self._files.read_bytes(self.path.with_name(self.path.name + BACKUP_SUFFIX))
            return _parse(data)[0]
        except (FileNotFoundError, ValueError) as error:
            _log.warning("no backup for entries kept aside of %s: %s", self.path, error)
            return {}

    def _write_file(self, content: Mapping[MessageQueue, int]) -> None:
        write_state(self._files, self.path, encode_reset_offsets(content), sealed=False)


def _lasting_client_id(instance: ClientInstance) -> str:
    """The client id without the start time: the next start must find the file again."""
    settings = instance.settings
    if settings.instance_name != DEFAULT_INSTANCE:
        return instance.client_id
    address = instance.client_id.partition("@")[0]
    unit = f"@{settings.unit_name}" if settings.unit_name else ""
    return f"{address}@{DEFAULT_INSTANCE}{unit}"


def _parse(data: bytes) -> tuple[dict[MessageQueue, int], Refused]:
    """The sound entries, and the malformed ones; raises ``ValueError`` if it is no table."""
    sieve = EntrySieve(Fields(loads(data), "the file"))
    entries = sieve.entries("offsetTable", _parse_entry)
    return dict(entries.values()), sieve.refused


def _parse_entry(key: str, value: JsonValue) -> tuple[MessageQueue, int]:
    try:
        queue = decode_message_queue(key)
    except RequestRejected as error:
        raise ValueError(str(error)) from error
    if not queue.topic or not queue.broker_name or queue.queue_id < 0:
        raise ValueError("it does not name a queue")
    consumer_offset = whole_number(value, "the offset")
    if consumer_offset < 0:
        raise ValueError(f"the offset is {consumer_offset}, it must be 0 or more")
    return queue, consumer_offset
