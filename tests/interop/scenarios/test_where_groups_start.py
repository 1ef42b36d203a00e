"""Where a new group starts: at the first message, at the end, or at a time.

Apache's brokers delete files only after their first minute: these scenarios come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from contrail.aio import MessageQueue, PushConsumer
from contrail.testing import eventually_async
from tests.interop.scenarios.clusters import SEGMENT_BYTES, open_cluster
from tests.interop.scenarios.scene import Inbox, Scene, next_millisecond, run

DELETION_S_MAX = 150.0


@pytest.mark.proves("client.consumers.consume-from")
def test_a_new_group_starts_at_consume_from_where(scene: Scene, tmp_path: Path) -> None:
    with trimming(scene, tmp_path) as trimmed:
        run(check_starts(trimmed, is_trimmed=True))


@pytest.mark.proves("client.start.consume-from-where")
def test_a_new_group_starts_at_consume_from_where_while_the_first_message_is_there(
    scene: Scene,
) -> None:
    """Brokers say to clients that ask as Java's do that such a group starts at 0 in any case."""
    run(check_starts(scene, is_trimmed=False))


async def check_starts(scene: Scene, *, is_trimmed: bool) -> None:
    (queue,) = await scene.make_topic(queues=1, brokers=1)
    if is_trimmed:
        await scene.send("gone-1", "gone-2")
        await fill_a_segment(scene)
    await scene.send("early-1", "early-2")
    await next_millisecond()
    await scene.send("late-1", "late-2")
    since_ms = await scene.store_time_ms("late-1")
    if is_trimmed:
        await trim(scene, queue)
    starts: dict[str, tuple[dict[str, Any], list[str]]] = {
        "first": (
            {"consume_from_where": "first"},
            ["early-1", "early-2", "late-1", "late-2", "new"],
        ),
        "last": ({"consume_from_where": "CONSUME_FROM_LAST_OFFSET"}, ["new"]),
        "moment": (
            {"consume_from_where": "timestamp", "consume_timestamp": since_ms},
            ["late-1", "late-2", "new"],
        ),
        "text": (
            {
                "consume_from_where": "timestamp",
                "consume_timestamp": datetime.fromtimestamp(since_ms / 1000 - 3600).strftime(
                    "%Y%m%d%H%M%S"
                ),
            },
            ["early-1", "early-2", "late-1", "late-2", "new"],
        ),
    }
    inboxes = {name: Inbox() for name in starts}
    async with AsyncExitStack() as stack:
        for name, (options, _) in starts.items():
            group = f"{scene.group}_{name}"
            consumer = await stack.enter_async_context(
                scene.consuming(inboxes[name].take, group=group, **options)
            )
            await eventually_async(partial(has_queue, consumer, queue), "the queue")
        await scene.send("new")
        for name, (_, keys) in starts.items():
            await inboxes[name].until_has(["new"])
            assert sorted(inboxes[name].keys) == sorted(keys), name


def has_queue(consumer: PushConsumer, queue: MessageQueue) -> bool:
    return queue in consumer.assigned_queues()


@contextmanager
def trimming(scene: Scene, folder: Path) -> Iterator[Scene]:
    """A cluster whose files may go at once: ours does not change that setting while it runs."""
    if scene.cluster.kind == "contrail":
        with open_cluster("contrail", folder, brokers=1, fileReservedTime="0") as own:
            yield Scene(own, "trimmed")
    else:
        yield scene


async def fill_a_segment(scene: Scene) -> None:
    filler = f"{scene.topic}_filler"
    await scene.make_topic(queues=1, brokers=1, topic=filler)
    async with scene.producer(compress_msg_body_over_howmuch=SEGMENT_BYTES) as producer:
        for number in range(SEGMENT_BYTES >> 20):
            body = bytes([number]) * (1 << 20)
            await producer.send(scene.message(f"f-{number}", body=body, topic=filler))


async def trim(scene: Scene, queue: MessageQueue) -> None:
    """Have the broker delete every full file."""
    broker = queue.broker_name
    async with scene.admin() as admin:
        reserved = (await admin.broker_config(broker))["fileReservedTime"]
        if reserved != "0":
            await admin.update_broker_config({"fileReservedTime": "0"}, broker=broker)

        async def is_gone() -> bool:
            await admin.delete_expired_segments(broker=broker)
            return await admin.queue_offset_min(queue) == 2

        try:
            await eventually_async(
                is_gone, "the deletion of the first messages", timeout_s=DELETION_S_MAX
            )
        finally:
            if reserved != "0":
                await admin.update_broker_config({"fileReservedTime": reserved}, broker=broker)
