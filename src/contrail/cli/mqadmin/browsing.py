"""Messages: browse the queues of a topic, and the rows of a queue's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from contrail.cli.mqadmin.java_text import message_text, read_time, value_text
from contrail.cli.mqadmin.message_facts import body_text
from contrail.cli.mqadmin.options import Call, Command, Option, may, need
from contrail.cli.topic_facts import require_topic
from contrail.client.blocking.admin import Admin
from contrail.client.message import ReceivedMessage
from contrail.client.state.allocation import queue_text
from contrail.clock import SystemClock
from contrail.errors import ConfigError, OptionInvalid
from contrail.model import fastjson
from contrail.model.fastjson import Fields
from contrail.model.subscription import ALL_TAGS, TAG_SEPARATOR
from contrail.protocol.codes import RequestCode
from contrail.protocol.json_style import MessageQueue

_COUNT = 128
_TOPIC = need("t", "topic", "topic name")
_CHARSET = may("c", "charsetName", "charset of the bodies (UTF-8)")
_TAGS = may("s", "subExpression", "tags, as TagA || TagB (*)")
_RULE = "-" * 56
_ROW_RULE = "=" * 38


def _begin(letter: str) -> Option:
    return may(letter, "beginTimestamp", "from this time on; ms, or yyyy-MM-dd#HH:mm:ss:SSS")


def _end(letter: str) -> Option:
    return may(letter, "endTimestamp", "until this time; ms, or yyyy-MM-dd#HH:mm:ss:SSS")


def print_msg(call: Call, admin: Admin) -> None:
    topic, parent = call.text("t"), call.maybe("l")
    queues = [one._replace(topic=topic) for one in admin.queues(parent or topic)]
    for queue in queues:
        start, end = _span(call, admin, queue)
        print(f"minOffset={start}, maxOffset={end}, {queue_text(queue)}")
        wanted = _wanted(admin.browse(queue, start=start, end=end), call.maybe("s"))
        _print_messages(wanted, call.maybe("c"), with_body=call.truth("d", True))
        print(_RULE)


def _span(call: Call, admin: Admin, queue: MessageQueue) -> tuple[int, int]:
    """The range from ``-b`` to ``-e``, else the whole queue."""
    begin, end = call.maybe("b"), call.maybe("e")
    return (
        _place(admin, queue, "-b", begin) if begin else admin.queue_offset_min(queue),
        _place(admin, queue, "-e", end) if end else admin.queue_offset_max(queue),
    )


def _place(admin: Admin, queue: MessageQueue, option: str, text: str) -> int:
    return max(0, admin.search_offset(queue, read_time(option, text)))


def _wanted(
    messages: Iterable[ReceivedMessage], expression: str | None
) -> Iterator[ReceivedMessage]:
    pieces = (expression or ALL_TAGS).split(TAG_SEPARATOR)
    tags = {one.strip() for one in pieces if one.strip()}
    return (one for one in messages if ALL_TAGS in tags or one.tags in tags)


def _print_messages(
    messages: Iterable[ReceivedMessage], charset: str | None, *, with_body: bool
) -> None:
    for one in messages:
        body = body_text(one.body, charset or "utf-8") if with_body else "NOT PRINT BODY"
        print(f"MSGID: {one.message_id} {message_text(one)} BODY: {body}")


def print_msg_by_queue(call: Call, admin: Admin) -> None:
    queue = MessageQueue(call.text("t"), call.text("a"), call.number("i"))
    start, end = _span(call, admin, queue)
    wanted = list(_wanted(admin.browse(queue, start=start, end=end), call.maybe("s")))
    if call.truth("p"):
        _print_messages(wanted, call.maybe("c"), with_body=call.truth("d"))
    if call.truth("f"):
        for tag, count in Counter(one.tags for one in wanted if one.tags).most_common():
            print(f"Tag: {tag:<30} Count: {count}")


def consume_message(call: Call, admin: Admin) -> None:
    topic, left_count = call.text("t"), call.number("c", _COUNT)
    if left_count <= 0:
        raise OptionInvalid(f"-c {left_count} is no number of messages above 0")
    _check_places(call)
    begin_ms, end_ms = _times(call)
    require_topic(admin, topic)
    queues = admin.queues(topic)
    if call.has("i"):
        queues = [MessageQueue(topic, call.text("b"), call.number("i"))]
    for queue in queues:
        start = admin.search_offset(queue, begin_ms) if begin_ms else admin.queue_offset_min(queue)
        end = admin.search_offset(queue, end_ms) if end_ms else admin.queue_offset_max(queue)
        start = max(0, start, call.number("o"))
        left_count -= _consume_queue(admin, queue, start, end, left_count)
        if left_count <= 0:
            return


def _check_places(call: Call) -> None:
    if call.has("i") and not call.has("b"):
        raise ConfigError("mqadmin consumeMessage: a queue, -i, needs the name of its broker, -b")
    if call.has("o") and not call.has("i"):
        raise ConfigError("mqadmin consumeMessage: an offset, -o, needs its queue, -i")


def _times(call: Call) -> tuple[int, int]:
    """``-s`` and ``-e``, 0 if not given."""
    now_ms = SystemClock().now_ms()
    given = {key: read_time(f"-{key}", call.text(key)) for key in ("s", "e") if call.has(key)}
    for key, moment_ms in given.items():
        if moment_ms > now_ms:
            raise OptionInvalid(f"-{key} {call.text(key)!r} lies in the future")
    begin_ms, end_ms = given.get("s", 0), given.get("e", 0)
    if end_ms and begin_ms > end_ms:
        raise OptionInvalid(f"-s {call.text('s')!r} lies after -e {call.text('e')!r}")
    return begin_ms, end_ms


def _consume_queue(admin: Admin, queue: MessageQueue, start: int, end: int, count_max: int) -> int:
    """Print the messages of a queue; how many there were."""
    is_cut = end - start > count_max
    if is_cut:
        print(f"The older {count_max} message of the {queue.queue_id} queue will be provided")
    last = start + count_max if is_cut else end
    found = list(admin.browse(queue, start=start, end=last))
    if found:
        print("Consume ok")
    _print_messages(found, None, with_body=True)
    if not is_cut:
        print(f"{queue_text(queue)} print msg finished. status=NO_NEW_MSG, offset={end}")
    return len(found)


def query_cq(call: Call, admin: Admin) -> None:
    topic, index = call.text("t"), call.number("i")
    broker = call.maybe("b") or _first_broker(admin, topic)
    fields = {
        "topic": topic,
        "queueId": str(call.number("q")),
        "index": str(index),
        "count": str(call.number("c", 10)),
    }
    if call.has("g"):
        fields["consumerGroup"] = call.text("g")
    answer = admin.ask_broker(broker, RequestCode.QUERY_CONSUME_QUEUE, fields)
    _print_rows(Fields(fastjson.loads(answer.body), "a queue's rows"), index)


def _first_broker(admin: Admin, topic: str) -> str:
    brokers = sorted(admin.topic_route(topic).brokers, key=lambda one: one.broker_name)
    return brokers[0].addresses[min(brokers[0].addresses)]


def _print_rows(found: Fields, index: int) -> None:
    subscription = found.child("subscriptionData")
    if subscription is not None:
        text = fastjson.dumps(subscription.unknown(frozenset())).decode()
        print(f"Subscription data: \n{text}\n{_ROW_RULE}")
    if found.text("filterData", ""):
        print(f"Filter data: \n{found.text('filterData', '')}\n{_ROW_RULE}")
    reach = (found.integer("maxQueueIndex", 0), found.integer("minQueueIndex", 0))
    print("Queue data: \nmax: {}, min: {}".format(*reach))
    print(_ROW_RULE)
    for number, entry in enumerate(found.array("queueData"), index):
        print(f"idx: {number}\n{_row_text(Fields(entry, 'a row'))}\n{_ROW_RULE}")


def _row_text(row: Fields) -> str:
    values = row.unknown(frozenset())
    numbers = [
        f"{name}={row.integer(name, 0)}" for name in ("physicOffset", "physicSize", "tagsCode")
    ]
    texts = [f"{name}='{value_text(values.get(name))}'" for name in ("extendDataJson", "bitMap")]
    end = [
        f"eval={value_text(row.boolean('eval', False))}",
        f"msg='{value_text(values.get('msg'))}'",
    ]
    return f"ConsumeQueueData{{{', '.join([*numbers, *texts, *end])}}}"


COMMANDS = (
    Command(
        "printMsg",
        "The messages of a topic, queue by queue.",
        print_msg,
        (
            _TOPIC,
            _CHARSET,
            _TAGS,
            _begin("b"),
            _end("e"),
            may("d", "printBody", "false to leave out the bodies (true)"),
            may("l", "lmqParentTopic", "the topic whose route an LMQ shares"),
        ),
        (105, 31, 30, 29, 11),
    ),
    Command(
        "printMsgByQueue",
        "The messages of one queue, or how many have which tag.",
        print_msg_by_queue,
        (
            _TOPIC,
            need("a", "brokerName", "broker name"),
            need("i", "queueId", "queue id"),
            _CHARSET,
            _TAGS,
            _begin("b"),
            _end("e"),
            may("p", "print msg", "true to print the messages (false)"),
            may("d", "printBody", "true to print their bodies (false)"),
            may("f", "calculate", "true to count them by tag (false)"),
        ),
        (105, 31, 30, 29, 11),
    ),
    Command(
        "consumeMessage",
        "Read messages of a topic, or of one queue; no group's offset moves.",
        consume_message,
        (
            _TOPIC,
            may("b", "brokerName", "with -i: broker name"),
            may("i", "queueId", "with -b: this queue only"),
            may("o", "offset", "with -i: from this queue offset on"),
            may("g", "consumerGroup", "consumer group name; nothing differs"),
            _begin("s"),
            _end("e"),
            may("c", "MessageNumber", "at most this many messages (128)"),
        ),
        (105, 31, 30, 29, 11),
    ),
    Command(
        "queryCq",
        "Rows of a queue as they stand in its files.",
        query_cq,
        (
            _TOPIC,
            need("q", "queue", "queue id"),
            need("i", "index", "queue offset of the first row"),
            may("c", "count", "how many rows (10)"),
            may("b", "broker", "broker address; else the first that has the topic"),
            may("g", "consumer", "whether this group's filter takes them"),
        ),
        (105, 106, 321),
    ),
)
