"""What a pull may read: the subscription it brings along, and what is remembered of it."""

from __future__ import annotations

import pytest

from contrail.broker.services.pull_admission import PullAdmission
from contrail.errors import RequestRejected
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from tests.unit.broker.client_setup import Setup, request

CLIENT = "10.0.0.9:40000"


class _Broker(Setup):
    def __init__(self) -> None:
        super().__init__()
        self.admission = PullAdmission(
            self.settings, self.topics, self.groups, self.consumers, self.filters, self.clock
        )


def _pull(**changes: object) -> Request:
    fields: dict[str, object] = {"consumerGroup": "g", "topic": "orders", "queueId": 0}
    fields |= {"queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0}
    fields |= {"suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    return request(RequestCode.PULL_MESSAGE, fields | changes)


def test_a_filter_of_an_unknown_type_is_refused() -> None:
    broker = _Broker()
    for kind in (" ", "sql92", "{}"):
        with pytest.raises(RequestRejected, match="use TAG or SQL92") as caught:
            broker.admission.plan(_pull(subscription="a > 1", expressionType=kind), CLIENT)
        assert caught.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_the_subscription_of_the_last_pull_is_remembered() -> None:
    broker = _Broker()
    for expression in ("red", "blue", "red"):
        broker.admission.plan(_pull(subscription=expression), CLIENT)
        shown = broker.consumers.subscription("g", "orders")
        assert shown is not None and shown.sub_string == expression


def test_a_refused_pull_is_not_remembered() -> None:
    broker = _Broker()
    with pytest.raises(RequestRejected):
        broker.admission.plan(_pull(queueId=99), CLIENT)
    assert broker.consumers.subscription("g", "orders") is None


def test_an_expression_without_a_tag_in_it_wants_no_message() -> None:
    plan = _Broker().admission.plan(_pull(subscription=" "), CLIENT)
    assert plan.tag_codes == frozenset()
    assert _Broker().admission.plan(_pull(subscription="*"), CLIENT).tag_codes is None
