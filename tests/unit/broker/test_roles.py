"""The requests that a slave serves: a code must be named to be served."""

from __future__ import annotations

import pytest

from contrail.broker.state.roles import SERVED_BY_SLAVES, refusal_of
from contrail.protocol.codes import RequestCode, ResponseCode

WRITES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.RECALL_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CONTRAIL_SINK_SEND,
    RequestCode.DECIDE_TRANSACTION,
)


@pytest.mark.parametrize("code", WRITES)
def test_a_slave_serves_nothing_that_adds_to_log_or_tables(code: RequestCode) -> None:
    assert code not in SERVED_BY_SLAVES


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.QUERY_MESSAGE,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.UPDATE_BROKER_CONFIG,
    ],
)
def test_a_slave_serves_reads_and_its_own_settings(code: RequestCode) -> None:
    assert code in SERVED_BY_SLAVES


def test_refusals_are_those_of_the_original_where_it_has_one() -> None:
    assert refusal_of(RequestCode.SEND_BATCH_MESSAGE) == ResponseCode.SYSTEM_BUSY
    assert refusal_of(RequestCode.PULL_MESSAGE) == ResponseCode.SYSTEM_BUSY
    assert refusal_of(RequestCode.END_TRANSACTION) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert refusal_of(RequestCode.LOCK_BATCH_MQ) == ResponseCode.SERVICE_NOT_AVAILABLE
