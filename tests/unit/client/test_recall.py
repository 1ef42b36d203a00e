"""Recall: which broker is asked, and how its refusals are reported."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue, SendReceipt, SendStatus
from contrail.client.recall import recall
from contrail.client.trace import ProducerTrace
from contrail.errors import BrokerRefused, BrokerUnknown, MessageInvalid
from contrail.model.recall_handle import RecallHandle
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse

HANDLE = RecallHandle("timed", "broker-b", 1_760_000_000_001, "id-1").encode()


class FakeRoutes:
    def __init__(self) -> None:
        self.masters: dict[str, str] = {"broker-b": "127.0.0.1:1"}

    def master_of(self, broker_name: str) -> str | None:
        return self.masters.get(broker_name)


class FakeInstance:
    """A cluster of one broker; ``masters_later`` appear with the next request for the route."""

    def __init__(self) -> None:
        self.routes = FakeRoutes()
        self.masters_later: dict[str, str] = {}
        self.answer: BrokerRefused | None = None
        self.asked: list[tuple[str, int, dict[str, str]]] = []
        self.traced: list[tuple[str, str, bool]] = []

    async def refresh_route(self, topic: str) -> None:
        assert topic == "timed"
        self.routes.masters |= self.masters_later

    def master_of(self, broker_name: str) -> str:
        found = self.routes.master_of(broker_name)
        if found is None:
            raise BrokerUnknown(f"no route names {broker_name!r}")
        return found

    def recalled(self, topic: str, message_id: str, *, success: bool, region: str = "") -> None:
        """In place of a trace."""
        self.traced.append((topic, message_id, success))

    async def ask(
        self, address: str, code: int, fields: dict[str, str], *, what: str, timeout_ms: int | None
    ) -> ReceivedResponse:
        assert "'timed'" in what
        self.asked.append((address, code, fields))
        if self.answer is not None:
            raise self.answer
        return ReceivedResponse(0, 1, None, {"msgId": "id-1"}, b"", 0, "JAVA")


def _recall(instance: FakeInstance, what: SendReceipt | str, handle: str | None = None) -> str:
    trace = cast(ProducerTrace, instance)
    return asyncio.run(recall(cast(ClientInstance, instance), "payers", what, handle, trace=trace))


def _receipt(handle: str | None) -> SendReceipt:
    queue = MessageQueue("timed", "broker-b", 0)
    return SendReceipt(SendStatus.SEND_OK, "id-1", queue, 3, recall_handle=handle)


def test_the_broker_named_in_the_handle_is_asked() -> None:
    instance = FakeInstance()
    assert _recall(instance, _receipt(HANDLE)) == "id-1"
    assert _recall(instance, "timed", HANDLE) == "id-1"
    fields = {
        "producerGroup": "payers",
        "topic": "timed",
        "recallHandle": HANDLE,
        "bname": "broker-b",
    }
    assert instance.asked == [("127.0.0.1:1", RequestCode.RECALL_MESSAGE, fields)] * 2
    assert instance.traced == [("timed", "id-1", True)] * 2


def test_the_route_is_refreshed_for_a_broker_that_it_lacks() -> None:
    instance = FakeInstance()
    instance.masters_later, instance.routes.masters = instance.routes.masters, {}
    assert _recall(instance, "timed", HANDLE) == "id-1"


@pytest.mark.parametrize(
    ("what", "handle", "problem"),
    [
        (_receipt(None), None, "no recall handle for topic 'timed'"),
        ("timed", None, "no recall handle"),
        ("timed", "not a handle", "recall handle 'not a handle' is none"),
        ("other", HANDLE, "for topic 'timed', not 'other'"),
        ("%RETRY%group", HANDLE, "cannot be recalled"),
    ],
)
def test_a_message_that_cannot_be_recalled_is_refused_before_a_broker_is_asked(
    what: SendReceipt | str, handle: str | None, problem: str
) -> None:
    instance = FakeInstance()
    with pytest.raises(MessageInvalid, match=problem):
        _recall(instance, what, handle)
    assert instance.asked == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ResponseCode.NO_PERMISSION, "set recallMessageEnable=true"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "too old"),
        (ResponseCode.ILLEGAL_OPERATION, "too late"),
    ],
)
def test_refusals_name_their_cause_and_the_fix(code: ResponseCode, reason: str) -> None:
    instance = FakeInstance()
    instance.answer = BrokerRefused("plain", code=code, remark="its words")
    with pytest.raises(BrokerRefused, match=f"'broker-b'.*'timed'.*{reason}.*its words") as caught:
        _recall(instance, "timed", HANDLE)
    assert (caught.value.code, caught.value.remark) == (code, "its words")
    assert instance.traced == [("timed", "id-1", False)]


def test_other_refusals_are_raised_unchanged() -> None:
    instance = FakeInstance()
    instance.answer = BrokerRefused("plain", code=ResponseCode.SYSTEM_ERROR, remark="its words")
    with pytest.raises(BrokerRefused, match=r"^plain$"):
        _recall(instance, "timed", HANDLE)


def test_a_broker_without_a_master_is_named() -> None:
    instance = FakeInstance()
    instance.routes.masters = {}
    with pytest.raises(BrokerUnknown, match="'broker-b' holds message id-1"):
        _recall(instance, "timed", HANDLE)
