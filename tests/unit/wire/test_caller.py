"""Addresses that a caller refuses before it opens anything."""

from __future__ import annotations

import asyncio

import pytest

from contrail.errors import CallFailed
from contrail.wire.caller import Caller


@pytest.mark.parametrize(
    "address", ["", "host", ":1", "host:", "host:-1", "host:65536", "host:x", "a..b:1"]
)
def test_a_text_that_is_no_address_is_refused_by_name(address: str) -> None:
    async def call() -> None:
        caller = Caller()
        try:
            await caller.call(address, 34)
        finally:
            await caller.close()

    with pytest.raises(CallFailed, match="host:port"):
        asyncio.run(call())


@pytest.mark.parametrize(
    "error", [UnicodeError("label empty"), OverflowError("port"), ValueError("nul"), TimeoutError()]
)
def test_a_name_that_the_resolver_refuses_is_a_failed_call(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call() -> None:
        async def refuse(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse)
        await Caller().call("host:9876", 34)

    with pytest.raises(CallFailed, match=str(error) or "timeout"):
        asyncio.run(call())
