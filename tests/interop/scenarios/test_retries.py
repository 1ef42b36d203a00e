"""A message that fails comes again, later, and in the end becomes a dead letter."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import pytest

from contrail.aio import ConsumedMessage, ConsumeResult
from contrail.testing import eventually_async
from tests.interop.scenarios.scene import Inbox, Scene, scenario


@pytest.mark.proves("client.consumers.retry")
@scenario
async def test_a_message_that_fails_comes_again_and_others_do_not(scene: Scene) -> None:
    await scene.make_topic()
    await scene.send("raises", "fine", "told", "level", "seconds", "timedelta")
    inbox = Inbox()

    async def handle(message: ConsumedMessage) -> ConsumeResult | None:
        await inbox.take(message)
        if message.reconsume_times:
            return None
        match message.body.removeprefix(b"body of "):
            case b"raises":
                raise RuntimeError("once")
            case b"told":
                return ConsumeResult.LATER
            case b"level":
                await message.later(2)
            case b"seconds":
                await message.later(0.5)
            case b"timedelta":
                await message.later(timedelta(seconds=1))
        return None

    failing = {"raises", "told", "level", "seconds", "timedelta"}
    times: dict[str, list[int]] = defaultdict(list)

    def tried() -> dict[str, list[int]]:
        times.clear()
        for one in inbox.messages:
            times[one.keys[0]].append(one.reconsume_times)
        return times

    async def is_all() -> bool:
        return len(inbox.messages) >= 6 + len(failing)

    async with scene.consuming(handle):
        await eventually_async(is_all, lambda: f"every message, and some again: {tried()}")
    assert tried() == {"fine": [0]} | {key: [0, 1] for key in failing}
    second = {one.keys[0]: one for one in inbox.messages if one.reconsume_times}
    firsts = {one.keys[0]: one for one in inbox.messages if not one.reconsume_times}
    for key, one in second.items():
        # To the handler it is the same message, only tried before.
        assert one.topic == scene.topic
        assert one.message_id == firsts[key].message_id
        assert one.body == firsts[key].body
    waited_ms = {
        key: one.store_timestamp_ms - firsts[key].store_timestamp_ms for key, one in second.items()
    }
    assert min(waited_ms.values()) >= 900
    assert waited_ms["level"] >= 1900


@pytest.mark.proves("client.consumers.retry", "client.shown.scenarios")
@scenario
async def test_a_message_that_fails_too_often_becomes_a_dead_letter(scene: Scene) -> None:
    await scene.make_topic(queues=1, brokers=1)
    await scene.send("bad", "given-up", "fine")
    inbox = Inbox()

    async def handle(message: ConsumedMessage) -> None:
        await inbox.take(message)
        if message.keys == ["bad"]:
            raise RuntimeError("always")
        if message.keys == ["given-up"]:
            await message.dead_letter()

    dead_topic = f"%DLQ%{scene.group}"
    async with scene.consuming(handle, max_reconsume_times=1), scene.admin() as admin:

        async def are_dead() -> bool:
            if await admin.dead_letter_topic(scene.group) is None:
                return False
            return all(
                [await admin.messages_by_key(dead_topic, key) for key in ("bad", "given-up")]
            )

        await eventually_async(are_dead, lambda: f"two dead letters: {inbox.messages}")
        (bad,) = await admin.messages_by_key(dead_topic, "bad")
        (given,) = await admin.messages_by_key(dead_topic, "given-up")
    assert (bad.body, given.body) == (b"body of bad", b"body of given-up")
    # They remember where they came from.
    assert bad.properties["RETRY_TOPIC"] == scene.topic
    tried = sorted((one.keys[0], one.reconsume_times) for one in inbox.messages)
    assert tried == [("bad", 0), ("bad", 1), ("fine", 0), ("given-up", 0)]
