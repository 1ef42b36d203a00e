"""The answers to producers: places, codes, fields, and the order in which they are released."""

from __future__ import annotations

import pytest

from contrail.broker.handlers.send_answers import Sent, Stored, stored_run
from contrail.errors import BatchIllegal, MessageIllegal, StoreError
from contrail.model.topic import QueueType
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import FLAG_ONE_WAY, ReceivedResponse
from contrail.store import AppendedRun
from contrail.wire.connection import Connection
from tests.fakes.transports import FakeTransport
from tests.unit.broker.fast.send_room import STORE_HOST, SendRoom

HOST = STORE_HOST.hex().upper()


class Setting:
    """The answers of one handler, and one connection."""

    def __init__(self, *, waits: bool = False) -> None:
        self.room = SendRoom(waits=waits)
        self.answers = self.room.handler.answers
        self.peer: Connection
        self.transport: FakeTransport
        self.peer, self.transport = self.room.connected()

    def sent(self, opaque: int, **changes: object) -> Sent:
        return Sent(self.peer, opaque, 0, 310, b"AC01", 3)._replace(**changes)

    def told(self) -> list[ReceivedResponse]:
        self.peer.flush()
        return self.transport.frames()


def test_an_answer_names_the_place_of_each_message() -> None:
    setting = Setting()
    batch = setting.sent(2, batch=QueueType.SIMPLE, unique_key=b"")
    setting.answers.promise([Stored(setting.sent(1), 7, [100]), Stored(batch, 8, [200, 300])], 400)
    first, second = setting.told()
    assert first.fields["msgId"] == f"{HOST}{100:016X}"
    assert (first.fields["queueId"], first.fields["queueOffset"]) == ("3", "7")
    assert first.fields["transactionId"] == "AC01"
    assert second.fields["msgId"] == f"{HOST}{200:016X},{HOST}{300:016X}"
    assert "transactionId" not in second.fields


def test_a_batch_kept_whole_and_a_timer_have_fields_of_their_own() -> None:
    setting = Setting()
    whole = setting.sent(1, batch=QueueType.BATCH)
    timer = setting.sent(2, recall_handle="handle")
    setting.answers.promise([Stored(whole, 0, [0]), Stored(timer, 1, [100])], 200)
    first, second = setting.told()
    assert first.fields["batchUniqId"] == "AC01"
    assert second.fields["recallHandle"] == "handle"


def test_a_key_that_needs_an_escape_is_encoded() -> None:
    setting = Setting()
    setting.answers.promise([Stored(setting.sent(1, unique_key=b'a"b'), 0, [0])], 100)
    assert setting.told()[0].fields["transactionId"] == 'a"b'


def test_a_one_way_send_is_not_answered() -> None:
    setting = Setting()
    one_way = setting.sent(1, flag=FLAG_ONE_WAY)
    setting.answers.promise([Stored(one_way, 0, [0])], 100)
    setting.answers.refuse_all([one_way], StoreError("full"))
    assert setting.told() == []


def test_sends_that_need_not_wait_are_answered_before_the_flush() -> None:
    setting = Setting(waits=True)
    run = AppendedRun([0, 1], [0, 100], 5, 200)
    sents = [setting.sent(1), setting.sent(2, waits=False)]
    setting.answers.promise(stored_run(sents, run), run.physical_end)
    assert [answer.opaque for answer in setting.told()] == [2]
    assert setting.peer.in_flight_count == 1
    setting.room.acknowledgements.reached(200)
    assert [answer.opaque for answer in setting.told()] == [2, 1]
    assert setting.peer.in_flight_count == 0


def test_a_late_flush_tells_the_place_and_a_failed_one_does_not() -> None:
    setting = Setting(waits=True)
    setting.answers.promise([Stored(setting.sent(1), 0, [0])], 100)
    setting.room.clock.advance(ms=60_000)
    setting.room.acknowledgements.expire()
    setting.answers.promise([Stored(setting.sent(2), 1, [100])], 200)
    setting.room.acknowledgements.fail()
    late, failed = setting.told()
    assert (late.code, late.fields["msgId"]) == (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        f"{HOST}{0:016X}",
    )
    assert failed.code == ResponseCode.SERVICE_NOT_AVAILABLE and "msgId" not in failed.fields


def test_a_refusal_has_the_code_of_its_error() -> None:
    setting = Setting()
    for number, error in enumerate((StoreError("a"), MessageIllegal("b"), BatchIllegal("c"))):
        setting.answers.refuse_all([setting.sent(number)], error)
    codes = [answer.code for answer in setting.told()]
    assert codes == [
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SYSTEM_ERROR,
    ]
    assert [bool(answer.fields) for answer in setting.told()] == [True, True, False]


@pytest.mark.proves("replication.failover.in-doubt")
def test_in_a_group_every_send_waits_and_says_when_it_is_in_doubt() -> None:
    setting = Setting(waits=True)
    setting.room.acknowledgements.waits_for_all = True
    run = AppendedRun([0, 1], [0, 100], 5, 200)
    sents = [setting.sent(1), setting.sent(2, waits=False)]
    setting.answers.promise(stored_run(sents, run), run.physical_end)
    assert setting.told() == []
    setting.answers.answer(stored_run(sents, run), ResponseCode.SYSTEM_ERROR, 0.0)
    told = setting.told()
    assert [(one.code, one.fields["contrailInDoubt"]) for one in told] == [(1, "true")] * 2
    assert told[0].remark is not None and "may still be committed" in told[0].remark
