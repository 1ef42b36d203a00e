"""Driver of the C++ client inside PyPI's ``rocketmq``: a command in, one JSON line per event out.

Runs in the virtual environment of that package, whose one compiled library does all the work.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from ipaddress import IPv4Address
from typing import Any

from rocketmq.client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
    SendResult,
    SendStatus,
)
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import MessageModel, _CConsumeStatus, _CMessageQueue, _CPullStatus, dll

Arguments = dict[str, Any]

COMPRESSED_BODY_BYTES = 8192
RETRY_PAUSE_S = 0.2
ATTEMPTS_MAX = 10
START_TIMEOUT_S = 90.0
# A send that takes longer is tried again by the client, and may then be stored twice.
SEND_TIMEOUT_MS = 20_000
CLOSE_TIMEOUT_S = 10.0
PULL_BATCH = 32
PULL_PAUSE_S = 0.1
CONSUME_FROM_FIRST_OFFSET = 4

_STATUS_NAMES = {SendStatus.OK: "SEND_OK"}
_printing = threading.Lock()
# Standard output is for events only: the library prints there too, and not in whole lines.
_events = os.dup(1)
os.dup2(2, 1)


class Tally:
    """Counts received messages; ``ended`` is set at the count, the deadline or end of input."""

    def __init__(self, arguments: Arguments) -> None:
        self._wanted = arguments.get("count", 0)
        self._brokers = arguments.get("brokers", {})
        self._counting = threading.Lock()
        self.seen = 0
        self.ended = end_of_input()

    def received(self, message: RecvMessage) -> None:
        address = store_host(message)
        with self._counting:
            say(received_event(message) | {"broker": self._brokers.get(address, address)})
            self.seen += 1
            if self.seen == self._wanted:
                self.ended.set()


def end_of_input() -> threading.Event:
    """Set once the parent process has closed this one's input."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def say(event: dict[str, Any]) -> None:
    line = json.dumps(event).encode() + b"\n"
    with _printing:
        os.write(_events, line)


def capabilities(_: Arguments) -> None:
    commands = {
        "send": ["sync", "async", "oneway", "compressed", "queue_selector"],
        "push": ["concurrently", "orderly", "broadcasting", "TAG"],
        "pull": [],
    }
    say(
        {
            "event": "capabilities",
            "client": "rocketmq (C++)",
            "version": version("rocketmq"),
            "commands": commands,
        }
    )


def sign(client: Producer | PushConsumer) -> None:
    """Sign for the user that the environment names, if it does."""
    access_key = os.environ.get("DRIVER_ACCESS_KEY")
    if access_key is not None:
        client.set_session_credentials(access_key, os.environ["DRIVER_SECRET_KEY"], "channel")


def send(arguments: Arguments) -> None:
    producer = Producer(arguments["group"], timeout=SEND_TIMEOUT_MS)
    producer.set_namesrv_addr(arguments["namesrv"])
    sign(producer)
    producer.start()
    modes = {"batch": send_batch, "async": send_async}
    count = modes.get(arguments["mode"], send_in_turn)(producer, arguments)
    if arguments["mode"] == "oneway":
        # One-way sends have no answer: the test closes our input once it has seen the messages.
        end_of_input().wait()
    producer.shutdown()
    say({"event": "done", "count": count})


def send_in_turn(producer: Producer, arguments: Arguments) -> int:
    ended = end_of_input()
    sent = 0
    for number in numbers(arguments):
        if not ended.wait(arguments.get("pause_ms", 0) / 1000):
            sent += send_one(producer, arguments, number, ended)
    return sent


def send_one(producer: Producer, arguments: Arguments, number: int, ended: threading.Event) -> bool:
    """Send it, again and again where that is asked for, and say whether it was acknowledged."""
    attempts = 0
    while True:
        attempts += 1
        try:
            result = hand_over(producer, arguments, number)
        except Exception as problem:
            may_go_on = may_try_again(arguments, problem) and attempts < ATTEMPTS_MAX
            if not arguments.get("retry_forever") and not may_go_on:
                say({"event": "error", "key": f"k-{number}", "text": repr(problem)})
                return False
            if ended.wait(RETRY_PAUSE_S):
                return False
        else:
            say(sent_event(number, result))
            return True


def may_try_again(arguments: Arguments, problem: Exception) -> bool:
    """Whether this driver retries instead of the client.

    The client forgets a route when it cannot refresh it within three seconds, as on a busy
    machine. No message has been sent then, so a retry sends none twice. And the client would send a
    message for a selected queue to another broker's queue when the first attempt fails.
    """
    return "No route info" in repr(problem) or arguments.get("queue_selector") is not None


def hand_over(producer: Producer, arguments: Arguments, number: int) -> SendResult | None:
    message = message_of(arguments, number)
    selector = arguments.get("queue_selector")
    if arguments["mode"] == "oneway":
        producer.send_oneway(message)
        return None
    if selector is None:
        result = producer.send_sync(message)
    else:
        choice = number if selector == "hash" else selector
        result = producer.send_orderly(message, choice, retry_times=0)
    if result.status is not SendStatus.OK:
        raise RuntimeError(f"status {result.status.name}")
    return result


def send_async(producer: Producer, arguments: Arguments) -> int:
    """Send everything, then wait for every answer; messages must live until theirs has come."""
    messages = [message_of(arguments, number) for number in numbers(arguments)]
    answers: list[bool] = []
    answered = threading.Condition()

    def note(event: dict[str, Any], good: bool) -> None:
        say(event)
        with answered:
            answers.append(good)
            answered.notify()

    for number, message in zip(numbers(arguments), messages, strict=True):
        producer.send_async(
            message,
            lambda result, number=number: note(sent_event(number, result), True),
            lambda problem, number=number: note(
                {"event": "error", "key": f"k-{number}", "text": repr(problem)}, False
            ),
        )
        time.sleep(arguments.get("pause_ms", 0) / 1000)
    with answered:
        answered.wait_for(lambda: len(answers) == len(messages), START_TIMEOUT_S)
    return sum(answers)


def send_batch(producer: Producer, arguments: Arguments) -> int:
    """Send all messages in one request; its one answer is the place of the first of them."""
    messages = [message_of(arguments, number) for number in numbers(arguments)]
    result = producer.send_batch(messages)
    for index, number in enumerate(numbers(arguments)):
        say(sent_event(number, result._replace(offset=result.offset + index)))
    return len(messages)


def numbers(arguments: Arguments) -> range:
    return range(arguments["start"], arguments["start"] + arguments["count"])


def message_of(arguments: Arguments, number: int) -> Message:
    default_bytes = COMPRESSED_BODY_BYTES if arguments["mode"] == "compressed" else 0
    message = Message(arguments["topic"])
    message.set_keys(f"k-{number}")
    message.set_body(f"body-{number}".ljust(arguments.get("body_bytes") or default_bytes, "."))
    tags = arguments.get("tags") or ([arguments["tag"]] if arguments.get("tag") else [])
    if tags:
        message.set_tags(tags[(number - arguments["start"]) % len(tags)])
    if arguments.get("delay_level"):
        message.set_delay_time_level(arguments["delay_level"])
    for name, value in (arguments.get("properties") or {}).items():
        message.set_property(name, str(value))
    return message


def sent_event(number: int, result: SendResult | None) -> dict[str, Any]:
    event = {"event": "sent", "key": f"k-{number}", "status": "ONEWAY"}
    if result is None:
        return event
    status = _STATUS_NAMES.get(result.status, result.status.name)
    return event | {"status": status, "message_id": result.msg_id, "queue_offset": result.offset}


def push(arguments: Arguments) -> None:
    tally = Tally(arguments)
    model = MessageModel.BROADCASTING if arguments.get("broadcasting") else MessageModel.CLUSTERING
    consumer = PushConsumer(arguments["group"], bool(arguments.get("orderly")), model)
    consumer.set_namesrv_addr(arguments["namesrv"])
    sign(consumer)
    consumer.set_instance_name(arguments.get("instance") or f"{os.getpid()}-{time.time_ns()}")
    # Of a larger batch the library sends back all, also messages the callback never saw.
    consumer.set_message_batch_max_size(1)
    if arguments.get("from") == "first":
        start_at_first(consumer)
    subscribe(consumer, arguments, tally)
    consumer.start()
    say({"event": "ready"})
    tally.ended.wait(arguments["timeout_s"])
    say({"event": "done", "count": tally.seen})
    shut_down(consumer.shutdown)


def subscribe(consumer: PushConsumer, arguments: Arguments, tally: Tally) -> None:
    """Subscribe with a callback of our own.

    The Python package's callback raises its user's exception out of a C function, which then
    returns 0: success.
    """
    topic, expression = arguments["topic"], arguments.get("expression", "*")
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), expression.encode()))
    failures_left = dict(arguments.get("fail_times") or {})

    def on_message(_: Any, handle: Any) -> int:
        message = RecvMessage(handle)
        tally.received(message)
        key = text_of(message.keys)
        left = failures_left.get(key, 0)
        failures_left[key] = left - 1
        status = _CConsumeStatus.RECONSUME_LATER if left > 0 else _CConsumeStatus.CONSUME_SUCCESS
        return int(status)

    consumer._register_callback(on_message)


def start_at_first(consumer: PushConsumer) -> None:
    """Ask the C++ object itself: the library has this setting, its C functions leave it out."""
    setter = dll._ZN8rocketmq21DefaultMQPushConsumer19setConsumeFromWhereENS_16ConsumeFromWhereE
    setter.argtypes = [ctypes.c_void_p, ctypes.c_int]
    setter.restype = None
    setter(consumer._handle, CONSUME_FROM_FIRST_OFFSET)


def pull(arguments: Arguments) -> None:
    tally = Tally(arguments)
    consumer = PullConsumer(arguments["group"])
    consumer.set_namesrv_addr(arguments["namesrv"])
    consumer.start()
    queues = queues_of(consumer, arguments)
    say({"event": "ready"})
    deadline = time.monotonic() + arguments["timeout_s"]
    places = [arguments.get("queue_offset") or 0] * len(queues)
    while not tally.ended.is_set() and time.monotonic() < deadline:
        for index, queue in enumerate(queues):
            places[index] = pull_once(consumer, queue, places[index], tally)
        tally.ended.wait(PULL_PAUSE_S)
    say({"event": "done", "count": tally.seen})
    shut_down(consumer.shutdown)


def queues_of(consumer: PullConsumer, arguments: Arguments) -> list[_CMessageQueue]:
    """The topic's queues, once it has a route: a topic just made has none for a moment."""
    found = ctypes.POINTER(_CMessageQueue)()
    count = ctypes.c_int()
    topic = arguments["topic"].encode()
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        dll.FetchSubscriptionMessageQueues(
            consumer._handle, topic, ctypes.pointer(found), ctypes.pointer(count)
        )
        if count.value > 0:
            wanted = arguments.get("queue_id")
            queues = [found[index] for index in range(count.value)]
            return [queue for queue in queues if wanted is None or queue.queueId == wanted]
        time.sleep(RETRY_PAUSE_S)
    raise RuntimeError(f"topic {arguments['topic']} has no queues after {START_TIMEOUT_S} s")


def pull_once(
    consumer: PullConsumer, queue: _CMessageQueue, queue_offset: int, tally: Tally
) -> int:
    """Pull a run of messages from one queue and return where the next run begins."""
    result = dll.Pull(consumer._handle, ctypes.pointer(queue), b"*", queue_offset, PULL_BATCH)
    if result.pullStatus == _CPullStatus.FOUND:
        for index in range(result.size):
            tally.received(RecvMessage(result.msgFoundList[index]))
    if result.pullStatus != _CPullStatus.BROKER_TIMEOUT:
        queue_offset = result.nextBeginOffset
    dll.ReleasePullResult(result)
    return queue_offset


def received_event(message: RecvMessage) -> dict[str, Any]:
    return {
        "event": "received",
        "key": text_of(message.keys),
        "body": text_of(message.body),
        "tag": text_of(message.tags),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "reconsume_times": message.reconsume_times,
        "thread": str(threading.get_native_id()),
        "message_id": message.id,
    }


class _SocketAddress(ctypes.Structure):
    """``sockaddr_in``, in the byte order of the network."""

    _fields_ = (
        ("family", ctypes.c_uint16),
        ("port", ctypes.c_uint16.__ctype_be__),
        ("host", ctypes.c_uint32.__ctype_be__),
        ("zero", ctypes.c_uint64),
    )


def store_host(message: RecvMessage) -> str:
    """The address of the broker, which the library knows and its C functions leave out."""
    getter = dll._ZNK8rocketmq12MQMessageExt12getStoreHostEv
    getter.argtypes = [ctypes.c_void_p]
    getter.restype = _SocketAddress
    address = getter(message._handle)
    return f"{IPv4Address(address.host)}:{address.port}"


def text_of(value: bytes | None) -> str | None:
    return value.decode() if value else None


def shut_down(shutdown: Callable[[], None]) -> None:
    """Leave the group; the library aborts or hangs in about half of its shutdowns."""
    libc = ctypes.CDLL(None)
    for fatal in (signal.SIGABRT, signal.SIGSEGV):
        libc.signal(int(fatal), libc._exit)
    watchdog = threading.Timer(CLOSE_TIMEOUT_S, os._exit, [0])
    watchdog.daemon = True
    watchdog.start()
    shutdown()


def main() -> None:
    commands = {"capabilities": capabilities, "send": send, "push": push, "pull": pull}
    command, *rest = sys.argv[1:]
    try:
        commands[command](json.loads(rest[0]) if rest else {})
    except Exception as problem:
        say({"event": "error", "text": repr(problem)})
        os._exit(2)
    # The destructors of the library shut everything down once more, and that aborts.
    os._exit(0)


main()
