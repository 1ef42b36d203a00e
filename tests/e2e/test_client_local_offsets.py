"""A broadcasting consumer's progress in its file: written when there is something to write."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import LocalOffsets
from contrail.client.settings import ClientSettings
from contrail.errors import StateFileDamaged

QUEUE, OTHER = MessageQueue("订单", "broker-a", 0), MessageQueue("订单", "broker-a", 1)
# As fastjson writes it when it is told to be pretty.
APACHES = """{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"订单"
\t\t}:17,{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":1,
\t\t\t"topic":"订单"
\t\t}:4
\t}
}"""


def offsets_in(folder: Path, *, name: str = "billing-1") -> LocalOffsets:
    settings = ClientSettings.of("127.0.0.1:9876", instance_name=name, unit_name="u")
    client_id = f"10.0.0.1@{name if name != 'DEFAULT' else '7#123'}@u"
    instance = SimpleNamespace(client_id=client_id, settings=settings)
    return LocalOffsets(cast(ClientInstance, instance), "g", folder)


def test_the_file_is_where_and_as_apaches_is(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    assert offsets.path == tmp_path / "10.0.0.1@billing-1@u" / "g" / "offsets.json"
    assert offsets_in(tmp_path, name="DEFAULT").path.parts[-3] == "10.0.0.1@DEFAULT@u"
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(APACHES, encoding="utf-8")

    async def scenario() -> None:
        await offsets.load()
        assert [await offsets.read(queue) for queue in (QUEUE, OTHER)] == [17, 4]
        offsets.update(QUEUE, 18)
        assert await offsets.persist([OTHER]) == {}
        assert offsets.path.read_text(encoding="utf-8") == APACHES
        assert await offsets.persist() == {}

    asyncio.run(scenario())
    written = offsets.path.read_text(encoding="utf-8")
    assert written == (
        '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"订单"}:18,'
        '{"brokerName":"broker-a","queueId":1,"topic":"订单"}:4}}'
    )
    assert offsets.path.with_suffix(".json.bak").read_text(encoding="utf-8") == APACHES


def test_nothing_is_written_while_there_is_nothing_to_write(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)

    async def scenario() -> None:
        await offsets.load()
        assert await offsets.read(QUEUE) is None
        await offsets.persist()

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_read_from_its_backup(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(APACHES[:50], encoding="utf-8")
    with pytest.raises(StateFileDamaged, match=r"offsets\.json"):
        asyncio.run(offsets.load())
    offsets.path.with_suffix(".json.bak").write_text(APACHES, encoding="utf-8")

    async def scenario() -> None:
        await offsets.load()
        assert await offsets.read(QUEUE) == 17

    asyncio.run(scenario())


def test_a_folder_that_cannot_be_written_keeps_the_progress_for_later(tmp_path: Path) -> None:
    blocking = tmp_path / "folder"
    blocking.write_bytes(b"")
    offsets = offsets_in(blocking)

    async def scenario() -> None:
        offsets.update(QUEUE, 5)
        failures = await offsets.persist()
        assert "offset_folder=" in str(failures[QUEUE])
        blocking.unlink()
        assert await offsets.persist() == {}
        await offsets.remove(QUEUE)
        assert await offsets.read(QUEUE) == 5

    asyncio.run(scenario())
