"""The admission of pulls: their subscriptions, and the verdicts that are remembered."""

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


def _checks(broker: _Broker, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Pulls that were checked, not answered by what is remembered."""
    checked: list[Request] = []
    check = PullAdmission._checked

    def watched(admission: PullAdmission, pull: Request, client: str) -> object:
        checked.append(pull)
        return check(admission, pull, client)

    monkeypatch.setattr(PullAdmission, "_checked", watched)
    return checked


def _refusal(broker: _Broker, pull: Request) -> RequestRejected:
    with pytest.raises(RequestRejected) as caught:
        broker.admission.plan(pull, CLIENT)
    return caught.value


def test_a_refusal_holds_for_pulls_alike_until_a_table_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = _Broker()
    # The first pull makes the group.
    broker.admission.plan(_pull(), CLIENT)
    checked = _checks(broker, monkeypatch)
    refusals = [_refusal(broker, _pull(topic="bills", queueOffset=n)) for n in range(5)]
    assert {refusal.code for refusal in refusals} == {ResponseCode.TOPIC_NOT_EXIST}
    assert len({refusal.remark for refusal in refusals}) == 1
    assert len(checked) == 1
    broker.topics.table.moved()
    _refusal(broker, _pull(topic="bills"))
    assert len(checked) == 2


def test_refusals_that_are_another_pulls_own_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = _Broker()
    checked = _checks(broker, monkeypatch)
    _refusal(broker, _pull(queueOffset="x"))
    broker.admission.plan(_pull(queueOffset=1), CLIENT)
    _refusal(broker, _pull(topic="bills"))
    assert "queueOffset" in _refusal(broker, _pull(topic="bills", queueOffset="x")).remark
    # A group that could not be made may be made a moment later.
    long_name = "g" * 300
    for _ in range(2):
        _refusal(broker, _pull(consumerGroup=long_name))
    assert len(checked) == 6


def test_refusals_are_bounded_and_push_out_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrail.broker.services.pull_admission._REFUSED_MAX", 10)
    broker = _Broker()
    for _ in range(2):
        broker.admission.plan(_pull(), CLIENT)
    for number in range(100):
        _refusal(broker, _pull(topic=f"none-{number}"))
        assert len(broker.admission._refused) <= 10
    _refusal(broker, _pull(topic="n" * 5000))
    assert broker.admission.refused(_pull(topic="n" * 5000)) is None
    assert broker.admission.passed(_pull()) is not None
