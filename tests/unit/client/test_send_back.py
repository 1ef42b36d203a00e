"""Messages sent back: by their own broker first, as a new message second."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from contrail.client.consumer_settings import RETRIES_WITHOUT_END
from contrail.client.instance import ClientInstance
from contrail.client.outgoing import Outgoing
from contrail.client.send_back import SendBack
from contrail.client.sender import Sender
from contrail.client.state.retry_delays import DEAD_LETTER
from contrail.errors import ClientError, MessageUnreadable, SendFailed
from contrail.protocol.codes import RequestCode
from tests.unit.client.consuming_setup import FakeReader, made


class FakeInstance:
    def __init__(self) -> None:
        self.asked: list[tuple[str, RequestCode, Mapping[str, str]]] = []
        self.is_down = False

    async def ask_master(
        self, name: str, topic: str, code: RequestCode, fields: Mapping[str, str], **_: Any
    ) -> None:
        if self.is_down:
            raise ClientError("down")
        assert topic == fields["originTopic"]
        self.asked.append((name, code, fields))


class FakeSender:
    def __init__(self) -> None:
        self.sent: list[Outgoing] = []
        self.is_down = False

    async def send(self, outgoing: Outgoing) -> None:
        if self.is_down:
            raise SendFailed("down", topic=outgoing.topic)
        self.sent.append(outgoing)


class Setup:
    def __init__(self, retries_max: int = 16) -> None:
        self.instance = FakeInstance()
        self.sender = FakeSender()
        self.send_back = SendBack(
            cast(ClientInstance, self.instance),
            "g",
            retries_max=retries_max,
            sender=cast(Sender, self.sender),
        )

    def give_back(
        self, level: int = 0, error: MessageUnreadable | None = None, **properties: str
    ) -> bool:
        message = made(FakeReader(), 7)
        message.decode_error = error
        message.reconsume_times = 2
        message.properties.update(properties)
        return asyncio.run(self.send_back.give_back(message, level))


def test_the_messages_own_broker_is_asked_by_physical_offset() -> None:
    setup = Setup()
    assert setup.give_back(5)
    ((address, code, fields),) = setup.instance.asked
    assert (address, code) == ("broker-a", RequestCode.CONSUMER_SEND_MSG_BACK)
    assert (fields["offset"], fields["delayLevel"], fields["group"]) == ("700", "5", "g")
    assert (fields["maxReconsumeTimes"], fields["originTopic"]) == ("16", "orders")
    assert setup.sender.sent == []


def test_when_its_own_broker_fails_any_broker_gets_a_new_message() -> None:
    setup = Setup()
    setup.instance.is_down = True
    assert setup.give_back(TRAN_MSG="true", KEYS="k", UNIQ_KEY="u")
    (sent,) = setup.sender.sent
    assert (sent.topic, sent.body, sent.unique_id) == ("%RETRY%g", b"7", "u")
    assert (sent.reconsume_times, sent.max_reconsume_times) == (3, 16)
    assert sent.properties == {
        "KEYS": "k",
        "UNIQ_KEY": "u",
        "RETRY_TOPIC": "orders",
        "ORIGIN_MESSAGE_ID": "id-7",
        "DELAY": "5",
    }


def test_the_first_id_and_a_chosen_delay_are_kept() -> None:
    setup = Setup()
    setup.instance.is_down = True
    setup.give_back(9, ORIGIN_MESSAGE_ID="first")
    (sent,) = setup.sender.sent
    assert (sent.properties["ORIGIN_MESSAGE_ID"], sent.properties["DELAY"]) == ("first", "9")


@pytest.mark.proves("client.undecodable.orderly")
@pytest.mark.parametrize("retries_max", [0, 16, RETRIES_WITHOUT_END])
def test_a_dead_letter_sent_anew_has_more_retries_than_allowed(
    retries_max: int,
) -> None:
    """A broker makes a message with more retries than allowed a dead letter; both are Java ints."""
    setup = Setup(retries_max=retries_max)
    setup.instance.is_down = True
    setup.give_back(DEAD_LETTER)
    (sent,) = setup.sender.sent
    assert sent.max_reconsume_times is not None
    assert 0 <= sent.max_reconsume_times < sent.reconsume_times == 3


@pytest.mark.proves("client.consumers.failed-send-back")
def test_when_no_broker_takes_it_the_caller_is_told() -> None:
    setup = Setup()
    setup.instance.is_down = setup.sender.is_down = True
    assert not setup.give_back()


def test_a_body_that_cannot_be_decompressed_is_sent_back_by_physical_offset() -> None:
    setup = Setup()
    assert setup.give_back(error=MessageUnreadable("no zlib"))
    assert len(setup.instance.asked) == 1
    assert setup.sender.sent == []


def test_a_message_sent_anew_carries_its_decode_error() -> None:
    setup = Setup()
    setup.instance.is_down = True
    assert setup.give_back(error=MessageUnreadable("no\x02zlib\n" + "!" * 1000))
    (sent,) = setup.sender.sent
    assert sent.properties["CONTRAIL_UNREADABLE"] == "no zlib " + "!" * 492


def test_a_damaged_record_is_sent_anew_at_once() -> None:
    """A broker that copies the record would give the copy a sound checksum."""
    setup = Setup()
    assert setup.give_back(error=MessageUnreadable("wrong checksum", is_record_damaged=True))
    assert setup.instance.asked == []
    assert setup.sender.sent[0].properties["CONTRAIL_UNREADABLE"] == "wrong checksum"
