"""Apache's Java clients as members of groups, each version in a process of its own."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contrail.aio import Message, MessageQueue
from tests.interop.clients.driver import Driver, Event
from tests.interop.clients.session import PINS, JavaSession
from tests.interop.peers import java_peer

_HEAP = "-Xmx128m"


class _GroupMember(Driver):
    """``java/GroupMember.java`` against one pinned client."""

    def __init__(self, pin: str, homes: Path) -> None:
        super().__init__(homes)
        self._peer = java_peer(pin)

    def command_line(self, home: Path) -> list[str]:
        return self._peer.command("GroupMember", [], home=home, ours=True, heap=_HEAP)


class JavaMembers(JavaSession):
    """One process of the Java client; it may hold several members of a group."""

    def __init__(self, client: str, namesrv: str, homes: Path) -> None:
        self._running = _GroupMember(PINS[client], homes).start("serve", {"namesrv": namesrv})
        self._ids = itertools.count(1)

    def wait_ready(self) -> None:
        """Until it takes commands; ``with`` waits for that too."""
        self.__enter__()

    def join(self, name: str, group: str, topic: str, strategy: str = "AVG") -> str:
        """Start a push consumer; its client id."""
        answer = self.do("join", name=name, group=group, topic=topic, strategy=strategy)
        client_id: str = answer["client_id"]
        return client_id

    def leave(self, name: str) -> None:
        self.do("leave", name=name)

    def queues(self, name: str, topic: str) -> list[MessageQueue]:
        """The queues of the topic that are this member's at the moment."""
        return [
            MessageQueue(topic, broker_name, queue_id)
            for broker_name, queue_id in self.do("queues", name=name, topic=topic)["queues"]
        ]

    def send_messages(
        self, name: str, messages: Iterable[Message], *, batch: bool = False, **options: Any
    ) -> None:
        """Send messages of one topic, one by one or as one batch."""
        told = [_told(message) for message in messages]
        topics = {message.topic for message in messages}
        (topic,) = topics
        wanted: dict[str, Any] = {"name": name, "group": f"java_{topic}", "topic": topic}
        self.do("send", **wanted, messages=told, batch=batch, **options)

    def received_by(self, name: str) -> dict[str, Event]:
        """A member's messages, by key; bodies as they were sent."""
        return {
            event["key"]: event | {"body": base64.b64decode(event["body"])}
            for event in self.of("received", name)
        }


def _told(message: Message) -> dict[str, Any]:
    return {
        "key": message.keys[0],
        "tag": message.tags or "",
        "flag": message.flag,
        "body": base64.b64encode(message.body).decode(),
        "properties": dict(message.properties),
    }
