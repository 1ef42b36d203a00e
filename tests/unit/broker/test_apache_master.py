"""The questions of a slave to an Apache master before it follows it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from contrail.broker.services.apache_master import ask_first_offset, ask_ha_address
from contrail.errors import CallFailed
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.protocol.json_style import encode_body
from contrail.wire.caller import Caller
from tests.fakes.peers import received

MASTER = "10.0.0.1:10911"
EXCHANGE = RequestCode.EXCHANGE_BROKER_HA_INFO
RUNTIME = RequestCode.GET_BROKER_RUNTIME_INFO


class FakeMaster(Caller):
    """Gives one answer per code; without one it cannot be reached."""

    def __init__(self, answers: Mapping[int, ReceivedResponse]) -> None:
        super().__init__()
        self._answers = answers

    async def call(
        self,
        address: str,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int = 3_000,
    ) -> ReceivedResponse:
        # Fields would tell the master where another one is, and it would believe them.
        assert (address, fields or {}) == (MASTER, {})
        if code not in self._answers:
            raise CallFailed(f"{address} cannot be reached")
        return self._answers[code]


def ha_address(answers: Mapping[int, ReceivedResponse]) -> str:
    return asyncio.run(ask_ha_address(FakeMaster(answers), MASTER))


def first_offset(answers: Mapping[int, ReceivedResponse]) -> int | None:
    return asyncio.run(ask_first_offset(FakeMaster(answers), MASTER))


def runtime(**values: str) -> dict[int, ReceivedResponse]:
    return {RUNTIME: received(body=encode_body({"table": values}))}


@pytest.mark.proves("replication.pair.welcome")
def test_a_master_tells_where_it_listens_for_slaves() -> None:
    told = {"masterHaAddress": "10.0.0.1:10912", "masterAddress": MASTER}
    assert ha_address({EXCHANGE: received(fields=told)}) == "10.0.0.1:10912"


def test_a_master_before_5_and_one_that_is_away_tell_nothing() -> None:
    unknown = received(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="what is 906?")
    assert ha_address({EXCHANGE: unknown}) == ""
    assert ha_address({}) == ""


def test_a_contrail_master_that_is_followed_plainly_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = {"masterHaAddress": "10.0.0.1:10912", "contrailHa": "1"}
    assert ha_address({EXCHANGE: received(fields=told)}) == "10.0.0.1:10912"
    assert "contrailClusterSecretFile" in caplog.text


@pytest.mark.proves("replication.pair.welcome")
def test_an_empty_log_begins_where_the_masters_does() -> None:
    assert first_offset(runtime(commitLogMinOffset="1048576")) == 1 << 20


@pytest.mark.parametrize("values", [{"commitLogMinOffset": "0"}, {}])
def test_a_first_offset_of_0_cannot_be_asked_for(
    values: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert first_offset(runtime(**values)) is None
    assert "last segment" in caplog.text


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {RUNTIME: received(1, remark="not now")},
        {RUNTIME: received(body=b"[")},
        runtime(commitLogMinOffset="many"),
    ],
)
def test_an_answer_that_tells_nothing_is_none(answers: dict[int, ReceivedResponse]) -> None:
    assert first_offset(answers) is None
