"""Refused pulls; one like a refused one before is answered without being decoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contrail.broker.fast import pulls as fast_pulls
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse, Request, encode_request
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, pull_fields

GROUP = "readers"


@pytest.fixture(scope="module")
def asker(fast_path: str) -> Iterator[Asker]:
    with LocalCluster(properties={"contrailFastPath": fast_path}) as running:
        asker = Asker(running)
        asker.make_group(GROUP)
        asker.make_group("closed", consumeEnable=False)
        asker.make_topic("there", read=1, write=1)
        asker.make_topic("unread", read=1, write=1, perm=2)
        yield asker


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pulls that the fast path gave to the general way."""
    taken: list[int] = []
    decode = fast_pulls.pull_request

    def watched(item: Any) -> Request:
        taken.append(item[0])
        return decode(item)

    monkeypatch.setattr(fast_pulls, "pull_request", watched)
    return taken


def ask(client: RawClient, opaques: range, fields: dict[str, str]) -> list[ReceivedResponse]:
    pulls = [Request(RequestCode.PULL_MESSAGE, opaque, fields) for opaque in opaques]
    client.send(b"".join(encode_request(pull) for pull in pulls))
    return [client.next_frame() for _ in pulls]


@pytest.mark.proves("broker.fast.end-end-tests", "wire.fairness.turns")
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "unread"}, ResponseCode.NO_PERMISSION),
        ({"consumerGroup": "closed"}, ResponseCode.NO_PERMISSION),
        ({"queueId": "7"}, ResponseCode.INVALID_PARAMETER),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
        ({"subscription": "a >", "expressionType": "SQL92"}, 23),
    ],
)
def test_refusals_of_both_ways_are_alike_in_order_and_counted(
    asker: Asker, fast_path: str, decoded: list[int], changes: dict[str, str], code: int
) -> None:
    fields = pull_fields("there", 0, consumerGroup=GROUP) | changes
    app = asker.broker.app
    assert app is not None
    counted = app.router.counts[f"rejected_{int(code)}"]
    with RawClient(asker.broker.port) as client:
        answers = ask(client, range(100, 150), fields)
    assert [answer.opaque for answer in answers] == [*range(100, 150)]
    assert decoded == ([100] if fast_path == "on" else [])
    first, *others = answers
    assert first.code == code
    assert {answer[2:] for answer in map(_hashable, others)} == {_hashable(first)[2:]}
    assert app.router.counts[f"rejected_{int(code)}"] - counted >= 49


def test_a_change_lets_the_next_pull_pass(asker: Asker, fast_path: str, decoded: list[int]) -> None:
    with RawClient(asker.broker.port) as client:
        fields = pull_fields("comes", 0, consumerGroup=GROUP)
        answers = ask(client, range(1, 4), fields)
        assert {answer.code for answer in answers} == {ResponseCode.TOPIC_NOT_EXIST}
        asker.make_topic("comes", read=1, write=1)
        asker.stored("comes", b"x")
        assert [answer.code for answer in ask(client, range(4, 6), fields)] == [0, 0]
    assert decoded == ([1, 4] if fast_path == "on" else [])


def test_a_count_that_no_field_may_have_is_not_answered_by_what_is_remembered(
    asker: Asker,
) -> None:
    with RawClient(asker.broker.port) as client:
        fields = pull_fields("nowhere", 0, consumerGroup=GROUP)
        ask(client, range(1, 3), fields)
        [answer] = ask(client, range(3, 4), fields | {"maxMsgNums": str(1 << 31)})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "maxMsgNums" in (answer.remark or "")


def _hashable(answer: ReceivedResponse) -> tuple[Any, ...]:
    return (answer.code, answer.opaque, answer.remark, tuple(sorted(answer.fields.items())))
