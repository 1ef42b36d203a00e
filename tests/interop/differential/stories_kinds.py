"""Whole stories of messages that wait: sent back, delayed, timed, half of a transaction, replies.

They end with requests that one server alone takes: the places in the queues that messages wait in
differ from there on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.interop.differential.opening import topic_settings
from tests.interop.differential.requests import BROKER, FieldValue, Moment, Reference, Request
from tests.interop.differential.runner import ASKER
from tests.interop.differential.specs import (
    encode_batch,
    encode_json,
    encode_properties,
    group_config,
    heartbeat,
    subscription,
)
from tests.interop.differential.specs_kinds import (
    HOUR_MS,
    NOW,
    TIMER_S_MAX,
    end_fields,
    half_message,
    timed_message,
)

_PLACE_ID = "7F00000100002A9F{:016X}"


def kind_stories() -> Iterator[Request]:
    """Each once, in this order."""
    yield from _sent_back_twice_and_given_up()
    yield from _send_back_refused()
    yield from _send_back_of_nothing()
    yield from _retries_of_a_consumer_that_sends_itself()
    yield from _a_delay_is_over()
    yield from _a_time_has_come()
    yield from _recalled_in_time()
    yield from _how_the_timer_stands()
    yield from _handles()
    yield from _committed_and_rolled_back()
    yield from _ends_that_do_not_fit()
    yield from _too_late_to_end()
    yield from _a_client_gets_replies()
    yield from _taken_by_one_alone()


def _send(topic: str, properties: dict[str, str] | None = None, **more: FieldValue) -> Request:
    named: dict[str, FieldValue] = {"a": "Writers", "b": topic, "c": "TBW102", "d": "4", "e": "0"}
    named |= {"f": "0", "g": "1600000000000", "h": "3"} | more
    if properties is not None:
        named["i"] = encode_properties(properties)
    return Request(BROKER, 310, named, b"kept", "story")


def _labelled(request: Request, label: str) -> Request:
    return dataclasses.replace(request, label=label)


def _pull(
    topic: str, *, queue_id: str = "0", first: str = "0", label: str | None = None
) -> Request:
    """Until there is something."""
    fields = {"consumerGroup": "Fresh", "topic": topic, "queueId": queue_id, "queueOffset": first}
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subVersion": "0"}
    fields |= {"suspendTimeoutMillis": "0", "subscription": "*"}
    return Request(BROKER, 11, fields, what="story", label=label, awaited=True)


def _back(label: str, group: str, level: str, **more: FieldValue) -> Request:
    offset = Reference(label, "msgId", physical=True)
    named: dict[str, FieldValue] = {"offset": offset, "group": group, "delayLevel": level}
    return Request(BROKER, 36, named | {"originTopic": "Retried"} | more, what="story")


# Sent back.


def _sent_back_twice_and_given_up() -> Iterator[Request]:
    yield Request(BROKER, 200, None, encode_json(group_config("Again", retryMaxTimes=2)), "story")
    keys = {"UNIQ_KEY": "again-1", "KEYS": "k", "TAGS": "TagA", "own": "property"}
    yield _labelled(_send("Retried", keys), "retried")
    yield _back("retried", "Again", "1", originMsgId="origin")
    yield _pull("%RETRY%Again", label="again")
    record = Reference("again", "record")
    for level in ("1", "0"):
        yield _back("retried", "Again", level, offset=record, maxReconsumeTimes="3")
    yield _pull("%RETRY%Again", first="1", label="third")
    yield _back("retried", "Again", "3", offset=Reference("third", "record"))
    yield _back("retried", "Again", "-1")
    yield _back("retried", "Again", "0", maxReconsumeTimes="0")
    yield _pull("%DLQ%Again", label="dead")
    yield _back("retried", "Again", "0", offset=Reference("dead", "record"))
    for topic in ("%RETRY%Again", "%DLQ%Again"):
        yield Request(BROKER, 351, {"topic": topic}, what="story")
        yield Request(BROKER, 30, {"topic": topic, "queueId": "0"}, what="story")


def _send_back_refused() -> Iterator[Request]:
    none = group_config("NoRetries", retryQueueNums=0)
    yield Request(BROKER, 200, None, encode_json(none), "story")
    for level in ("0", "-1"):
        yield _back("retried", "NoRetries", level)
        yield _back("retried", "NoRetries", level, offset="-1")
    yield Request(BROKER, 351, {"topic": "%RETRY%NoRetries"}, what="story")
    # An old client has no maximum, whatever stands in its request.
    old = _back("retried", "Again", "0", maxReconsumeTimes="0")
    yield dataclasses.replace(old, header={"version": 120})
    yield dataclasses.replace(old, header={"version": 121})
    yield Request(BROKER, 30, {"topic": "%DLQ%Again", "queueId": "0"}, what="story")
    yield from _not_allowed()


def _not_allowed() -> Iterator[Request]:
    for permission in ("4", "6"):
        yield Request(BROKER, 25, None, f"brokerPermission={permission}\n".encode(), "story")
        yield _back("retried", "Again", "5")
        yield _back("retried", "NoRetries", "5")
        yield _back("retried", "bad group", "5")
        recall = {"topic": "Timed", "recallHandle": Reference("timed-0", "recallHandle")}
        yield Request(BROKER, 370, recall, what="story")
    for perm in ("4", "6"):
        settings = topic_settings("%RETRY%Again", queues="1") | {"perm": perm}
        yield Request(BROKER, 17, settings, what="story")
        for level in ("5", "-1"):
            yield _back("retried", "Again", level)


def _send_back_of_nothing() -> Iterator[Request]:
    for offset in ("-1", "0", "9223372036854775807", "-9223372036854775808", "1000000000000"):
        yield _back("retried", "Again", "0", offset=offset)
    for beside in (1, -1, 4, 88):
        place = Reference("retried", "msgId", physical=True, beside=beside)
        yield _back("retried", "Again", "0", offset=place)
    yield _back("retried", "NewGroup", "6")
    yield Request(BROKER, 351, {"topic": "%RETRY%NewGroup"}, what="story")
    for group in ("", " ", "bad group", "g" * 120, "g" * 255, "g" * 256, "é"):
        yield _back("retried", group, "6", offset="-1")


def _retries_of_a_consumer_that_sends_itself() -> Iterator[Request]:
    """As clients do when the broker did not take a message back."""
    for times, most in (("0", "16"), ("1", "1"), ("2", "1"), ("3", "-1"), ("17", ""), ("1", "0")):
        for properties in ({"DELAY": "5"}, {"DELAY": "0"}, {"TIMER_DELAY_SEC": "3600"}, {}):
            more: dict[str, FieldValue] = {"j": times} | ({"l": most} if most else {})
            yield _send("%RETRY%Again", {"UNIQ_KEY": "by-hand"} | properties, **more)
    for topic in ("%RETRY%Unheard", "%DLQ%Again"):
        yield _send(topic, {"DELAY": "5"}, j="1")
    retried = {"TRAN_MSG": "true", "PGROUP": "Deciders", "DELAY": "5", "UNIQ_KEY": "both"}
    yield _send("Retried", retried, j="1")
    yield Request(BROKER, 30, {"topic": "%DLQ%Again", "queueId": "0"}, what="story")


# Delays and timers.


def _a_delay_is_over() -> Iterator[Request]:
    keys = {"UNIQ_KEY": "delayed-1", "TAGS": "TagB", "DELAY": "1", "WAIT": "true"}
    yield _labelled(_send("Delayed", keys, e="2"), "delayed")
    yield _send("Delayed", {"DELAY": "1", "UNIQ_KEY": "delayed-2", "REAL_QID": "77"}, e="3")
    for queue_id in ("2", "3"):
        yield _pull("Delayed", queue_id=queue_id)
    keyed = {"topic": "Delayed", "key": "delayed-1", "maxNum": "10", "beginTimestamp": "0"}
    keyed |= {"endTimestamp": "9000000000000", "_UNIQUE_KEY_QUERY": "true"}
    yield Request(BROKER, 12, keyed, what="story")


def _a_time_has_come() -> Iterator[Request]:
    for name, text, queue_id in (
        ("TIMER_DELAY_SEC", "2", "0"),
        ("TIMER_DELAY_MS", "1500", "1"),
        ("TIMER_DELIVER_MS", "{at}", "2"),
    ):
        encoded = encode_properties({name: text, "UNIQ_KEY": f"due-{queue_id}", "TAGS": "TagA"})
        yield _send("Due", e=queue_id, i=Moment(encoded, 2_500))
    for queue_id in ("0", "1", "2"):
        yield _pull("Due", queue_id=queue_id)
    # At once: it was due.
    yield _send("Due", {"TIMER_DELAY_MS": "-5", "UNIQ_KEY": "due-before"}, e="3")
    yield _pull("Due", queue_id="3")


def _recalled_in_time() -> Iterator[Request]:
    yield timed_message("called-back", after_ms=10_000, topic="Recalled")
    recall = {"topic": "Recalled", "recallHandle": Reference("called-back", "recallHandle")}
    yield Request(BROKER, 370, recall, what="story")
    yield timed_message("delivered", after_ms=12_000, topic="Recalled")
    yield _pull("Recalled")


def _handles() -> Iterator[Request]:
    """Texts that are no handles, or not of this message."""
    whole = "v1 Timed broker-a {at} nobody"
    texts = [whole, whole.replace("v1", "v2"), whole.removesuffix(" nobody")]
    texts += [whole.replace("Timed", "Other"), whole.replace("broker-a", "broker-b"), "", "v1"]
    texts += [whole.replace("{at}", text) for text in ("abc", "-1", "0", "", "9" * 19, "9" * 20)]
    texts += [whole.replace("{at}", "{at}.0"), f" {whole}", whole.replace(" ", "  ")]
    texts += [whole.replace("nobody", "né")]
    for text in texts:
        yield _recall(Moment(text, HOUR_MS, encoded=True))
    for text in (whole + " more", whole + " ", whole.replace("{at}", "+{at}")):
        loose = _recall(Moment(text, HOUR_MS, encoded=True))
        yield dataclasses.replace(loose, what="story loose handle")
    for after_ms in (-1, (TIMER_S_MAX + 60) * 1000, (TIMER_S_MAX - 60) * 1000):
        yield _recall(Moment(whole, after_ms, encoded=True))
    for handle in ("", "v1", "djE", "####", "djEgVGltZWQ", "/+/+", "é", "x" * 3_000):
        yield _recall(handle)
    for topic in ("Unknown", "", "%RETRY%Again", "SCHEDULE_TOPIC_XXXX"):
        yield dataclasses.replace(
            _recall(Moment(whole, HOUR_MS, encoded=True)),
            fields={"topic": topic, "recallHandle": Moment(whole, HOUR_MS, encoded=True)},
        )


def _recall(handle: FieldValue) -> Request:
    return Request(BROKER, 370, {"topic": "Timed", "recallHandle": handle}, what="story")


def _how_the_timer_stands() -> Iterator[Request]:
    yield Request(BROKER, 61, what="story")
    yield Request(BROKER, 60, what="story")
    yield Request(BROKER, 45, what="story")


# Transactions.


def _committed_and_rolled_back() -> Iterator[Request]:
    tagged = encode_properties(
        {"TRAN_MSG": "true", "PGROUP": "Deciders", "UNIQ_KEY": "tagged", "TAGS": "TagA", "x": "y"}
    )
    for label, fate in (("whole-0", "8"), ("whole-1", "12"), ("whole-2", "8")):
        request = half_message(label, b="Committed", i=tagged, e="2", h="7")
        yield dataclasses.replace(request, what="story")
        yield Request(BROKER, 37, end_fields(label, fate), what="story")
        yield _pull("Committed", queue_id="2")
    checked = end_fields("whole-3", "8") | {"fromTransactionCheck": "true"}
    yield dataclasses.replace(half_message("whole-3", b="Committed", e="3"), what="story")
    yield Request(BROKER, 37, checked, what="story", one_way=True)
    yield _pull("Committed", queue_id="3")
    yield Request(BROKER, 30, {"topic": "Committed", "queueId": "2"}, what="story")


def _ends_that_do_not_fit() -> Iterator[Request]:
    yield dataclasses.replace(half_message("unfit"), what="story")
    fields = end_fields("unfit", "8")
    place = Reference("unfit", "msgId", physical=True, beside=1)
    for wrong in (
        {"producerGroup": "Others"},
        {"producerGroup": ""},
        {"tranStateTableOffset": "-1"},
        {"tranStateTableOffset": "9223372036854775807"},
        {"commitLogOffset": "-1"},
        {"commitLogOffset": "9223372036854775807"},
        {"commitLogOffset": place},
        {"commitLogOffset": Reference("retried", "msgId", physical=True)},
        {"commitLogOffset": Reference("delayed", "msgId", physical=True)},
        {"commitLogOffset": Reference("timed-0", "msgId", physical=True)},
        {"producerGroup": "Others", "tranStateTableOffset": "-1"},
    ):
        for fate in ("8", "12"):
            changed = fields | wrong | {"commitOrRollback": fate}
            yield Request(BROKER, 37, changed, what="story")
    for fate in ("0", "0", "4", "1", "16", "-8"):
        for checked in ("false", "true"):
            changed = fields | {"commitOrRollback": fate, "fromTransactionCheck": checked}
            request = Request(BROKER, 37, changed, what="story", connection="ends")
            yield dataclasses.replace(request, unanswered=fate == "0")
    yield Request(BROKER, 37, fields, what="story", connection="ends")
    for wrong_id in ("", "x", _PLACE_ID.format(1), _PLACE_ID.format((1 << 63) - 1)):
        yield Request(BROKER, 323, {"msgId": wrong_id}, what="story")


def _too_late_to_end() -> Iterator[Request]:
    """A message that asked for a late check, and is older than that."""
    for label, immune_s, age_ms in (
        ("late-0", "1", 2 * HOUR_MS),
        ("late-1", "600", 1),
        ("late-2", "nonsense", 2 * HOUR_MS),
        ("late-3", "", 2 * HOUR_MS),
        ("late-4", "10000", 2 * HOUR_MS),
        ("late-5", "-1", 2 * HOUR_MS),
    ):
        properties = {"TRAN_MSG": "true", "PGROUP": "Deciders", "UNIQ_KEY": label}
        properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = immune_s
        encoded = encode_properties(properties)
        born = Moment("{at}", -age_ms)
        yield dataclasses.replace(half_message(label, g=born, i=encoded), what="story")
        fields = end_fields(label, "8")
        wrong = fields | {"producerGroup": "Others"}
        yield Request(BROKER, 37, wrong, what="story")
        yield Request(BROKER, 37, fields, what="story")
        checked = fields | {"fromTransactionCheck": "true"}
        yield Request(BROKER, 37, wrong | {"fromTransactionCheck": "true"}, what="story")
        yield Request(BROKER, 37, checked, what="story")


# Replies.


def _a_client_gets_replies() -> Iterator[Request]:
    properties = {"CORRELATION_ID": "c-2", "REPLY_TO_CLIENT": ASKER, "UNIQ_KEY": "answer"}
    for topic, queue_id, more in (
        ("DefaultCluster_REPLY_TOPIC", "0", {}),
        ("Replies", "3", {"TAGS": "TagA"}),
        ("Replies", "2", {"WAIT": "false"}),
        ("Replies", "9", {}),
        ("Closed", "0", {}),
        ("bad name", "0", {}),
        ("SCHEDULE_TOPIC_XXXX", "0", {}),
    ):
        yield _reply(topic, properties | more, queue_id)
    for queue_id in ("3", "2"):
        yield _pull("Replies", queue_id=queue_id)
    yield dataclasses.replace(_reply("Replies", properties, "0"), body=b"")
    for sys_flag in ("0", "1", "4", "64"):
        yield _reply("Replies", properties, "1", f=sys_flag)
    for waiting in ({"DELAY": "5"}, {"TIMER_DELAY_SEC": "3600"}, {"TRAN_MSG": "true"}):
        waits = _reply("Replies", properties | waiting, "1")
        yield dataclasses.replace(waits, what="story waiting reply")


def _reply(topic: str, properties: dict[str, str], queue_id: str, **more: str) -> Request:
    request = _send(topic, properties, e=queue_id, j="2", k="true", **more)
    return dataclasses.replace(request, code=325, body=b"reply")


# Taken by one server alone.


def _taken_by_one_alone() -> Iterator[Request]:
    without = {"offset": Reference("retried", "msgId", physical=True), "group": "WrongBacks"}
    yield Request(BROKER, 36, without | {"delayLevel": "-1"}, what="story")
    yield from _hidden_places()
    yield from _the_order_of_retries()
    yield from _another_fate()
    yield from _resumed_anything()
    yield from _other_waiting()


def _hidden_places() -> Iterator[Request]:
    """Messages in the waiting topics have not been delivered."""
    yield dataclasses.replace(half_message("hidden-half"), what="story")
    for label in ("delayed", "timed-0", "hidden-half"):
        yield dataclasses.replace(_back(label, "Again", "17"), what="story hidden")
    other = _back("retried", "WrongBacks", "17", offset=Reference("again", "record"))
    yield dataclasses.replace(other, what="story of others")
    forbidden = {"group": "WrongBacks", "topic": "Retried", "readable": "false"}
    yield Request(BROKER, 353, forbidden, what="story")
    back = _back("retried", "WrongBacks", "17")
    yield dataclasses.replace(back, what="story forbidden")


def _the_order_of_retries() -> Iterator[Request]:
    """The order that a heartbeat sets for a retry topic, and the request that resets it."""
    full = {"Shorter": [subscription("Ordered", "*")]}
    retries = Request(BROKER, 351, {"topic": "%RETRY%Shorter"}, what="story order")
    for _ in range(2):
        body = heartbeat("shorter", full, fingerprint=7)
        yield Request(BROKER, 34, None, body, "story", connection="shorter")
        yield retries
    short = heartbeat("shorter", {"Shorter": []}, fingerprint=7, without=True)
    yield Request(BROKER, 34, None, short, "story", connection="shorter")
    yield retries
    body = heartbeat("shorter", full, fingerprint=7)
    yield Request(BROKER, 34, None, body, "story", connection="shorter")
    yield _back("retried", "Shorter", "17")
    yield retries
    goodbye = {"clientID": "shorter", "consumerGroup": "Shorter"}
    yield Request(BROKER, 35, goodbye, what="story", connection="shorter")


def _another_fate() -> Iterator[Request]:
    for label, first, second in (("fate-0", "8", "12"), ("fate-1", "12", "8")):
        yield dataclasses.replace(half_message(label), what="story")
        yield Request(BROKER, 37, end_fields(label, first), what="story")
        yield Request(BROKER, 37, end_fields(label, first), what="story")
        yield Request(BROKER, 37, end_fields(label, second), what="story another fate")


def _resumed_anything() -> Iterator[Request]:
    for label in ("retried", "fate-0"):
        fields = {"msgId": Reference(label, "msgId")}
        yield Request(BROKER, 323, fields, what="story resumed")
    yield Request(BROKER, 323, {"msgId": "0" * 32}, what="story resumed")


def _other_waiting() -> Iterator[Request]:
    half = {"TRAN_MSG": "true", "PGROUP": "Deciders"}
    for properties in (half | {"DELAY": "17"}, half | {"TIMER_DELAY_SEC": "3600"}):
        yield dataclasses.replace(_send("Halves", properties, g=NOW), what="story delayed half")
    yield dataclasses.replace(_send("rmq_sys_wheel_timer"), what="story to the timer")
    most = str((1 << 63) - 1)
    for name in ("TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
        yield dataclasses.replace(_send("Due", {name: most}, e="3"), what="story wrapped time")
    yield from _batches_that_wait()


def _batches_that_wait() -> Iterator[Request]:
    """By the properties of the whole, or of a message in it."""
    timed, half = {"TIMER_DELAY_SEC": "3600"}, {"TRAN_MSG": "true", "PGROUP": "Deciders"}
    wholes: tuple[tuple[dict[str, str], str], ...] = (
        ({"DELAY": "17"}, "0"),
        ({"DELAY": "-1"}, "0"),
        ({"DELAY": "0"}, "0"),
        ({"DELAY": "nonsense"}, "0"),
        (timed | {"TIMER_OUT_MS": "1"}, "0"),
        ({"TIMER_DELAY_SEC": "0"}, "0"),
        (half, "0"),
        (half, "4"),
        ({}, "8"),
        ({}, "12"),
        (timed, "0"),
        ({"TIMER_DELAY_SEC": str(TIMER_S_MAX + 60)}, "0"),
    )
    plain = encode_batch([(b"one", ""), (b"two", "")])
    for queue_id, (properties, sys_flag) in enumerate(wholes):
        yield _batch(plain, str(queue_id), encode_properties(properties), sys_flag)
    for number, inner in enumerate(({"DELAY": "17"}, {"DELAY": "0"}, timed, half)):
        body = encode_batch([(b"one", ""), (b"two", encode_properties(inner))])
        yield _batch(body, str(len(wholes) + number), "", "0")


def _batch(body: bytes, queue_id: str, properties: str, sys_flag: str) -> Request:
    request = _send("Batched", e=queue_id, f=sys_flag, i=properties, m="true")
    return dataclasses.replace(request, code=320, body=body, what="story waiting batch")
