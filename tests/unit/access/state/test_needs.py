"""The closed table of needs."""

from __future__ import annotations

import json

import pytest

from contrail.access.state.needs import NEEDS, needs_of
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request


class _Facts:
    cluster_name = "c"

    def has_topic(self, topic: str) -> bool:
        return topic == "old"

    def sink_topics(self, sink_id: str) -> tuple[str, ...]:
        return ("orders", "%RETRY%g") if sink_id == "known" else ()


def asked(code: int, fields: dict[str, str] | None = None, body: object = None) -> list[str]:
    data = b"" if body is None else json.dumps(body).encode()
    needs = needs_of(Request(code, 1, fields or {}, data), _Facts())
    assert needs is not None
    return [str(need) for need in needs]


def pull(topic: str, group: str) -> list[str]:
    return asked(RequestCode.PULL_MESSAGE, {"topic": topic, "consumerGroup": group})


def test_a_send_needs_pub_in_either_spelling() -> None:
    assert asked(RequestCode.SEND_MESSAGE, {"topic": "t"}) == ["Pub on Topic:t"]
    # The other spelling's name of the topic counts for nothing.
    assert asked(RequestCode.SEND_MESSAGE_V2, {"b": "t", "topic": "mine"}) == ["Pub on Topic:t"]
    assert asked(RequestCode.SEND_REPLY_MESSAGE_V2, {"b": "r"}) == ["Pub on Topic:r"]


def test_each_entry_of_a_batch_of_acknowledgements_needs_its_own_group_and_topic() -> None:
    entries = [{"c": "g", "t": "t", "r": "1"}, {"c": "h", "t": "%RETRY%g", "r": "0"}]
    assert asked(RequestCode.BATCH_ACK_MESSAGE, body={"acks": entries}) == [
        *("Sub on Group:g", "Sub on Topic:t", "Sub on Group:h", "Sub on Group:g"),
    ]
    question = {"consumerGroup": "g", "topic": "t"}
    assert asked(RequestCode.QUERY_ASSIGNMENT, body=question) == [
        "Sub on Group:g",
        "Sub on Topic:t",
    ]


@pytest.mark.proves("access.rules.retries")
def test_a_retry_topic_counts_as_its_group() -> None:
    sent = {"b": "%RETRY%g", "a": "another"}
    assert asked(RequestCode.SEND_MESSAGE_V2, sent) == ["Sub on Group:g"]
    assert pull("t", "g") == ["Sub on Group:g", "Sub on Topic:t"]
    assert pull("%RETRY%g", "g") == ["Sub on Group:g"]
    assert pull("%RETRY%g_t", "g") == ["Sub on Group:g", "Sub on Topic:t"]
    assert pull("%RETRY%g+t", "g") == ["Sub on Group:g", "Sub on Topic:t"]
    assert pull("%RETRY%other", "g") == ["Sub on Group:g", "Sub on Group:other"]
    # A group named like the beginning of another one owns none of its retry topics.
    assert pull("%RETRY%gg", "g") == ["Sub on Group:g", "Sub on Group:gg"]
    assert asked(RequestCode.GET_MAX_OFFSET, {"topic": "%RETRY%g"}) == ["Sub or Get on Group:g"]


def test_bodies_name_what_is_needed() -> None:
    beat = {
        "clientID": "c",
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [
            {
                "groupName": "g",
                "subscriptionDataSet": [
                    {"topic": "t", "subString": "*"},
                    {"topic": "%RETRY%g", "subString": "*"},
                ],
            }
        ],
    }
    assert asked(RequestCode.HEART_BEAT, body=beat) == ["Sub on Group:g", "Sub on Topic:t"]
    queues = [{"topic": "t", "brokerName": "b", "queueId": n} for n in (0, 1)]
    locks = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
    assert asked(RequestCode.LOCK_BATCH_MQ, body=locks) == ["Sub on Group:g", "Sub on Topic:t"]
    check = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t", "subString": "*"}}
    assert asked(RequestCode.CHECK_CLIENT_CONFIG, body=check) == [
        "Sub on Group:g",
        "Sub on Topic:t",
    ]
    begin = {"topics": {"t": [["b", 0]]}}
    assert asked(RequestCode.CONTRAIL_SINK_BEGIN, body=begin) == ["Pub on Topic:t"]
    with pytest.raises(RequestRejected):
        asked(RequestCode.HEART_BEAT)


def test_changes_of_topics_need_create_or_update_by_what_exists() -> None:
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert asked(code, {"topic": "new"}) == ["Create on Topic:new"]
    assert asked(code, {"topic": "old"}) == ["Update on Topic:old"]
    listed = {"topicConfigList": [{"topicName": "new"}, {"topicName": "old"}]}
    assert asked(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=listed) == [
        "Create on Topic:new",
        "Update on Topic:old",
    ]


def test_requests_that_name_nothing_need_everything_of_the_kind() -> None:
    assert asked(RequestCode.GET_CONSUME_STATS) == ["Get on Topic:*"]
    stats = {"consumerGroup": "g", "topicList": "a;b"}
    assert asked(RequestCode.GET_CONSUME_STATS, stats) == [
        "Get on Topic:a",
        "Get on Topic:b",
        "Get on Group:g",
    ]
    assert asked(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "a", "destGroup": "b"}) == [
        "Get on Group:a",
        "Update on Group:b",
        "Update on Topic:*",
    ]
    assert asked(RequestCode.CONTRAIL_SINK_ABORT, {"sinkId": "unknown"}) == ["Pub on Topic:*"]
    assert asked(RequestCode.CONTRAIL_SINK_ABORT, {"sinkId": "known"}) == [
        "Pub on Topic:orders",
        "Sub on Group:g",
    ]


@pytest.mark.proves("access.rules.needs")
def test_a_code_without_a_row_has_no_needs_that_rights_could_fill() -> None:
    rowless = [code for code in (*map(int, RequestCode), 999) if code not in NEEDS]
    assert RequestCode.POP_LITE_MESSAGE in rowless and 999 in rowless
    assert all(needs_of(Request(code, 1, {}), _Facts()) is None for code in rowless)
