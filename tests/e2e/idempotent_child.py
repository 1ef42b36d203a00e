"""Handles messages with an idempotent handler, and can be killed in the middle of it.

Usage: ``idempotent_child.py FILE MODE PAUSES [NAMESRV]``: what is done goes into the table
``effects`` of FILE; with PAUSES=yes the handler says so when its work is half done, and waits to be
killed. With a NameServer it consumes the topic ``orders`` from there, and prints the id of each
message that is acknowledged; without one it handles a made-up message and ends.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from typing import Any

from contrail.client.blocking.push_consumer import PushConsumer
from contrail.client.idempotent import idempotent
from contrail.client.idempotent_stores import SqliteStore
from contrail.client.message import MessageQueue, ReceivedMessage

EFFECT = "INSERT INTO effects VALUES (?)"
PAUSE_S_MAX = 120


def received(message_id: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"",
        queue=MessageQueue("orders", "broker-a", 0),
        queue_offset=0,
        message_id=message_id,
        offset_message_id="",
        properties={},
        reconsume_times=0,
        born_timestamp_ms=0,
        store_timestamp_ms=0,
        flag=0,
        sys_flag=0,
        physical_offset=0,
    )


def say(line: str) -> None:
    """Print it in one write: handlers run side by side, and print() writes the line's end apart."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    path, mode, pauses, *namesrv = sys.argv[1:]
    store = SqliteStore(path)

    def pause() -> None:
        say("half done")
        if pauses == "yes":
            time.sleep(PAUSE_S_MAX)

    def beside(message: ReceivedMessage) -> None:
        with sqlite3.connect(path, timeout=30) as connection:
            connection.execute(EFFECT, (message.message_id,))
        connection.close()
        pause()

    def together(message: ReceivedMessage, connection: sqlite3.Connection) -> None:
        connection.execute(EFFECT, (message.message_id,))
        pause()

    async def together_async(message: ReceivedMessage, transaction: Any) -> None:
        await transaction.execute(EFFECT, (message.message_id,))
        pause()

    handlers: dict[str, Any] = {
        "run": idempotent(store=store)(beside),
        "skip": idempotent(store=store, when_unfinished="skip")(beside),
        "transaction": idempotent(store=store, in_transaction=True)(together),
        "async transaction": idempotent(store=store, in_transaction=True)(together_async),
        "by order": idempotent(key="order", store=store, in_transaction=True)(together),
    }

    with store:
        if namesrv:
            consume(namesrv[0], handlers[mode])
        elif mode == "async transaction":
            asyncio.run(handlers[mode](received("id-1")))
        else:
            handlers[mode](received("id-1"))


def consume(namesrv: str, handle: Any) -> None:
    """Consume until killed."""
    consumer = PushConsumer("billing", namesrv, consume_from_where="first")
    consumer.subscribe("orders")

    @consumer.on_message
    def on_message(message: Any) -> None:
        handle(message)
        say(message.message_id)

    consumer.run()


if __name__ == "__main__":
    main()
