"""Handles one message with an idempotent handler, and can be killed in the middle of it.

Usage: ``idempotent_child.py FILE MODE PAUSES``: what is done goes into the table ``effects`` of
FILE; with PAUSES=yes the handler says so when its work is half done, and waits to be killed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from typing import Any

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


def main() -> None:
    path, mode, pauses = sys.argv[1:]
    store = SqliteStore(path)

    def pause() -> None:
        print("half done", flush=True)
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
    }

    async def run() -> None:
        await handlers[mode](received("id-1"))
        await store.close()

    asyncio.run(run())


if __name__ == "__main__":
    main()
