"""A broker whose log is held back: every answer, cursor and ledger goes by its own position."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrail.model.batch import BatchUnit, encode_batch
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, encode_request
from contrail.store.state.positions import NO_LIMIT
from contrail.testing import eventually
from tests.e2e.held_broker import DELAYED, HALF, SEND, TIMED, Held
from tests.e2e.raw_client import heartbeat, pull_fields
from tests.e2e.sink_asking import rows
from tests.e2e.sink_asking import send_fields as sink_fields

pytestmark = pytest.mark.proves("replication.ground.positions")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path)
    yield made
    made.close()


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[Held]:
    """It holds answers: until the sync, and longer if replicas lack the bytes."""
    made = Held(tmp_path, flushDiskType="SYNC_FLUSH")
    yield made
    made.close()


# Answers.


def _plain(held: Held) -> Request:
    return Request(SEND, 0, held.fields("orders", {}), b"x")


def _batch(held: Held) -> Request:
    body = encode_batch([BatchUnit(b"one", b""), BatchUnit(b"two", b"")])
    return Request(RequestCode.SEND_BATCH_MESSAGE, 0, held.fields("orders", {}, m="true"), body)


def _delayed(held: Held) -> Request:
    return Request(SEND, 0, held.fields("orders", DELAYED), b"x")


def _timed(held: Held) -> Request:
    return Request(SEND, 0, held.fields("orders", TIMED), b"x")


def _half(held: Held) -> Request:
    return Request(SEND, 0, held.fields("orders", HALF, f="4"), b"x")


def _commit(held: Held) -> Request:
    return Request(RequestCode.END_TRANSACTION, 0, held.half(), b"")


def _send_back(held: Held) -> Request:
    beat = held.client.call(RequestCode.HEART_BEAT, {}, heartbeat("one@1"))
    assert beat.code == 0, beat.remark
    place = int(held.send().fields["msgId"][-16:], 16)
    fields = {"offset": str(place), "group": "readers", "delayLevel": "3", "maxReconsumeTimes": "9"}
    return Request(RequestCode.CONSUMER_SEND_MSG_BACK, 0, fields, b"")


def _row(held: Held) -> Request:
    held.send()
    return Request(RequestCode.CONTRAIL_SINK_SEND, 0, sink_fields("orders"), rows("a/1/0", [1]))


def _same_row(held: Held) -> Request:
    """A row that was stored already, and may not be safe yet."""
    request = _row(held)
    held.limit(held.store.physical_end, held.store.physical_end)
    held.client.send(encode_request(request._replace(opaque=70)))
    eventually(lambda: len(held.app._acknowledgements) == 1, "the row waits")
    return request


KINDS = (_plain, _batch, _delayed, _timed, _half, _commit, _send_back, _row, _same_row)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_an_answer_waits_until_enough_replicas_have_its_record(
    safe: Held, kind: Callable[[Held], Request]
) -> None:
    """The log is flushed and visible; only ``acknowledged_end`` is behind."""
    request = kind(safe)
    before = safe.store.positions.replicated_end
    end = safe.store.physical_end if before == NO_LIMIT else before
    safe.limit(NO_LIMIT, end)
    waiting = len(safe.app._acknowledgements)
    safe.client.send(encode_request(request._replace(opaque=77)))
    eventually(lambda: len(safe.app._acknowledgements) == waiting + 1, "the request is held")
    safe.store.wait_flushed(safe.store.physical_end)
    safe.limit(NO_LIMIT, safe.store.physical_end - 1)
    safe.on_loop(lambda: safe.app.intake.take_flushed())
    assert not safe.client.has_news(), "answered before the last byte was replicated"
    assert safe.store.settled_end == safe.store.visible_end == safe.store.physical_end
    safe.limit(NO_LIMIT, safe.store.physical_end)
    answers = {safe.client.next_frame().opaque for _ in range(waiting + 1)}
    assert 77 in answers


def test_a_repeated_send_is_answered_once_the_first_is_replicated_whole(safe: Held) -> None:
    """A slave of Apache reports any byte, so that a part of the record may be all it has."""
    fields = {
        "topic": "once",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+contrail.dedupe.window.ms=60000",
    }
    made = safe.client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert made.code == 0, made.remark
    start = safe.store.physical_end
    safe.limit(NO_LIMIT, start)
    request = Request(SEND, 81, safe.fields("once", {}), b"x" * 500)
    safe.client.send(encode_request(request))
    eventually(lambda: len(safe.app._acknowledgements) == 1, "the first one is held")
    safe.store.wait_flushed(safe.store.physical_end)
    safe.limit(NO_LIMIT, start + 100)
    safe.client.send(encode_request(request._replace(opaque=82)))
    eventually(lambda: len(safe.app._acknowledgements) == 2, "the second one is held as well")
    assert not safe.client.has_news()
    safe.limit(NO_LIMIT, safe.store.physical_end)
    answers = [safe.client.next_frame() for _ in range(2)]
    assert {answer.opaque for answer in answers} == {81, 82}
    assert answers[0].fields["queueOffset"] == answers[1].fields["queueOffset"] == "0"


# Readers.


def test_consumers_are_given_committed_records_only(held: Held) -> None:
    held.send()
    held.freeze()
    held.send()
    held.pass_time(1_000)
    fields = pull_fields("orders", 1, suspendTimeoutMillis="0")
    assert held.client.call(RequestCode.PULL_MESSAGE, fields).code == ResponseCode.PULL_NOT_FOUND
    queue = {"topic": "orders", "queueId": "0"}
    top = held.client.call(RequestCode.GET_MAX_OFFSET, queue)
    assert top.fields == {"offset": "1"}
    held.limit(NO_LIMIT)
    eventually(lambda: held.client.call(RequestCode.PULL_MESSAGE, fields).code == 0)


# Cursors and ledgers.


def test_a_delay_cursor_waits_until_the_delivery_is_settled(held: Held) -> None:
    held.send(**DELAYED)
    held.freeze()
    held.pass_time()
    assert held.store.physical_end > held.store.settled_end, "it was delivered"
    assert '"1":1' not in held.text("delayOffset.json").replace(" ", "")
    assert held.app.kinds.delays.durable_end <= held.store.settled_end
    held.limit(NO_LIMIT)
    held.pass_time()
    assert "1:1" in held.text("delayOffset.json").replace('"', "").replace(" ", "")


def test_the_memory_of_deliveries_begins_no_later_than_what_is_settled(held: Held) -> None:
    held.send(**DELAYED)
    end = held.freeze()
    held.pass_time()
    assert held.store.flushed_end > end
    assert int(held.text("contrailDeliveries")[:20].split()[0]) <= end
    held.limit(NO_LIMIT)
    held.pass_time()
    assert int(held.text("contrailDeliveries")[:20].split()[0]) > end


def test_a_timers_line_waits_until_the_delivery_is_settled(held: Held) -> None:
    held.send(**TIMED)
    held.freeze()
    timers = held.app.kinds.timers
    held.pass_time()
    assert held.store.physical_end > held.store.settled_end, "it was delivered"
    due_ms = held.clock.now_ms() - 20_000 + 2_000
    assert timers._filing.read_ms <= due_ms
    held.limit(NO_LIMIT)
    held.pass_time()
    eventually(lambda: held.pass_time(1_000) or timers._filing.read_ms > due_ms, "the line moves")


def test_a_transactions_cursors_wait_until_its_end_is_settled(held: Held) -> None:
    commit = held.half()
    held.freeze()
    assert held.client.call(RequestCode.END_TRANSACTION, commit).code == 0
    held.pass_time()
    assert held.store.physical_end > held.store.settled_end
    assert _own_cursors(held).get("RMQ_SYS_TRANS_HALF_TOPIC", 0) == 0
    held.limit(NO_LIMIT)
    held.pass_time()
    assert _own_cursors(held)["RMQ_SYS_TRANS_HALF_TOPIC"] == 1


def _own_cursors(held: Held) -> dict[str, int]:
    text = held.text("consumerOffset.json").replace("{0:", '{"0":')
    table = json.loads(text or "{}").get("offsetTable", {})
    return {
        key.partition("@")[0]: queues["0"]
        for key, queues in table.items()
        if key.endswith("@CID_RMQ_SYS_TRANS")
    }


def test_a_sinks_ledger_waits_until_its_rows_are_settled(held: Held) -> None:
    held.send()
    end = held.freeze()
    answer = held.client.call(
        RequestCode.CONTRAIL_SINK_SEND, sink_fields("orders"), rows("a/1/0", [1, 2])
    )
    assert answer.code == 0, answer.remark
    held.pass_time()
    assert '"a"' not in held.text("contrailSinks")
    assert held.app.kinds.sinks.file.durable_end <= end
    held.limit(NO_LIMIT)
    held.pass_time()
    assert '"a"' in held.text("contrailSinks")
    assert held.app.kinds.sinks.file.durable_end > end


def test_no_cursor_speaks_of_more_than_what_is_settled(held: Held) -> None:
    """Each by itself: the memory of deliveries goes by the least of them."""
    held.send()
    end = held.freeze()
    held.send()
    held.store.wait_flushed(held.store.physical_end)
    kinds = held.app.kinds
    services = (kinds.delays, kinds.timers, kinds.transactions, kinds.sinks.file)
    assert [service.durable_end for service in services] == [end] * 4
