"""How the admin client combines the answers of several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

import pytest

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress, BrokerRuntime
from contrail.client.queue_places import epoch_ms
from contrail.errors import BrokerRefused, ClientClosed, ClientError, ConfigError, SomeFailed
from contrail.protocol.codes import ResponseCode

BROKERS = [
    BrokerAddress("C", "broker-a", 0, "127.0.0.1:1"),
    BrokerAddress("C", "broker-b", 0, "127.0.0.1:2"),
    BrokerAddress("C", "broker-b", 1, "127.0.0.1:3"),
]


class AskingAdmin(Admin):
    """Lets a test hand in the request."""

    def ask_all(
        self, ask: Callable[[BrokerAddress], Awaitable[int]], *, allow_partial: bool = False
    ) -> Mapping[str, int]:
        async def run() -> Mapping[str, int]:
            return await self._ask_each(
                BROKERS, ask, lambda answers: answers, "the count", allow_partial=allow_partial
            )

        return asyncio.run(run())


def asker(outcomes: Mapping[str, int | ClientError]) -> Callable[[BrokerAddress], Awaitable[int]]:
    async def ask(broker: BrokerAddress) -> int:
        outcome = outcomes[broker.address]
        if isinstance(outcome, ClientError):
            raise outcome
        return outcome

    return ask


def refusal(code: ResponseCode) -> BrokerRefused:
    return BrokerRefused(f"refused: {code.name}", code=code, remark="")


def test_masters_answer_by_name_and_replicas_by_address() -> None:
    ask = asker({"127.0.0.1:1": 10, "127.0.0.1:2": 20, "127.0.0.1:3": 30})
    answers = AskingAdmin("127.0.0.1:9876").ask_all(ask)
    assert answers == {"broker-a": 10, "broker-b": 20, "127.0.0.1:3": 30}


def test_one_broker_that_fails_is_named_and_the_others_are_partial() -> None:
    ask = asker({"127.0.0.1:1": 10, "127.0.0.1:2": ClientError("away"), "127.0.0.1:3": 30})
    admin = AskingAdmin("127.0.0.1:9876")
    with pytest.raises(
        SomeFailed, match=r"the count: 1 of 3 servers failed \(broker-b\)"
    ) as caught:
        admin.ask_all(ask)
    assert caught.value.partial == {"broker-a": 10, "127.0.0.1:3": 30}
    assert str(caught.value.failures["broker-b"]) == "away"
    assert admin.ask_all(ask, allow_partial=True) == caught.value.partial


def test_no_answering_broker_is_an_error_even_with_allow_partial() -> None:
    ask = asker({one.address: ClientError("away") for one in BROKERS})
    with pytest.raises(SomeFailed, match="3 of 3 servers failed"):
        AskingAdmin("127.0.0.1:9876").ask_all(ask, allow_partial=True)


def test_a_refusal_by_all_brokers_for_one_reason_is_raised_as_that_refusal() -> None:
    ask = asker({one.address: refusal(ResponseCode.TOPIC_NOT_EXIST) for one in BROKERS})
    with pytest.raises(BrokerRefused) as caught:
        AskingAdmin("127.0.0.1:9876").ask_all(ask)
    assert caught.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_refusals_for_different_reasons_are_all_named() -> None:
    outcomes: dict[str, int | ClientError] = {
        "127.0.0.1:1": refusal(ResponseCode.TOPIC_NOT_EXIST),
        "127.0.0.1:2": refusal(ResponseCode.NO_PERMISSION),
        "127.0.0.1:3": refusal(ResponseCode.NO_PERMISSION),
    }
    with pytest.raises(SomeFailed, match=r"TOPIC_NOT_EXIST.*NO_PERMISSION"):
        AskingAdmin("127.0.0.1:9876").ask_all(asker(outcomes))


def test_a_client_bug_is_not_taken_for_a_failed_broker() -> None:
    async def ask(broker: BrokerAddress) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        AskingAdmin("127.0.0.1:9876").ask_all(ask, allow_partial=True)


def test_an_admin_that_is_not_started_says_how_to_start_it() -> None:
    with pytest.raises(ClientClosed, match="inside its `with` block"):
        asyncio.run(Admin("127.0.0.1:9876").topics())


def test_a_wrong_address_is_refused_when_the_admin_is_made() -> None:
    with pytest.raises(ConfigError, match="namesrv"):
        Admin("nowhere")


def test_times_are_taken_as_datetimes_and_as_milliseconds() -> None:
    assert epoch_ms(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    assert epoch_ms(1_767_225_600_000) == 1_767_225_600_000


def test_runtime_info_of_either_spelling_gives_figures() -> None:
    values = {
        "brokerVersionDesc": "V5_3_3",
        "putTps": "12.5 3.0 1.0",
        "getTransferedTps": "7.25 1 1",
        "commitLogDiskRatio": "0.25",
        "msgPutTotalTodayNow": "100",
        "msgPutTotalTodayMorning": "40",
        "msgGetTotalTodayNow": "9",
        "msgGetTotalTodayMorning": "9",
    }
    runtime = BrokerRuntime(BROKERS[0], values)
    assert (runtime.version, runtime.put_per_second, runtime.get_per_second) == (
        "V5_3_3",
        12.5,
        7.25,
    )
    assert (runtime.disk_used_ratio, runtime.put_count_today) == (0.25, 60)
    assert runtime.get_count_today == 0
    assert BrokerRuntime(BROKERS[0], {}).put_per_second == 0.0
