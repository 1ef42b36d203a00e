"""Topics and groups that a campaign needs, made before the first kill."""

from __future__ import annotations

import json
from collections.abc import Mapping

from contrail.protocol.codes import RequestCode, ResponseCode
from tests.history.campaign import Campaign


def make_topics(campaign: Campaign, topics: Mapping[str, int]) -> None:
    """Create topics, each with its number of queues."""
    for topic, queue_count in topics.items():
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queue_count),
            "writeQueueNums": str(queue_count),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        _done(campaign, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


def make_group(campaign: Campaign, group: str, **settings: object) -> None:
    body = json.dumps({"groupName": group, **settings}).encode()
    _done(campaign, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def _done(campaign: Campaign, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
    answer = campaign.client.call(code, fields, body)
    assert answer is not None and answer.code == ResponseCode.SUCCESS, answer
