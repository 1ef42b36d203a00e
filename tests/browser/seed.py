"""A cluster with something of everything: for journeys, and for the pictures in the docs."""

from __future__ import annotations

import json

from contrail import Admin, Message, Producer, PushConsumer

HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_KEY = "<b>bold</b>"
CONSUMED = 6
LETTERS = 3


def seed(namesrv: str, *, topics: int = 2) -> str:
    """Fill the cluster; returns the id of the open transaction."""
    with Admin(namesrv) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_topic("payments", queues=2, attributes={"message.type": "TRANSACTION"})
        for number in range(topics):
            admin.create_topic(f"clicks-{number}", queues=1)
        for group in ("billing", "mail", "search"):
            admin.create_group(group)
    with Producer("shop", namesrv, trace=True) as producer:
        for number in range(24):
            tag = "paid" if number % 2 else "open"
            body = json.dumps({"total": number * 10, "user": "ada"}).encode()
            producer.send(Message("orders", body, keys=[f"o-{number}"], tags=tag))
        producer.send(Message("orders", HOSTILE.encode(), keys=[HOSTILE_KEY], tags="hostile"))
        producer.send(Message("orders", b"remind me", keys=["later"], delay=3600))
        with producer.transaction(Message("payments", b'{"amount": 12}', keys=["p-1"])) as half:
            half.unknown()
    with PushConsumer("billing", namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        for count, message in enumerate(consumer, 1):
            message.ack()
            if count == CONSUMED:
                break
    with Admin(namesrv) as admin:
        found = [m for queue in admin.queues("orders") for m in admin.messages_from(queue, 0, 2)]
        for message in found[:LETTERS]:
            admin.send_back("billing", message, delay_level=-1)
    return str(half.transaction_id)
