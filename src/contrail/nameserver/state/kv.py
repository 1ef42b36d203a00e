"""The KV table: texts by namespace and key; operators set them, brokers receive them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.entry_sieve import EntrySieve, Refused
from contrail.model.fastjson import Fields, JsonValue, dumps, loads
from contrail.model.stored_entries import check_kv_entry
from contrail.protocol.codes import ResponseCode

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
# The whole table is rewritten with each change, so it must stay small.
ENTRY_COUNT_MAX = 10_000


Planned = tuple[tuple[str, str], str | None]
"""Namespace, key and planned value; None if the key will be deleted."""


class KvTable:
    """Texts by namespace and key. A namespace stays when its last key is deleted."""

    def __init__(self, namespaces: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._namespaces = {name: dict(table) for name, table in (namespaces or {}).items()}

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; raises as ``check_put``."""
        self.check_put(namespace, key, value)
        self._namespaces.setdefault(namespace, {})[key] = value

    def check_put(self, namespace: str, key: str, value: str, *, planned_count: int = 0) -> None:
        """Refuse a value that ``put`` would refuse after ``planned_count`` more entries.

        Raises:
            RequestRejected: the table is full, or the reader of its file would refuse the entry.
        """
        check_kv_entry(namespace, key, value)
        if self.get(namespace, key) is not None:
            return
        if sum(map(len, self._namespaces.values())) + planned_count >= ENTRY_COUNT_MAX:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"the KV table holds {ENTRY_COUNT_MAX} entries; delete some before adding {key!r}",
            )

    def get(self, namespace: str, key: str) -> str | None:
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        self._namespaces.get(namespace, {}).pop(key, None)

    def namespace(self, name: str) -> Mapping[str, str] | None:
        """All values of one namespace; None if no value was ever put there."""
        return self._namespaces.get(name)

    def fill(self, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        """Begin with the saved namespaces."""
        self._namespaces = {name: dict(table) for name, table in namespaces.items()}

    def encode(self, planned: Iterable[Planned] = ()) -> bytes:
        """The content of RocketMQ's ``kvConfig.json``, with the planned changes applied."""
        namespaces = {name: dict(table) for name, table in self._namespaces.items()}
        for (namespace, key), value in planned:
            if value is not None:
                namespaces.setdefault(namespace, {})[key] = value
            else:
                namespaces.get(namespace, {}).pop(key, None)
        return dumps({"configTable": namespaces})


class StoredKv(NamedTuple):
    """The content of a ``kvConfig.json``: the namespaces, and the entries that break a rule."""

    namespaces: dict[str, dict[str, str]]
    refused: Refused = ()


def decode_kv(document: bytes) -> StoredKv:
    """Read a ``kvConfig.json``; raises ``FastJsonError`` if it has another shape."""
    sieve = EntrySieve(Fields(loads(document), "kvConfig.json"))

    def read_namespace(name: str, value: JsonValue) -> dict[str, str]:
        fields = Fields(value, name)

        def read_entry(key: str, value: JsonValue) -> str:
            text = Fields({key: value}, name).as_text(key)
            check_kv_entry(name, key, text)
            return text

        return sieve.items(("configTable", name), fields, read_entry)

    return StoredKv(sieve.entries("configTable", read_namespace), sieve.refused)
