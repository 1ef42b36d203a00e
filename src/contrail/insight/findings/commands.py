"""The command lines that mend findings, for the examined cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from contrail.insight.words import perm_text


@dataclass(frozen=True, slots=True)
class Commands:
    """``chosen`` is how the cluster was chosen: ``-n ADDRESSES``, ``--ctx NAME`` or nothing."""

    chosen: Sequence[str] = ()

    def _contrail(self, *words: str) -> str:
        return shlex.join(["contrail", *words, *self.chosen])

    # Groups.

    def seek(self, group: str, topic: str, place: str) -> str:
        """``place`` is ``earliest`` or ``latest``."""
        return self._contrail("group", "seek", group, "--topic", topic, "--to", place)

    def enable_group(self, group: str) -> str:
        return self._contrail("group", "create", group, "--consume")

    def show_client(self, client_id: str, group: str, *, stack: bool = False) -> str:
        more = ["--stack"] if stack else []
        return self._contrail("client", "show", client_id, "--group", group, *more)

    def clients_of(self, group: str) -> str:
        return self._contrail("client", "list", "--group", group)

    def in_flight(self, group: str) -> str:
        return self._contrail("group", "inflight", group)

    def dead_letters(self, group: str) -> str:
        return self._contrail("dlq", "show", group)

    def message(self, topic: str, message_id: str) -> str:
        return self._contrail("message", "get", message_id, "--topic", topic)

    # Topics.

    def create_topic(self, topic: str, *, broker: str | None = None, queues: int = 8) -> str:
        where = [] if broker is None else ["--broker", broker]
        return self._contrail("topic", "create", topic, "--queues", str(queues), *where)

    def grow_topic(self, topic: str, queues: int) -> str:
        return self._contrail("topic", "grow", topic, "--queues", str(queues))

    def topic_perm(self, topic: str, broker: str, perm: int) -> str:
        words = ("topic", "create", topic, "--broker", broker, "--perm", perm_text(perm))
        return self._contrail(*words)

    def tail(self, topic: str) -> str:
        return self._contrail("tail", topic, "-o", "-10", "-e")

    # Servers.

    def start_broker(self, *more: str) -> str:
        """Start it again with its own settings, and some others."""
        return shlex.join(["contrail", "broker", "-c", "broker.conf", *more])

    def start_name_server(self, port: int) -> str:
        return shlex.join(["contrail", "namesrv", "--port", str(port)])

    def replace_damaged(self, folder: str) -> str:
        """On the machine of the broker, which must be stopped."""
        return shlex.join(["contrail", "store", "recover", folder, "--replace-damaged"])

    def broker_status(self, broker: str) -> str:
        return self._contrail("broker", "status", broker)

    def replication_status(self) -> str:
        return self._contrail("replication", "status")

    def secret_fingerprint(self) -> str:
        """On the machine of each broker, with its own ``contrailClusterSecretFile``."""
        return shlex.join(["contrail", "replication", "secret", "--show", "cluster.secret"])

    def undrain(self, broker: str) -> str:
        return self._contrail("broker", "undrain", broker)

    def roll_back(self, transaction_id: str) -> str:
        return self._contrail("tx", "rollback", transaction_id)
