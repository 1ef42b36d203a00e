"""The stored form of a transactional send."""

from __future__ import annotations

import pytest

from contrail.broker.state.half_messages import as_half, is_half
from contrail.errors import RequestRejected
from contrail.model.message import MessageDraft
from contrail.model.record import TRANSACTION_PREPARED

DRAFT = MessageDraft(b"orders", 2, b"body", sys_flag=TRANSACTION_PREPARED | 1)


def test_a_half_message_waits_in_its_topic_without_the_transaction_bits() -> None:
    properties = {"TRAN_MSG": "true", "UNIQ_KEY": "u1"}
    found = as_half(DRAFT, properties)
    assert (found.topic, found.queue_id) == (b"RMQ_SYS_TRANS_HALF_TOPIC", 0)
    assert found.sys_flag == 1
    assert properties["REAL_TOPIC"] == "orders"
    assert properties["REAL_QID"] == "2"
    assert properties["__transactionId__"] == "u1"


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "5"}])
def test_a_transaction_with_a_delay_is_refused(delay: dict[str, str]) -> None:
    with pytest.raises(RequestRejected, match="cannot be delayed"):
        as_half(DRAFT, {"TRAN_MSG": "true", "UNIQ_KEY": "u1", **delay})


def test_a_retry_that_kept_the_mark_opens_no_transaction() -> None:
    retried = DRAFT._replace(reconsume_times=1)
    assert not is_half(retried, {"TRAN_MSG": "true", "DELAY": "3"})
    assert is_half(DRAFT, {"TRAN_MSG": "true"})
    assert not is_half(DRAFT, {"TRAN_MSG": "false"})
