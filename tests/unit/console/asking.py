"""A console without a socket: its requests are sent to the application itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from contrail.client.admin import Admin
from contrail.client.admin_values import BrokerAddress, GroupConnections
from contrail.clock import ManualClock
from contrail.console.app import Console
from contrail.console.assets import Assets
from contrail.console.config import ConsoleConfig
from contrail.console.services.sampler import Sample
from contrail.console.state.roles import Role
from contrail.errors import NotOnCluster, RouteMissing
from contrail.insight.lists import GroupRow, TopicRow

HOST = "127.0.0.1:9870"
NOW_MS = 1_800_000_000_000
_PREPARED: list[tuple[bytes, dict[Role, str]]] = []


class FakeAdmin:
    """A cluster of one broker that knows no topic and no group."""

    name_servers = ("127.0.0.1:9876",)

    def __init__(self) -> None:
        self.asked_groups: list[str] = []

    async def brokers(self) -> list[BrokerAddress]:
        return []

    async def groups(self, **options: object) -> list[str]:
        return []

    async def group_topics(self, group: str, **options: object) -> list[str]:
        return []

    async def group_connections(self, group: str, **options: object) -> Any:
        self.asked_groups.append(group)
        return GroupConnections(group)

    def __getattr__(self, name: str) -> Any:
        """Every other question: there is no such thing."""

        async def ask(*given: object, **named: object) -> Any:
            raise NotOnCluster(f"{name}: nothing is there")

        return ask

    async def topic_route(self, topic: str) -> Any:
        raise RouteMissing(f"no broker has topic {topic!r}", topic=topic)


@dataclass(frozen=True)
class Told:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def cookie(self) -> str:
        """The pair of name and value that the answer sets."""
        return self.headers["set-cookie"].partition(";")[0]


@dataclass
class Desk:
    """A console with an account of each role, and the headers of its callers."""

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    assets: Assets | None = None

    def __post_init__(self) -> None:
        self.clock = ManualClock(NOW_MS)
        config = ConsoleConfig(folder=self.folder, **self.options)
        self.admin = FakeAdmin()
        self.console = Console(
            config, clock=self.clock, admin=cast(Admin, self.admin), assets=self.assets
        )
        self.parts = self.console.parts
        self.web = self.console.web()
        self.parts.accounts._cost = 1 << 4
        self.parts.sampler.sample = Sample(
            NOW_MS - 4_000,
            FakeAdmin.name_servers,
            groups=[GroupRow("billing", has_settings=True, lag=7), GroupRow("SYS", True)],
            topics=[TopicRow("orders", "normal", ["a"], 4, 9, 1.5, 1, 7), TopicRow("T", "system")],
            partial={"b": "no answer"},
        )
        self.parts.sampler.series.note({"in": 2.5}, NOW_MS)
        # Each write of the file is made durable: all desks begin with the same bytes.
        path = self.folder / "accounts.json"
        if not _PREPARED:
            for role in Role:
                self.parts.accounts.put(role.word, role, f"password of {role.word}")
            tokens = {role: self.parts.accounts.new_token(role.word) for role in Role}
            _PREPARED.append((path.read_bytes(), tokens))
        data, self.tokens = _PREPARED[0]
        path.write_bytes(data)

    def ask(
        self,
        method: str,
        path: str,
        *,
        role: Role | None = None,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        address: str = "10.0.0.7",
    ) -> Told:
        """``role`` sends the token of that account; a ``body`` that is not bytes is JSON."""
        sent = {"host": HOST, **(headers or {})}
        if role is not None:
            sent["authorization"] = f"Bearer {self.tokens[role]}"
        if body is not None:
            sent.setdefault("content-type", "application/json")
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        return asyncio.run(self._answer(method, path, sent, data, address))

    def log_in(self, role: Role = Role.ADMIN) -> Told:
        login = {"account": role.word, "password": f"password of {role.word}"}
        return self.ask("POST", "/api/v1/session", body=login)

    async def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, address: str
    ) -> Told:
        plain, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": plain,
            "raw_path": quote(plain).encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": (address, 50_000),
            "server": ("127.0.0.1", 9870),
        }
        messages: list[Any] = []
        waiting = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return waiting.pop() if waiting else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)

        await self.web(scope, receive, send)
        begin = messages[0]
        found = {name.decode(): value.decode() for name, value in begin["headers"]}
        return Told(begin["status"], found, b"".join(one.get("body", b"") for one in messages[1:]))
