"""Contrail: a message store, and later a broker, that speaks Apache RocketMQ's formats.

The public names are resolved on first use, so that importing one room does not pay for another.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrail.errors import ContrailError as ContrailError
    from contrail.model.message import MessageDraft as MessageDraft
    from contrail.model.properties import encode_properties as encode_properties
    from contrail.store.config import FlushDiskType as FlushDiskType
    from contrail.store.config import StoreConfig as StoreConfig
    from contrail.store.log import MessageStore as MessageStore
    from contrail.store.reader import StoreReader as StoreReader

__version__ = "0.1.0.dev0"

# public name -> the module that defines it
_PUBLIC: dict[str, str] = {
    "ContrailError": "contrail.errors",
    "FlushDiskType": "contrail.store.config",
    "MessageDraft": "contrail.model.message",
    "MessageStore": "contrail.store.log",
    "StoreConfig": "contrail.store.config",
    "StoreReader": "contrail.store.reader",
    "encode_properties": "contrail.model.properties",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'contrail' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
