"""Registers this broker's topics with every NameServer: at the start, every half minute, on
changes, and when a NameServer comes back."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping

from contrail.broker.services.topics import Topics
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.clock import monotonic_ms
from contrail.errors import CallFailed
from contrail.model.data_version import DataVersion
from contrail.model.fastjson import FastJsonError, Fields, loads
from contrail.model.topic import Perm, TopicConfig
from contrail.protocol.bodies.registration import RegisterBrokerBody, body_crc32
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.json_style import encode_body
from contrail.wire.addresses import split_addresses
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)
_UNREGISTER_TIMEOUT_MS = 3_000
_VERSION_TIMEOUT_MS = 3_000
# How long a start is held up by NameServers that take a connection but do not answer.
_PATIENCE_MS = 3_000
# After a round that took longer than this a change rests for some times as long as it took.
_LONG_ROUND_S = 0.1
_REST_RATIO = 3.0
_REST_S_MAX = 1.0
# A NameServer that was lost is tried again after this time, twice that, and so on.
_RETURN_S_FIRST = 0.5
_RETURN_S_MAX = 30.0


class _Rounds:
    """The rounds of one NameServer, one at a time: a slow NameServer delays no other one."""

    def __init__(self, server: str, register: Callable[[str, bool], Awaitable[None]]) -> None:
        self._server = server
        self._register = register
        self._again = False
        self._took_s = 0.0
        self.task: asyncio.Task[None] | None = None

    def ask(self, is_change: bool) -> None:
        """Have a round soon; all requests for one during a round make one more after it."""
        if self.is_running:
            self._again = self._again or is_change
            return
        self.task = asyncio.get_running_loop().create_task(
            self._run(is_change), name=f"register with {self._server}"
        )

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    async def _run(self, is_change: bool) -> None:
        # A change may have been asked for before the first round began.
        is_change, self._again = is_change or self._again, False
        await self._timed(is_change)
        while self._again:
            # Every round tells all topics, and thousands may be created one after the other.
            if self._took_s > _LONG_ROUND_S:
                await asyncio.sleep(min(_REST_RATIO * self._took_s, _REST_S_MAX))
            self._again = False
            await self._timed(True)

    async def _timed(self, is_change: bool) -> None:
        began_ms = monotonic_ms()
        await self._register(self._server, is_change)
        self._took_s = (monotonic_ms() - began_ms) / 1000

    async def end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


class Registration:
    """Keeps this broker registered; each NameServer is talked to by a task of its own."""

    def __init__(
        self,
        settings: RuntimeSettings,
        topics: Topics,
        caller: Caller,
        *,
        address: str,
        ha_address: str,
        now_ms: Callable[[], int],
        on_master: Callable[[str, str], None] = lambda ha_address, address: None,
        terms: Mapping[str, str] | None = None,
    ) -> None:
        """``ha_address`` is empty while no port listens for slaves.

        ``on_master`` is told the HA address and the address of the master of this broker's name,
        as NameServers answer them to its slaves. ``terms`` are further fields of a registration.
        """
        self._terms = dict(terms or {})
        self._on_master = on_master
        self._settings = settings
        self._topics = topics
        self._caller = caller
        self._address = address
        self._ha_address = ha_address
        self._now_ms = now_ms
        # The term of a failover group: NameServers prefer the leader of the higher one.
        self.fence = 0
        self._rounds: dict[str, _Rounds] = {}
        self._is_leaving = False
        self._reached: dict[str, bool] = {}
        self._returning: dict[str, asyncio.Task[None]] = {}

    @property
    def name_servers(self) -> list[str]:
        return split_addresses(self._settings.config.name_servers)

    @property
    def is_registering(self) -> bool:
        """Whether a NameServer is being talked to."""
        return any(rounds.is_running for rounds in self._rounds.values())

    def register_soon(self, *, is_change: bool = True) -> None:
        """Register with all NameServers in the background, once however often it is asked."""
        if self._is_leaving:
            return
        for server in self.name_servers:
            if server not in self._rounds:
                self._rounds[server] = _Rounds(server, self._register_one)
            self._rounds[server].ask(is_change)

    async def register_now(self, *, patience_ms: int = _PATIENCE_MS) -> bool:
        """Register and wait, not long for the slow ones; whether every NameServer took it."""
        self.register_soon()
        tasks = {rounds.task: server for server, rounds in self._rounds.items() if rounds.task}
        if not tasks:
            return False
        _, late = await asyncio.wait(tasks, timeout=patience_ms / 1000)
        for task in late:
            _log.warning("NameServer %s has not answered yet and is waited for", tasks[task])
        return not late and all(self._reached.get(server, False) for server in tasks.values())

    def lost(self, server: str) -> None:
        """The connection to a NameServer closed. One that was restarted knows of nobody: until
        brokers register again, it sends clients away."""
        if self._is_leaving or server not in self._rounds or server in self._returning:
            return
        self._reached[server] = False
        task = asyncio.get_running_loop().create_task(
            self._return_to(server), name=f"return to {server}"
        )
        self._returning[server] = task
        task.add_done_callback(lambda _: self._returning.pop(server, None))

    async def _return_to(self, server: str) -> None:
        rounds, delay_s = self._rounds[server], _RETURN_S_FIRST
        while not self._reached.get(server) and server in self.name_servers:
            # Many brokers lose a NameServer together; they must not all come back together.
            await asyncio.sleep(delay_s * (0.5 + random.random()))
            rounds.ask(True)
            if rounds.task is not None:
                await asyncio.wait([rounds.task])
            delay_s = min(2 * delay_s, _RETURN_S_MAX)

    async def _register_one(self, server: str, is_change: bool) -> None:
        try:
            if is_change or await self._is_outdated(server):
                await self._register_with(server)
        except CallFailed as error:
            self._note(server, False, f"{error}; it is tried again")
        except Exception:
            # The failure of one NameServer must not end the rounds; the next round logs it again.
            _log.exception("registering with NameServer %s failed", server)

    async def _is_outdated(self, server: str) -> bool:
        """Whether a NameServer lacks our newest topics; asking counts as a heartbeat too."""
        if self._settings.config.force_register:
            return True
        body = encode_body(self._data_version().to_fields())
        answer = await self._caller.call(
            server,
            RequestCode.QUERY_DATA_VERSION,
            self.identity(),
            body,
            timeout_ms=_VERSION_TIMEOUT_MS,
        )
        return (
            answer.code != ResponseCode.SUCCESS or answer.fields.get("changed", "true") != "false"
        )

    async def _register_with(self, server: str) -> None:
        config = self._settings.config
        registered = RegisterBrokerBody(
            topics={topic.topic: topic for topic in self._announced_topics()},
            data_version=self._data_version(),
        )
        # Ten thousand topics take most of a second, and clients must not wait for that.
        body = await asyncio.get_running_loop().run_in_executor(
            None, lambda: registered.encode(compressed=config.register_compressed)
        )
        fields = {
            **self.identity(),
            **self._terms,
            "haServerAddr": self._ha_address,
            "compressed": "true" if config.register_compressed else "false",
            "bodyCrc32": str(body_crc32(body)),
        }
        answer = await self._caller.call(
            server,
            RequestCode.REGISTER_BROKER,
            fields,
            body,
            timeout_ms=config.register_timeout_ms,
        )
        if answer.code == ResponseCode.SUCCESS:
            self._note(server, True, "registered")
            self._take_order_config(answer.body)
            self._take_master(answer.fields)
        else:
            self._note(server, False, f"refused with {answer.code}: {answer.remark}")

    def _data_version(self) -> DataVersion:
        version = self._topics.table.data_version
        return dataclasses.replace(version, state_version=max(version.state_version, self.fence))

    def _announced_topics(self) -> Iterable[TopicConfig]:
        """Topics with their permission narrowed to the broker's."""
        permission = self._settings.config.permission
        both = Perm.READ | Perm.WRITE
        for topic in self._topics.table.topics.values():
            if permission & both != both:
                topic = dataclasses.replace(topic, perm=topic.perm & permission)
            yield topic

    def identity(self) -> dict[str, str]:
        """The fields by which NameServers know this broker."""
        config = self._settings.config
        return {
            "brokerName": config.broker_name,
            "brokerAddr": self._address,
            "clusterName": config.cluster_name,
            "brokerId": str(config.broker_id),
        }

    def _take_master(self, fields: Mapping[str, str]) -> None:
        ha_address, address = fields.get("haServerAddr", ""), fields.get("masterAddr", "")
        if address and not self._settings.config.role.leads:
            self._on_master(ha_address, address)

    def _take_order_config(self, body: bytes) -> None:
        """A NameServer may name topics that are ordered across brokers."""
        if not body:
            return
        try:
            table: Mapping[str, str] = Fields(loads(body), "a KVTable").texts("table")
        except FastJsonError as error:
            _log.warning("a NameServer's order configuration cannot be read: %s", error)
            return
        self._topics.mark_ordered(table, self._now_ms())

    def _note(self, server: str, reached: bool, text: str) -> None:
        if self._reached.get(server) != reached:
            level = logging.INFO if reached else logging.WARNING
            _log.log(level, "NameServer %s: %s", server, text)
        self._reached[server] = reached

    async def unregister(self) -> None:
        """Leave all NameServers; those that cannot be reached notice by themselves."""
        self._is_leaving = True
        returning = list(self._returning.values())
        for task in returning:
            task.cancel()
        await asyncio.gather(*returning, return_exceptions=True)
        await asyncio.gather(*(rounds.end() for rounds in self._rounds.values()))
        await asyncio.gather(*(self._leave(server) for server in self.name_servers))

    async def _leave(self, server: str) -> None:
        try:
            # Connecting takes its time too, so the call's own timeout is not enough.
            async with asyncio.timeout(_UNREGISTER_TIMEOUT_MS / 1000):
                await self._caller.call(
                    server,
                    RequestCode.UNREGISTER_BROKER,
                    self.identity(),
                    timeout_ms=_UNREGISTER_TIMEOUT_MS,
                )
        except (CallFailed, TimeoutError) as error:
            reason = str(error) or "timeout"
            _log.warning("NameServer %s was not told that this broker leaves: %s", server, reason)
