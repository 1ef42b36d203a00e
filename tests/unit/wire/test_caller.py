"""Addresses that a caller refuses before it opens anything."""

from __future__ import annotations

import asyncio

import pytest

from contrail.errors import CallFailed
from contrail.wire.caller import Caller


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:-1", "host:65536", "host:x"])
def test_what_is_no_address_is_refused_by_name(address: str) -> None:
    async def call() -> None:
        caller = Caller()
        try:
            await caller.call(address, 34)
        finally:
            await caller.close()

    with pytest.raises(CallFailed, match="host:port"):
        asyncio.run(call())
