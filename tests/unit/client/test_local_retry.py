"""When a push consumer handles a message again that no broker took back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from contrail.client.consuming_concurrent import ConcurrentSupply
from tests.unit.client.consuming_setup import FakeReader, FakeSendBack


def test_a_message_that_cannot_be_sent_back_comes_again_after_five_seconds() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        due: list[tuple[float, Callable[[], Any]]] = []

        def note(delay_s: float, call: Callable[..., Any], *arguments: Any) -> None:
            due.append((delay_s, lambda: call(*arguments)))

        loop.call_later = note  # type: ignore[method-assign, assignment]
        send_back, reader = FakeSendBack(), FakeReader()
        send_back.is_refusing = True
        # As a consumer makes it: with the time that is its own.
        supply = ConcurrentSupply(send_back.real, is_broadcasting=False, call_one=lambda: None)
        reader.supply = supply
        supply.submit(reader.real, reader.pull(1))
        await supply.failed(supply.take(1))
        assert not supply.has_more
        [(delay_s, call)] = due
        assert delay_s == 5.0
        call()
        assert [one.reconsume_times for one in supply.take(1)] == [1]

    asyncio.run(main())
