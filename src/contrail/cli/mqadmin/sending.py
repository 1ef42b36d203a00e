"""Sending: one message, or many to see how long they take."""

from __future__ import annotations

from time import perf_counter

from contrail.cli.mqadmin.java_text import receipt_text, truth
from contrail.cli.mqadmin.options import Call, Command, may, need
from contrail.cli.topic_reading import queues_named
from contrail.client.blocking.admin import Admin
from contrail.client.blocking.producer import Producer
from contrail.client.message import Message
from contrail.clock import SystemClock
from contrail.errors import ClientError, ConfigError, OptionInvalid
from contrail.protocol.json_style import MessageQueue

_LINE = "{:<32}  {:<4}  {:<20} {}"
_TOPIC = need("t", "topic", "topic name")
_FILLER = "hello jodie"


def open_producer(call: Call, *, trace: bool = False) -> Producer:
    """A producer with a group of its own."""
    group = str(SystemClock().now_ms())
    options = call.target.client_options()
    return Producer(group, call.target.namesrv, trace=trace, telemetry=False, **options)


def send_rounds(producer: Producer, topic: str, body: bytes, amount: int) -> tuple[float, int]:
    """Send ``count`` messages; the mean time in ms without the first, and how many were sent."""
    spent_ms, sent_count = 0.0, 0
    for number in range(amount):
        began_s = perf_counter()
        try:
            producer.send(Message(topic, body))
            sent_count += 1
        except ClientError:
            # Counted: this command reports how many fail.
            pass
        if number:
            spent_ms += (perf_counter() - began_s) * 1000
    return spent_ms / max(1, amount - 1), sent_count


def send_message(call: Call, admin: Admin) -> None:
    topic, broker = call.text("t"), call.maybe("b")
    if call.has("i") and broker is None:
        raise ConfigError("mqadmin sendMessage: a queue, -i, needs the name of its broker, -b")
    queue = None
    if call.has("i") and broker is not None:
        queue = MessageQueue(topic, broker, call.number("i"))
        if topic in admin.topics():
            queues_named(admin.queues(topic), [f"{broker}:{queue.queue_id}"])
    message = Message(
        topic,
        call.text("p").encode(),
        tags=call.maybe("c") or None,
        keys=(call.maybe("k") or "").split(),
    )
    with open_producer(call, trace=call.truth("m")) as producer:
        receipt = producer.send(message, queue=queue)
    print(_LINE.format("#Broker Name", "#QID", "#Send Result", "#MsgId"))
    place = (receipt.queue.broker_name, receipt.queue.queue_id)
    print(_LINE.format(*place, receipt.status.value, receipt.message_id))


def send_msg_status(call: Call, admin: Admin) -> None:
    """Every broker has a topic of its own name; ``-b`` names that topic."""
    topic = call.text("b")
    admin.topic_route(topic)
    size, count = call.number("s", 128), call.number("c", 50)
    body = (_FILLER * -(-size // len(_FILLER))).encode()
    with open_producer(call) as producer:
        producer.send(Message(topic, (_FILLER * 2).encode()))
        for _ in range(count):
            began_s = perf_counter()
            receipt = producer.send(Message(topic, body))
            spent_ms = round((perf_counter() - began_s) * 1000)
            print(f"rt={spent_ms}ms, SendResult={receipt_text(receipt)}")


def check_msg_send_rt(call: Call, admin: Admin) -> None:
    topic, amount, size = call.text("t"), call.number("a", 100), call.number("s", 128)
    if amount < 1 or size < 1:
        raise OptionInvalid(f"-a {amount} and -s {size}: at least one message of one byte")
    with open_producer(call) as producer:
        queues = producer.publish_queues(topic)
        print(_LINE.format("#Broker Name", "#QID", "#Send Result", "#RT"))
        total_ms = 0
        for number in range(amount):
            queue = queues[number % len(queues)]
            sent, spent_ms = _send_timed(producer, Message(topic, b"a" * size), queue)
            total_ms += spent_ms if number else 0
            print(_LINE.format(queue.broker_name, queue.queue_id, truth(sent), spent_ms))
    print(f"Avg RT: {total_ms / max(1, amount - 1):.2f}")


def _send_timed(producer: Producer, message: Message, queue: MessageQueue) -> tuple[bool, int]:
    began_s = perf_counter()
    try:
        producer.send(message, queue=queue)
        sent = True
    except ClientError:
        # It is a column of the table.
        sent = False
    return sent, round((perf_counter() - began_s) * 1000)


COMMANDS = (
    Command(
        "sendMessage",
        "Send one message.",
        send_message,
        (
            _TOPIC,
            need("p", "body", "the message's text"),
            may("k", "key", "keys, with blanks between them"),
            may("c", "tags", "the tag"),
            may("b", "broker", "name of the broker with the queue"),
            may("i", "qid", "the queue of that broker"),
            may("m", "msgTraceEnable", "true to leave a trace (false)"),
        ),
        (105, 310),
    ),
    Command(
        "sendMsgStatus",
        "Send messages to a broker's own topic, and show every answer.",
        send_msg_status,
        (
            need("b", "brokerName", "name of the broker, whose topic has the same name"),
            may("s", "messageSize", "bytes of a message (128)"),
            may("c", "count", "how many (50)"),
        ),
        (105, 310),
    ),
    Command(
        "checkMsgSendRT",
        "Send messages to every queue of a topic in turn, and show how long each took.",
        check_msg_send_rt,
        (
            _TOPIC,
            may("a", "amount", "how many messages (100)"),
            may("s", "size", "bytes of a message (128)"),
        ),
        (105, 310),
    ),
)
