"""A master that comes back: it takes over what its slaves did for it before clients may see it.

Each slave that NameServers list is told where the master is, connects, and thereby ends its work
for the master. Then it is asked what it handed to other brokers, how far consumers came and how
far the delay levels are. A slave that does not come in time is left out, with a warning.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.escaped import Escaped
from contrail.errors import CallFailed, ContrailError
from contrail.model.fastjson import FastJsonError
from contrail.protocol.bodies.ha_status import HaStatus
from contrail.protocol.bodies.routes import MASTER_ID
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import ReceivedResponse
from contrail.store import CONSUMER_OFFSETS, DELAY_OFFSETS, DelayOffsetTable
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

_TIMEOUT_MS = 10_000
_ROUND_S = 0.2
PATIENCE_S = 20.0
# Half a minute without an answer of any NameServer is worth another line in the log.
_TOLD_EVERY = 150


class DelaysToAdopt(Protocol):
    """Where a master keeps how far the delay levels are."""

    def adopt(self, table: DelayOffsetTable) -> None: ...


class PreOnline:
    """Runs once, between opening the store and learning what was delivered."""

    def __init__(
        self,
        caller: Caller,
        *,
        alive: Callable[[], Awaitable[Mapping[int, str] | None]],
        address: str,
        ha_address: str,
        status: Callable[[], HaStatus],
        offsets: ConsumerOffsets,
        delays: DelaysToAdopt,
        escaped: Escaped,
        check: Callable[[], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``alive`` asks the NameServers; ``check`` raises when the start is abandoned."""
        self._caller = caller
        self._alive = alive
        self._address = address
        self._ha_address = ha_address
        self._status = status
        self._offsets = offsets
        self._delays = delays
        self._escaped = escaped
        self._check = check
        self._patience_s = patience_s

    async def run(self) -> None:
        """Take everything back; returns at once if no slave is alive.

        Raises:
            OpeningAbandoned: the start was abandoned meanwhile.
        """
        members = await self._members()
        slaves = {one: address for one, address in sorted(members.items()) if one != MASTER_ID}
        for broker_id, address in slaves.items():
            try:
                async with asyncio.timeout(self._patience_s):
                    await self._take_back(broker_id, address)
            except TimeoutError:
                _log.warning(
                    "slave %d at %s gives nothing back within %d s: messages that it handed to "
                    "other brokers may come again",
                    broker_id,
                    address,
                    self._patience_s,
                )

    async def _members(self) -> Mapping[int, str]:
        asked = 0
        while True:
            self._check()
            found = await self._alive()
            if found is not None:
                return found
            if asked % _TOLD_EVERY == 0:
                _log.warning("no NameServer says which slaves are alive; it is asked again")
            asked += 1
            await asyncio.sleep(_ROUND_S)

    async def _take_back(self, broker_id: int, address: str) -> None:
        _log.info("slave %d at %s is asked what it did for this master", broker_id, address)
        problem = ""
        while True:
            self._check()
            try:
                await self._tell(address)
                if self._is_linked(broker_id, address):
                    await self._adopt(address)
                    return
            except (ContrailError, FastJsonError) as error:
                if str(error) != problem:
                    problem = str(error)
                    _log.info("slave %d at %s: %s; it is asked again", broker_id, address, problem)
            await asyncio.sleep(_ROUND_S)

    async def _tell(self, address: str) -> None:
        fields = {
            "masterHaAddress": self._ha_address,
            "masterFlushOffset": "0",
            "masterAddress": self._address,
        }
        code = RequestCode.EXCHANGE_BROKER_HA_INFO
        answer = await self._caller.call(address, code, fields, timeout_ms=_TIMEOUT_MS)
        _body_of(answer, code)

    def _is_linked(self, broker_id: int, address: str) -> bool:
        """Whether the slave follows. A slave of Apache does not say its id: its host must do."""
        host = address.rpartition(":")[0]
        return any(
            link.state == "receiving"
            and (
                link.address.rpartition(":")[0] == host
                if link.broker_id is None
                else link.broker_id == broker_id
            )
            for link in self._status().slaves
        )

    async def _adopt(self, address: str) -> None:
        await self._adopt_escaped(address)
        body = await self._table(address, RequestCode.GET_ALL_DELAY_OFFSET)
        if body is not None:
            self._delays.adopt(DELAY_OFFSETS.parse(body))
        body = await self._table(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        changed_count = 0
        if body is not None:
            table = CONSUMER_OFFSETS.parse(body)
            changed_count = self._offsets.adopt(table.offsets, table.data_version)
        _log.info(
            "slave %s has given back %d offsets and %d messages that other brokers have",
            address,
            changed_count,
            len(self._escaped),
        )

    async def _adopt_escaped(self, address: str) -> None:
        code = RequestCode.GET_ESCAPED_MESSAGES
        answer = await self._caller.call(address, code, timeout_ms=_TIMEOUT_MS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            # A slave of Apache: its delay offsets have to do.
            return
        self._escaped.add(Escaped.decode(_body_of(answer, code)))

    async def _table(self, address: str, code: RequestCode) -> bytes | None:
        """A table of the slave; RocketMQ answers 1 for one that is empty."""
        answer = await self._caller.call(address, code, timeout_ms=_TIMEOUT_MS)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return None
        return _body_of(answer, code)


def _body_of(answer: ReceivedResponse, code: RequestCode) -> bytes:
    if answer.code != ResponseCode.SUCCESS:
        raise CallFailed(f"request {code} was answered {answer.code}: {answer.remark}")
    return answer.body
