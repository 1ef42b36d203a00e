"""A broadcasting consumer's progress in its file: written when it changed."""

from __future__ import annotations

import asyncio
import json
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
# As fastjson's pretty format writes it.
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


def test_the_file_has_apaches_path_and_form(tmp_path: Path) -> None:
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


def test_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
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


IN_QUEUE_2 = '{"brokerName":"broker-a","queueId":2,"topic":"t"}'
BAD_ENTRIES = {
    "a key that is no queue": '"nothing":3',
    "a key without a topic": '{"brokerName":"broker-a","queueId":0}:3',
    "a key without a broker": '{"queueId":0,"topic":"t"}:3',
    "a negative queue": '{"brokerName":"broker-a","queueId":-1,"topic":"t"}:3',
    "a number of a queue that is none": '{"brokerName":"broker-a","queueId":"x","topic":"t"}:3',
    "a negative offset": f"{IN_QUEUE_2}:-3",
    "an offset that is none": f'{IN_QUEUE_2}:"soon"',
    "an offset over 64 bits": f"{IN_QUEUE_2}:{1 << 63}",
    "an object for an offset": f'{IN_QUEUE_2}:{{"a":1}}',
}


@pytest.mark.proves("cli.small-rules.bad-local-entry")
@pytest.mark.parametrize("kind", list(BAD_ENTRIES))
def test_one_bad_entry_is_kept_aside_and_the_others_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    offsets = offsets_in(tmp_path)
    offsets.path.parent.mkdir(parents=True)
    damaged = APACHES.replace('"offsetTable":{', f'"offsetTable":{{{BAD_ENTRIES[kind]},', 1)
    offsets.path.write_text(damaged, encoding="utf-8")

    async def scenario() -> None:
        await offsets.load()
        assert [await offsets.read(queue) for queue in (QUEUE, OTHER)] == [17, 4]
        offsets.update(QUEUE, 18)
        assert await offsets.persist() == {}

    asyncio.run(scenario())
    (told,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert "offsets.json" in told and "kept in offsets.json.quarantine" in told
    (kept,) = (offsets.path.parent / "offsets.json.quarantine").read_text().splitlines()
    assert json.loads(kept)["place"][0] == "offsetTable"
    # The file is sound again.
    caplog.clear()
    again = offsets_in(tmp_path)
    asyncio.run(again.load())
    assert again.known(QUEUE) == 18
    assert caplog.records == []


@pytest.mark.proves("cli.small-rules.bad-local-entry")
def test_an_entry_kept_aside_goes_on_at_the_backups_offset(tmp_path: Path) -> None:
    offsets = offsets_in(tmp_path)
    offsets.path.parent.mkdir(parents=True)
    offsets.path.with_suffix(".json.bak").write_text(APACHES, encoding="utf-8")
    newer = APACHES.replace(":17", ":-17").replace("}:4", "}:5")
    offsets.path.write_text(newer, encoding="utf-8")
    asyncio.run(offsets.load())
    assert (offsets.known(QUEUE), offsets.known(OTHER)) == (17, 5)


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
