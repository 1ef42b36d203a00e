"""The KV table: texts by namespace and key, which operators set and brokers are told."""

from __future__ import annotations

from collections.abc import Mapping

from contrail.errors import RequestRejected
from contrail.model.fastjson import Fields, dumps, loads
from contrail.protocol.codes import ResponseCode

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
# The whole table is rewritten with each change, so it must stay small.
ENTRY_COUNT_MAX = 10_000


class KvTable:
    """Namespaces stay once they were made, also when their last key is deleted."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, str]] = {}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Raises ``RequestRejected`` when the table is full."""
        known = self.get(namespace, key) is not None
        if not known and sum(map(len, self._namespaces.values())) >= ENTRY_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"the KV table holds {ENTRY_COUNT_MAX} entries; delete some before adding {key!r}",
            )
        self._namespaces.setdefault(namespace, {})[key] = value

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        self._namespaces.get(namespace, {}).pop(key, None)

    def namespace(self, name: str) -> Mapping[str, str] | None:
        """All of one namespace; None when nothing was ever put there."""
        return self._namespaces.get(name)

    def fill(self, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """Begin with what was saved."""
        self._namespaces = {name: dict(table) for name, table in namespaces.items()}

    def encode(self) -> bytes:
        """The content of RocketMQ's ``kvConfig.json``."""
        return dumps({"configTable": self._namespaces})


def decode_kv(document: bytes) -> dict[str, dict[str, str]]:
    """The namespaces in a ``kvConfig.json``; raises ``FastJsonError`` for another shape."""
    table = Fields(loads(document), "kvConfig.json").child("configTable")
    if table is None:
        return {}
    return {name: table.texts(name) for name in table.unknown(frozenset())}
